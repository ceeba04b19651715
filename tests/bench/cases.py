"""Cases of the comparison with Apache Kafka, with their figures and goals."""

from dataclasses import dataclass, replace

from partitions import MADE, STANDING

MORE, LESS = "more", "less"
RETAINED = "256m"
"""Retention of a topic under produce load. In a virtual machine the first access to a page of memory costs
several times the write itself. A log that only grows would measure that cost, on either broker.
"""


@dataclass(frozen=True)
class Figure:
    """One column of a case's result; `better` says which way is ahead, `goal` which ratio tierlog wants,
    `within` which value at most, whatever Kafka's is.
    """

    key: str
    title: str
    better: str
    goal: float | None = None
    within: float | None = None

    def read(self, summary: dict[str, list[float]]) -> float:
        if self.key == "mb_per_cpu_s":
            return 1000 / max(summary["broker_cpu_s_per_gb"][1], 1e-4)
        return summary[self.key][1]

    def ratio(self, ours: float, theirs: float) -> float:
        """Above 1, tierlog is better."""
        ours, theirs = max(ours, 1e-9), max(theirs, 1e-9)
        return ours / theirs if self.better == MORE else theirs / ours

    def no_more_than(self, value: float) -> "Figure":
        """This figure with a maximum as its goal."""
        return replace(self, within=value)

    def at_least(self, ratio: float) -> "Figure":
        """This figure with a multiple of Kafka's as its goal."""
        return replace(self, goal=ratio)

    def at_most(self, share: float) -> "Figure":
        """This figure with a share of Kafka's as its maximum."""
        return replace(self, goal=1 / share)


@dataclass(frozen=True)
class Case:
    """`words`: the arguments of bench.py, with {topic} a filled topic and {classpath} Kafka's jars. `length`:
    how long it is measured, as a multiple of the others.
    """

    words: tuple[str, ...]
    figures: tuple[Figure, ...]
    length: float = 1.0


PER_CPU = Figure("mb_per_cpu_s", "MB per CPU second", MORE)
RATE = Figure("mb_s", "MB/s", MORE)
P50, P99, P999 = (Figure(f"p{n}_ms", f"p{t} ms", LESS) for n, t in ((50, "50"), (99, "99"), (999, "99.9")))
CPU_SHARE = Figure("broker_cpu_pct", "CPU %", LESS)
MEMORY = Figure("rss_mib", "resident MiB", LESS)
PEAK = Figure("peak_rss_mib", "resident MiB at most", LESS)
RECORDS = Figure("msgs_s", "records/s", MORE)
CPU_PER_GB = Figure("broker_cpu_s_per_gb", "CPU s per GB", LESS)
PER_MILLION = Figure("broker_cpu_s_per_million", "CPU seconds per million records", LESS)

COMMITS = Figure("commits_s", "commits/s", MORE)
PER_COMMIT = Figure("cpu_ms_per_commit", "CPU ms per commit", LESS)

WRITE = ("raw-produce", "--retain", RETAINED, "--batch")
READ = ("raw-fetch", "--batch", "64k", "--max-bytes", "64g", "--topic", "{topic}", "--max-partition")
PERF_TEST = (
    "java-perf", "--size", "100", "--count", "3000000", "--retain", RETAINED, "--classpath", "{classpath}",
    "--warm-s", "0",
)  # fmt: skip
EIGHT = ("--partitions", "8")
TLS = ("--tls", "{tls}", "--ca", "{ca}")
LOGINS = ("--sasl", "{sasl}", "--ca", "{ca}", "--at-once")
PER_LOGIN = Figure("cpu_ms_per_login", "CPU ms per login", LESS)
WARM = ("--warm-s", "4")
"""Longer than in other cases: the load that warms up Kafka's JVM has no transactions."""

CASES: dict[str, Case] = {
    "produce 16 KiB": Case((*WRITE, "16k"), (PER_CPU.at_least(1.5), RATE)),
    "produce 64 KiB": Case((*WRITE, "64k"), (PER_CPU.at_least(2), RATE)),
    "produce 1 MiB": Case((*WRITE, "1m"), (PER_CPU.at_least(2), RATE)),
    "produce 16 KiB, 8 partitions": Case((*WRITE, "16k", *EIGHT), (PER_CPU.at_least(1.5), RATE)),
    "produce 64 KiB, 8 partitions": Case((*WRITE, "64k", *EIGHT), (PER_CPU.at_least(2), RATE)),
    "produce 1 MiB, 8 partitions": Case((*WRITE, "1m", *EIGHT), (PER_CPU.at_least(2), RATE)),
    "produce 64 KiB, 8 partitions, 4 connections": Case(
        (*WRITE, "64k", *EIGHT, "--connections", "4"),
        (RATE.at_least(1.5), CPU_SHARE, PER_CPU, PEAK.at_most(0.25)),
    ),
    "fetch 1 MiB": Case((*READ, "1m"), (RATE.at_least(1), PER_CPU.at_least(1)), 0.5),
    "fetch 8 MiB": Case((*READ, "8m"), (RATE.at_least(1), PER_CPU.at_least(1)), 0.5),
    "librdkafka produce, 1 KB": Case(("rd-produce",), (RATE.at_least(1), PER_CPU.at_most(0.5))),
    "librdkafka end to end, 1,000/s": Case(
        ("rd-e2e", "--rate", "1000", "--linger", "0"),
        (P50.at_most(1), P99.at_most(0.7), P999.at_most(0.2)),
        2.0,
    ),
    "produce 16 KiB at 52 MB/s": Case(
        (*WRITE, "16k", "--rate", "3200"), (P50, P99.at_most(0.5), P999.at_most(0.5)), 2.0
    ),
    "produce 16 KiB at 3 MB/s while compacting": Case(
        ("produce-while-compacting", "--batch", "16k", "--rate", "200", "--fill-bytes", "512m"),
        (P50, P99, P999),
    ),
    "1,000 connections, a request a second each": Case(
        ("connections", "--connections", "1000"), (CPU_SHARE.at_most(0.7), P99.at_most(0.7))
    ),
    "kafka-producer-perf-test, 100 B": Case(PERF_TEST, (RECORDS.at_least(1), PER_MILLION)),
    "5 consumers beside a producer, 64 KiB": Case(
        ("fan-out", "--batch", "64k", "--retain", "1g"),
        (PER_CPU.at_least(1.5), RATE, Figure("written_mb_s", "of it written, MB/s", MORE)),
    ),
    "exactly-once: commits, 1 record each": Case(
        ("transactions", *WARM, "--partitions", "4"),
        (COMMITS.at_least(3), P50.at_most(0.4), P99.at_most(0.4), PER_COMMIT.at_most(0.4)),
    ),
    "exactly-once: read, write, commit 100 records": Case(
        ("copy", *WARM, "--partitions", "4", "--per", "100", "--count", "100000"),
        (RECORDS.at_least(5), P50.at_most(0.4), P99.at_most(0.4), PER_COMMIT.at_most(0.4)),
    ),
    "exactly-once: send to a read_committed consumer, 50/s": Case(
        ("visible", *WARM, "--rate", "50"), (P50.at_most(0.4), P99.at_most(0.4)), 2.0
    ),
    "exactly-once: produce 64 KiB, transactions of 1 s": Case(
        ("transactional-produce", *WARM, "--size", "8k"),
        (
            RATE,
            CPU_PER_GB,
            Figure("share_of_plain", "MB/s, share of that without transactions", MORE),
            Figure("cpu_of_plain", "CPU, multiple of that without transactions", LESS),
        ),
        2.0,
    ),
    **{
        f"exactly-once: 20 members, 60 partitions, {protocol} protocol": Case(
            ("rebalance", "--partitions", "60", "--members", "20", "--protocol", protocol),
            tuple(
                Figure(key, title, LESS).at_most(share)
                for key, title in (
                    ("all_in_s", "all in, s"),
                    ("one_more_s", "one more, s"),
                    ("one_less_s", "one less, s"),
                )
            ),
        )
        for protocol, share in (("classic", 1.0), ("consumer", 0.5))
    },
    **{
        f"exactly-once: 200 members that stay, {protocol} protocol": Case(
            ("heartbeats", "--members", "200", "--protocol", protocol), (CPU_SHARE.at_most(0.5),), 3.0
        )
        for protocol in ("classic", "consumer")
    },
    "security: produce 64 KiB over TLS": Case((*WRITE, "64k", *TLS), (PER_CPU.at_least(1.5), RATE)),
    "security: produce 64 KiB without TLS": Case((*WRITE, "64k"), (PER_CPU, RATE)),
    "security: fetch 1 MiB over TLS": Case((*READ, "1m", *TLS), (PER_CPU.at_least(1.2), RATE)),
    "security: fetch 1 MiB without TLS": Case((*READ, "1m"), (PER_CPU, RATE)),
    "security: TLS and SCRAM, 16 at a time": Case(
        ("logins", *LOGINS, "16"), (Figure("logins_s", "logins/s", MORE).at_least(2), PER_LOGIN, P50, P99)
    ),
    "security: TLS and SCRAM, 1,000 at once": Case(
        ("login-storm", *LOGINS, "1000"), (P99.at_most(0.5), P50, PER_LOGIN)
    ),
    "security: produce 16 KiB, 10,000 ACLs": Case(
        ("acls", *WRITE[1:], "16k"),
        (Figure("cpu_of_none", "CPU, multiple of that without ACLs", LESS).no_more_than(1.03), PER_CPU, RATE),
    ),
    "memory after the load": Case(("idle",), (MEMORY.at_most(0.25),), 0.5),
}
"""Cases for brokers that serve all cases in turn."""

GROUPS = {
    group: [name for name in CASES if name.startswith(f"{group}: ")] for group in ("exactly-once", "security")
}
"""Cases that can be measured by one name."""

PARTITIONS = "partitions"
CREATED = f"{MADE:,} partitions created and serving"
PROCESS_CASES: dict[str, tuple[Figure, ...]] = {
    "start to the first Metadata answer": (Figure("start_s", "s", LESS).at_most(0.3),),
    f"start with {STANDING:,} partitions": (Figure("start_standing_s", "s", LESS).at_most(0.3),),
    "memory after a start": (MEMORY.at_most(0.25),),
    CREATED: (Figure("made_s", "s", LESS).at_most(0.5),),
    f"{MADE:,} idle partitions": (Figure("kib_per_partition", "KiB resident a partition", LESS),),
}
"""Cases with brokers of their own, measured together."""

FIGURES = {name: case.figures for name, case in CASES.items()} | PROCESS_CASES
