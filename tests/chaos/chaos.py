"""`make chaos ROUNDS=n [FAULTS=a,b]`: three real nodes, faults, real clients, and a judge of what they saw.

The last line is JSON; docs/howto/chaos.md says what is in it. A run that fails leaves a directory with the
logs of the nodes, the history and the verdict, and prints its path; the exit code is 1 then. Linux only.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from havoc import checker, faults, ground, history, rounds
from havoc.loopback import Loopback
from havoc.nodes import ChaosFailed, Cluster, build_shim
from havoc.rounds import Round
from havoc.workload import RECORDS_S, Workload

TOPIC = "chaos"
REPLICAS = [[1, 2, 3], [2, 1, 3], [1, 3, 2], [2, 3, 1]]
"""Of each partition, the preferred leader first: while all is well node 3 leads nothing, a mere follower."""

NODES = (1, 2, 3)
SHOWN = 20


def main() -> int:
    options = _options()
    rounds.check_faults(options.faults)
    if not options.loopback and not ground.is_inside():
        reason = ground.why_not()
        if reason is None:
            return ground.enter()
        _say(f"no network namespaces here ({reason}): loopback, and a proxy of ours before each port")
    signal.signal(signal.SIGTERM, _leave)
    directory = Path(tempfile.mkdtemp(prefix="tierlog-chaos-", dir=options.directory))
    told = _run(options, directory)
    if told["passed"] and not options.keep:
        shutil.rmtree(directory)
    else:
        told["kept"] = str(directory)
        (directory / "verdict.json").write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told), flush=True)
    return 0 if told["passed"] else 1


def _run(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    inside = ground.is_inside()
    world: ground.Ground = ground.Namespaces(NODES) if inside else Loopback(NODES)
    # what is mounted outside of namespaces of ours would stay if this run was killed
    cluster = Cluster(directory, world, shim=build_shim(directory), disks=inside)
    recorder = history.Recorder(directory / "history.jsonl")
    problems: list[str] = []
    played: list[Round] = []
    workload: Workload | None = None
    try:
        _say(f"three nodes, {world.name}; seed {options.seed}; {directory}")
        cluster.start()
        _create_topic(cluster)
        workload = Workload(cluster.bootstrap, TOPIC, len(REPLICAS), recorder)
        workload.start()
        _play(options, faults.Stage(cluster, TOPIC), workload, played)
        _say("the end: consumers catch up, and all of it is read")
        workload.finish()
    except (ChaosFailed, KafkaException) as failure:
        problems.append(str(failure))
    finally:
        if workload is not None:
            workload.stop()
            problems += workload.failures
        cluster.close()
        world.close()
        recorder.close()
    verdict = checker.check(history.load(directory / "history.jsonl"), options.least)
    for anomaly in verdict.anomalies[:SHOWN]:
        _say(f"{anomaly.kind} (partition {anomaly.partition}): {anomaly.what}")
    return _told(options, world.name, faults.left_out(cluster), played, verdict, problems)


def _play(options: argparse.Namespace, stage: faults.Stage, workload: Workload, played: list[Round]) -> None:
    left_out = faults.left_out(stage.cluster)
    for name, reason in left_out.items():
        _say(f"left out: {name}: {reason}")
    possible = [name for name in options.faults if name not in left_out]
    if not possible:
        raise ChaosFailed("none of the faults is possible here")
    for number, fault in enumerate(rounds.chosen(possible, options.rounds, random.Random(options.seed)), 1):
        begins = f"round {number} of {options.rounds}"
        done = rounds.play(
            stage,
            workload,
            fault,
            baseline_s=options.baseline_seconds,
            fault_s=options.fault_seconds,
            offered=RECORDS_S,
            tell=lambda text, begins=begins: _say(f"{begins}: {text}"),  # type: ignore[misc]
        )
        played.append(done)
        _say(f"{begins}: {done}; {workload.acknowledged} acknowledged so far")


def _told(
    options: argparse.Namespace,
    network: str,
    left_out: dict[str, str],
    played: list[Round],
    verdict: checker.Verdict,
    problems: list[str],
) -> dict[str, Any]:
    """The last line. Of a fault that was played more than once, the worst."""
    problems = [*problems, *(f"{done.fault}: {problem}" for done in played for problem in done.problems)]
    return {
        "rounds": len(played),
        "acknowledged": verdict.acknowledged,
        "read": verdict.read,
        **verdict.counts(),
        "unavailable_s": _worst(played, "unavailable_s"),
        "after_heal_s": _worst(played, "after_heal_s"),
        "regained_s": _worst(played, "regained_s"),
        "regained_95_within_30_s": bool(played)
        and all(one.regained_s is not None and one.regained_s <= rounds.REGAIN_WITHIN_S for one in played),
        "network": network,
        "seed": options.seed,
        "left_out": left_out,
        "invalid": list(verdict.invalid),
        "problems": problems,
        "passed": verdict.passed and not problems and len(played) == options.rounds,
        "kept": None,
    }


def _worst(played: list[Round], name: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for done in played:
        value, known = getattr(done, name), found.get(done.fault, 0.0)
        found[done.fault] = None if value is None or known is None else round(max(value, known), 1)
    return found


def _create_topic(cluster: Cluster) -> None:
    topic = NewTopic(TOPIC, len(REPLICAS), replica_assignment=REPLICAS, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([topic])[TOPIC].result(30)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", type=_names, default="", help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults")
    parser.add_argument("--baseline-seconds", type=float, default=5.0)
    parser.add_argument("--fault-seconds", type=float, default=10.0)
    parser.add_argument("--least", type=int, default=checker.LEAST_ACKNOWLEDGED, help="acknowledged records")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even if they are allowed")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that passed too")
    parser.add_argument("--directory", type=Path, help="where to make it")
    options = parser.parse_args()
    options.faults = options.faults or list(faults.FAULTS)
    return options


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
