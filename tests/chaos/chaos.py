"""`make chaos ROUNDS=n [FAULTS=a,b] [APART=1] [TIERED=1]`: real nodes, faults, clients, and a checker.

`ROUNDS=all` runs each fault of the shape once. The last line is JSON; docs/howto/chaos.md describes it. A
failed run keeps a directory with the logs of the nodes, the history and the verdict, prints its path, and
exits with 1. Linux only.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from havoc import builds, checker, doctor, halves, history, network, rounds, upgrades
from havoc.loopback import Loopback
from havoc.nodes import CLIENT, ChaosFailed, Cluster, build_shim, until
from havoc.rounds import Round
from havoc.stage import APART, TIERED, Stage, left_out, of_shape
from havoc.store import Store, program
from havoc.transactions import RECORDS_S, TransactionalWorkload
from havoc.workload import Workload

TOPIC, TIERED_TOPIC = "chaos", "chaos-tiered"
TRANSACTIONS, OUTPUT = "chaos-transactions", "chaos-loop"
REPLICAS = [[1, 2, 3], [2, 1, 3], [1, 3, 2], [2, 3, 1]]
"""Replicas of each partition, preferred leader first. In a healthy cluster node 3 leads nothing."""

TIERED_REPLICAS = [[1, 2, 3], [2, 3, 1]]
TRANSACTIONS_REPLICAS, OUTPUT_REPLICAS = [[1, 2, 3], [2, 3, 1]], [[1, 3, 2]]
TIERED_CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 16),  # some seconds of it
    "local.retention.ms": "1000",
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
}

CLOCKS = {
    "producer.id.expiration.ms": 1_800_000,
    "remote.log.delete.grace.ms": 10_000,
    "log.retention.check.interval.ms": 1_000,
    "log.message.timestamp.after.max.ms": (1 << 63) - 1,
    "log.retention.ms": -1,
}
"""Settings that wrong clocks would break at once if deadlines used the wall clock. Records are neither
refused nor deleted because of their timestamps."""

BROKERS, VOTERS = (1, 2, 3), (4, 5, 6)
"""Without separate voters, the brokers vote too."""

SHOWN = 20


def main() -> int:
    options = _options()
    rounds.check_faults(options.faults, options.shape)
    if TIERED in options.shape:
        program()  # there is no network to build it with, inside
    if options.other == builds.PREVIOUS:
        builds.make(options.other, Path())  # built once, with the files of this machine
    if not options.part and (options.minutes or options.security == halves.HALF):
        return halves.run(options.rounds, options.seed, security=options.security, minutes=options.minutes)
    if not options.loopback and not network.is_inside():
        reason = network.why_not()
        if reason is None:
            return network.enter()
        _say(f"no network namespaces here ({reason}): loopback, and a proxy of ours before each port")
    signal.signal(signal.SIGTERM, _leave)
    directory = Path(tempfile.mkdtemp(prefix="tierlog-chaos-", dir=options.directory))
    result = _run(options, directory)
    if result["passed"] and not options.keep:
        shutil.rmtree(directory)
    else:
        result["kept"] = str(directory)
        (directory / "verdict.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)
    return 0 if result["passed"] else 1


def _run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    recorder = history.Recorder(directory / "history.jsonl")
    problems: list[str] = []
    played: list[Round] = []
    workload: Workload | None = None
    transactions: TransactionalWorkload | None = None
    tiered = TIERED_REPLICAS if TIERED in options.shape else []
    places = [(TOPIC, number) for number in range(len(REPLICAS))]
    places += [(TIERED_TOPIC, number) for number in range(len(tiered))]
    written = range(len(places), len(places) + len(TRANSACTIONS_REPLICAS))
    places += [*((TRANSACTIONS, number) for number in range(len(written))), (OUTPUT, 0)]
    stage, remote = _stage(options, directory), None
    try:
        kind = stage.cluster.network.name
        shape = " ".join(sorted(options.shape)) or "three nodes"
        shape += ", SASL_SSL" if options.secure else ""
        _say(f"{shape}, {kind}; seed {options.seed}; {directory}")
        if stage.store is not None:
            stage.store.start()
            stage.store.make_bucket()
        stage.cluster.start()
        _create_topic(stage.cluster, TOPIC, REPLICAS, {})
        if tiered:
            _create_topic(stage.cluster, TIERED_TOPIC, tiered, TIERED_CONFIGS)
        _create_topic(stage.cluster, TRANSACTIONS, TRANSACTIONS_REPLICAS, {})
        _create_topic(stage.cluster, OUTPUT, OUTPUT_REPLICAS, {})
        if options.secure:
            _allow_clients(stage.cluster)
        client = stage.cluster.client(CLIENT)
        workload = Workload(client, places, recorder, others=len(written) + 1, records_s=RECORDS_S)
        transactions = TransactionalWorkload(client, places, written, written.stop, recorder, workload.now)
        workload.start()
        transactions.start()
        _play(options, stage, workload, played)
        _say("the end: consumers catch up, and all of it is read")
        transactions.finish()
        workload.finish()
        if tiered:
            remote = _remote(stage)
    except (ChaosFailed, KafkaException) as failure:
        problems.append(str(failure))
    finally:
        for clients in (transactions, workload):
            if clients is not None:
                clients.stop()
                problems += clients.failures
        stage.cluster.close()
        if stage.store is not None:
            stage.store.kill()
        stage.cluster.network.close()
        recorder.close()
    verdict = checker.check(history.load(directory / "history.jsonl"), options.min_acknowledged)
    for anomaly in verdict.anomalies[:SHOWN]:
        _say(f"{anomaly.kind} (partition {anomaly.partition}): {anomaly.what}")
    return {**_result(options, stage, played, verdict, problems), "remote": remote}


def _stage(options: argparse.Namespace, directory: Path) -> Stage:
    """Constructed, not started."""
    inside, voters = network.is_inside(), VOTERS if APART in options.shape else ()
    places = (*BROKERS, *voters, *((network.STORE,) if TIERED in options.shape else ()))
    nodes_network: network.Network = network.Namespaces(places) if inside else Loopback(places)
    store = Store(directory / "store", nodes_network) if TIERED in options.shape else None
    cluster = Cluster(
        directory,
        nodes_network,
        brokers=BROKERS,
        voters=voters,
        shim=build_shim(directory),
        # what is mounted outside of namespaces of ours would stay if this run was killed
        disks=inside,
        secure=options.secure,
        environment=store.environment if store else {},
        **CLOCKS,
        **({"object.store.url": store.url, "remote.log.manager.task.interval.ms": 500} if store else {}),
    )
    found = None
    if {upgrades.UPGRADE, upgrades.CRASH_UPGRADE} & set(options.faults):
        found = builds.make(options.other, directory)
        for node in cluster.nodes.values():
            node.build = found.older
    return Stage(cluster, TOPIC, TIERED_TOPIC if store else "", store, found)


def _remote(stage: Stage) -> int:
    """Number of records that are only in the object store. Raises ChaosFailed if a broker keeps a complete
    partition."""

    def kept() -> list[str]:
        return [
            f"{TIERED_TOPIC}-{number} on {node}"
            for node in stage.cluster.brokers.values()
            for number in range(len(TIERED_REPLICAS))
            if node.first_segment(TIERED_TOPIC, number) <= 0
        ]

    until(lambda: not kept(), lambda: f"local segments go: {kept()}", rounds.TIERED_WITHIN_S)
    return sum(tier["local_log_start_offset"] for tier in stage.tiers())


def _play(options: argparse.Namespace, stage: Stage, workload: Workload, played: list[Round]) -> None:
    impossible = left_out(stage, options.shape)
    for name, reason in impossible.items():
        _say(f"left out: {name}: {reason}")
    possible = [name for name in options.faults if name not in impossible]
    if not possible:
        raise ChaosFailed("none of the faults is possible here")
    ends = time.monotonic() + 60 * (options.minutes or 0)
    if options.minutes:  # more than fit
        options.rounds = 2 + int(60 * options.minutes / (options.baseline_seconds + options.fault_seconds))
    elif options.rounds is None:
        options.rounds = len(possible)
    for number, fault in enumerate(rounds.chosen(possible, options.rounds, random.Random(options.seed)), 1):
        if options.half and halves.is_secure(number, options.seed) is not options.secure:
            continue
        if options.minutes and played and time.monotonic() > ends:
            break
        options.expected += 1
        begins = f"round {number}" if options.minutes else f"round {number} of {options.rounds}"
        done = rounds.play(
            stage,
            workload,
            fault,
            baseline_s=options.baseline_seconds,
            fault_s=options.fault_seconds,
            offered=RECORDS_S,
            tell=lambda text, begins=begins: _say(f"{begins}: {text}"),  # type: ignore[misc]
            asks_doctor=options.doctor or options.doctor_table is not None,
        )
        played.append(done)
        if options.doctor_table and done.found:
            doctor.note(options.doctor_table, done.fault, done.found)
        _say(f"{begins}: {done}; {workload.acknowledged} acknowledged so far")


def _result(
    options: argparse.Namespace,
    stage: Stage,
    played: list[Round],
    verdict: checker.Verdict,
    problems: list[str],
) -> dict[str, Any]:
    """The last line of the output. A fault that ran more than once shows its worst round."""
    problems = [*problems, *(f"{done.fault}: {problem}" for done in played for problem in done.problems)]
    return {
        "rounds": len(played),
        "acknowledged": verdict.acknowledged,
        "read": verdict.read,
        "transactions": verdict.committed,
        **verdict.counts(),
        "unavailable_s": _worst(played, "unavailable_s"),
        "after_heal_s": _worst(played, "after_heal_s"),
        "regained_s": _worst(played, "regained_s"),
        "regained_95_within_30_s": bool(played)
        and all(one.regained_s is not None and one.regained_s <= rounds.REGAIN_WITHIN_S for one in played),
        "shape": sorted(options.shape),
        "secure_rounds": len(played) if options.secure else 0,
        "network": stage.cluster.network.name,
        "seed": options.seed,
        "left_out": left_out(stage, options.shape),
        "doctor": {done.fault: str(done.found) for done in played if done.found},
        "invalid": list(verdict.invalid),
        "problems": problems,
        "passed": verdict.passed and not problems and len(played) == options.expected > 0,
        "kept": None,
    }


def _worst(played: list[Round], name: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for done in played:
        value, known = getattr(done, name), found.get(done.fault, 0.0)
        found[done.fault] = None if value is None or known is None else round(max(value, known), 1)
    return found


def _create_topic(cluster: Cluster, name: str, replicas: list[list[int]], configs: dict[str, str]) -> None:
    configs = {**configs, "min.insync.replicas": "2"}
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=configs)
    admin = AdminClient({**cluster.client(), "log_level": 0})
    admin.create_topics([topic])[name].result(60)


def _allow_clients(cluster: Cluster) -> None:
    """Let the clients of a secure cluster use the topics of the run, all groups and transactional ids."""
    patterns = [
        (ResourceType.TOPIC, TOPIC, ResourcePatternType.PREFIXED),
        (ResourceType.GROUP, "*", ResourcePatternType.LITERAL),
        (ResourceType.TRANSACTIONAL_ID, "*", ResourcePatternType.LITERAL),
    ]
    allowed = f"User:{CLIENT}", "*", AclOperation.ALL, AclPermissionType.ALLOW
    admin = AdminClient({**cluster.client(), "log_level": 0})
    for created in admin.create_acls([AclBinding(*pattern, *allowed) for pattern in patterns]).values():
        created.result(60)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--rounds", type=number_of_rounds, default=3, help="a number, or all: each fault once"
    )
    parser.add_argument("--faults", type=_names, default="", help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults")
    parser.add_argument("--baseline-seconds", type=float, default=5.0)
    parser.add_argument("--fault-seconds", type=float, default=10.0)
    parser.add_argument(
        "--min-acknowledged", type=int, default=checker.MIN_ACKNOWLEDGED, help="minimum for the run to count"
    )
    parser.add_argument("--apart", action="store_true", help="three brokers, and three voters beside them")
    parser.add_argument("--tiered", action="store_true", help="a tiered topic too, and a real S3 server")
    parser.add_argument(
        "--security",
        choices=halves.SECURITY,
        default=halves.HALF,
        help="rounds with SASL_SSL, users and ACLs; default: half of them, in a cluster of their own",
    )
    parser.add_argument("--half", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, help="rounds for this long, in place of a number of them")
    parser.add_argument(
        "--other", choices=builds.KINDS, default=builds.NEXT, help="build that upgrades go to, or come from"
    )
    parser.add_argument(
        "--doctor",
        action="store_true",
        help=f"`tierlog doctor` must name each fault within {doctor.WITHIN_S:g} s",
    )
    parser.add_argument(
        "--doctor-table",
        type=lambda name: Path(name).resolve(),
        help="--doctor, and write a table: fault, found, time",
    )
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even if they are allowed")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that passed too")
    parser.add_argument("--directory", type=Path, help="where to make it")
    options = parser.parse_args()
    options.shape = {name for name in (APART, TIERED) if getattr(options, name)}
    options.secure, options.expected = options.security == halves.ALL, 0
    options.faults = options.faults or of_shape(options.shape)
    return options


def number_of_rounds(text: str) -> int | None:
    return None if text == "all" else int(text)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ChaosFailed, subprocess.CalledProcessError) as failure:
        _say(f"chaos could not be played: {failure}")
        sys.exit(2)
