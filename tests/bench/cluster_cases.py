"""Cases of the comparison of a three-node cluster with Apache Kafka's, with their figures and goals."""

from dataclasses import dataclass

from cases import LESS, MORE, P50, P99, P999, RETAINED, Case, Figure

CPU = Figure("broker_cpu_s_per_gb", "CPU s per GB", LESS)
RATE = Figure("mb_s", "MB/s", MORE)
GAP = Figure("gap_s", "longest gap s", LESS)
"""Longest time between two acknowledgements of a producer, in seconds."""

LED = Figure("led_s", "all led again s", LESS)
"""Time from the kill until every partition has a leader, in seconds."""

COMMIT_GAP = Figure("gap_s", "longest gap of commits s", LESS)
"""Longest time between two commits of a transactional producer, in seconds."""

REPLICATED = ("--rf", "3", "--acks", "-1")
WRITE = ("raw-produce", "--partitions", "3", *REPLICATED, "--retain", RETAINED, "--batch")

LOAD_CASES: dict[str, Case] = {
    "produce 16 KiB, 3 partitions": Case((*WRITE, "16k"), (CPU.at_most(0.5), RATE)),
    "produce 64 KiB, 3 partitions": Case((*WRITE, "64k"), (CPU.at_most(0.5), RATE)),
    "librdkafka, 1 KB, as fast as it goes": Case(
        ("rd-produce", "--rf", "3"), (RATE.at_least(1.3), CPU.at_most(0.6))
    ),
    "librdkafka, 2,000 records/s": Case(
        ("rd-produce", "--rf", "3", "--rate", "2000"), (P50, P99.at_most(0.7), P999.at_most(0.7)), 2.0
    ),
    "librdkafka end to end, 1,000/s": Case(
        ("rd-e2e", "--rf", "3", "--rate", "1000", "--linger", "0"), (P50.at_most(0.7), P99.at_most(0.7)), 2.0
    ),
}

TIGHT = {
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}
"""Settings of both clusters in the cases with tight settings: short sessions and election timeouts."""


@dataclass(frozen=True)
class KillCase:
    """A partition leader is killed with SIGKILL. `tight`: the clusters run with TIGHT settings. `controller`:
    the leader is the active controller too. `coordinator`: a transaction coordinator is killed instead."""

    tight: bool
    controller: bool
    figures: tuple[Figure, ...]
    coordinator: bool = False


LEADER, BOTH = "leader killed", "leader and controller killed"
KILL_CASES: dict[str, KillCase] = {
    f"{LEADER}, default settings": KillCase(False, False, (GAP.no_more_than(3), LED.no_more_than(3))),
    f"{BOTH}, default settings": KillCase(False, True, (GAP.no_more_than(4), LED)),
    f"{LEADER}, tight settings": KillCase(True, False, (GAP.no_more_than(1), LED.no_more_than(3))),
    f"{BOTH}, tight settings": KillCase(True, True, (GAP.no_more_than(1.5), LED)),
    "exactly-once: coordinator killed between commits": KillCase(False, False, (COMMIT_GAP,), True),
}

FIGURES = {name: case.figures for name, case in (LOAD_CASES | KILL_CASES).items()}
