"""`make history MINUTES=n`: compares the responses that clients got with the final content of every disk.

Three brokers and three controllers serve plain, compacted and tiered topics to real clients. Meanwhile
processes are killed and stopped, disks wiped, partitions reassigned and settings changed. Then all nodes
are stopped, and each replica's files and the object store are read directly. The last line is JSON;
docs/howto/history.md describes it. Linux only.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from havoc import audit, checker, history, keyed, network, replicas, rounds
from havoc.anomalies import Anomaly
from havoc.changes import WHOLE_WITHIN_S, Changes
from havoc.keyed import KeyedWorkload
from havoc.loopback import Loopback
from havoc.nodes import ChaosFailed, Cluster, until
from havoc.replicas import Copy
from havoc.stage import APART, Fault, Stage
from havoc.stage import FAULTS as POSSIBLE_FAULTS
from havoc.workload import Workload

from tierlog.spark.history.bucket import DirectoryBucket
from tierlog.tiering.object_store import ObjectNotFound

PLAIN, COMPACTED, TIERED = "history-plain", "history-compacted", "history-tiered"
BOTH = "history-compacted-and-tiered"
KINDS = {PLAIN: "plain", COMPACTED: "compacted", TIERED: "tiered", BOTH: "compacted and tiered"}
PARTITIONS = {PLAIN: 3, COMPACTED: 2, TIERED: 2, BOTH: 2}
CONFIGS: dict[str, dict[str, str]] = {
    PLAIN: {"segment.bytes": "262144"},
    COMPACTED: {
        "cleanup.policy": "compact",
        "segment.bytes": "65536",
        "segment.ms": "5000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "3000",
        "file.delete.delay.ms": "1000",
    },
    TIERED: {
        "remote.storage.enable": "true",
        "segment.bytes": "65536",
        "local.retention.ms": "1000",
        "file.delete.delay.ms": "1000",
    },
    BOTH: {
        "cleanup.policy": "compact",
        "remote.storage.enable": "true",
        "segment.bytes": "65536",
        "segment.ms": "5000",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "3000",
        "local.retention.ms": "1000",
        "file.delete.delay.ms": "1000",
    },
}
BROKERS, VOTERS = (1, 2, 3), (4, 5, 6)
FAULTS = (
    "kill-leader", "kill-follower", "kill-controller", "kill-both", "kill-all", "kill-voters",
    "stop-leader", "stop-follower", "stop-controller", "stop-all", "wipe",
)  # fmt: skip
"""Faults of processes and disks. The command line accepts other faults of chaos, too."""
LOSES_A_DISK = "wipe"
"""Every partition must be fully replicated before this fault."""
STOP_WITHIN_S = 60.0
SHOWN = 20


def main() -> int:
    options = _options()
    rounds.check_faults(options.faults, (APART,))
    unprepared = [name for name in options.faults if POSSIBLE_FAULTS[name].needs]
    if unprepared:
        raise ChaosFailed(f"only `make chaos` prepares the nodes for {', '.join(unprepared)}")
    if not options.loopback and not network.is_inside():
        reason = network.why_not()
        if reason is None:
            return network.enter()
        _say(f"no network namespaces here ({reason}): loopback, and a proxy of ours before each port")
    signal.signal(signal.SIGTERM, _leave)
    directory = Path(tempfile.mkdtemp(prefix="tierlog-history-", dir=options.directory))
    result = Run(options, directory).play()
    if result["passed"] and not options.keep:
        shutil.rmtree(directory)
    else:
        result["kept"] = str(directory)
        (directory / "verdict.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result), flush=True)
    return 0 if result["passed"] else 1


class Run:
    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self._options, self._directory = options, directory
        self._rng = random.Random(options.seed)
        self._problems: list[str] = []
        self._faults: list[str] = []
        places = (*BROKERS, *VOTERS)
        nodes_network: network.Network = (
            network.Namespaces(places) if network.is_inside() else Loopback(places)
        )
        self._cluster = Cluster(
            directory,
            nodes_network,
            brokers=BROKERS,
            voters=VOTERS,
            shim=None,
            disks=False,
            **{"remote.log.manager.task.interval.ms": 500, "log.cleaner.backoff.ms": 1000},
        )
        self._stage = Stage(self._cluster, PLAIN, TIERED)
        self._recorder = history.Recorder(directory / "history.jsonl")
        self._keyed_recorder = history.Recorder(directory / "keyed.jsonl")
        self._cluster_id = ""
        self._stands_still = False

    def play(self) -> dict[str, Any]:
        _say(f"{self._cluster.network.name}; seed {self._options.seed}; {self._directory}")
        changes: Changes | None = None
        workload: Workload | None = None
        try:
            self._cluster.start()
            self._create_topics()
            self._cluster_id = self._cluster.ask("/v1/cluster")["cluster_id"]
            changes = Changes(self._cluster, KINDS, random.Random(self._options.seed))
            workload = Workload(self._cluster.client(), _places(PLAIN, TIERED), self._recorder)
            keyed_workload = KeyedWorkload(
                self._cluster.client(), _places(COMPACTED, BOTH), self._keyed_recorder
            )
            workload.start()
            keyed_workload.start()
            changes.start()
            self._hurt(workload, changes)
            self._end(workload, keyed_workload, changes)
        except (ChaosFailed, KafkaException) as failure:
            self._problems.append(str(failure))
        finally:
            if changes is not None:
                changes.end()
            if workload is not None:
                workload.stop()
                self._problems += workload.failures
            self._cluster.close()
            self._cluster.network.close()
            self._recorder.close()
            self._keyed_recorder.close()
        return self._result(dict(changes.done) if changes else {})

    # -- while it runs --

    def _hurt(self, workload: Workload, changes: Changes) -> None:
        end = time.monotonic() + 60 * self._options.minutes
        while time.monotonic() < end:
            for fault in rounds.chosen(self._options.faults, len(self._options.faults), self._rng):
                if time.monotonic() >= end and self._faults:
                    return
                self._play_fault(fault, workload, changes)
                _say(f"{workload.acknowledged} acknowledged, {dict(changes.done)}")

    def _play_fault(self, fault: Fault, workload: Workload, changes: Changes) -> None:
        def play() -> None:
            rounds.hurt(self._stage, workload, fault, self._options.fault_seconds, _say)

        self._faults.append(fault.name)
        if fault.name == LOSES_A_DISK:
            with changes.held():
                play()
                until(self._is_in_sync, "all replicas are in sync", WHOLE_WITHIN_S)
        else:
            until(self._is_in_sync, "all replicas are in sync", WHOLE_WITHIN_S)
            play()

    def _is_in_sync(self) -> bool:
        rows = [row for topic in KINDS for row in self._cluster.partitions(topic)]
        return all(set(row["in_sync"]) == set(row["replicas"]) for row in rows)

    def _is_listed(self) -> bool:
        """Whether all is uploaded, and the bucket's manifests list it. A follower deletes its local segment
        once the quorum lists it, a moment before the bucket does, and the copies here are read without the
        quorum."""
        bucket = DirectoryBucket(self._directory / "objects")
        for topic in (TIERED, BOTH):
            for tier in self._cluster.tiers(topic):
                end = replicas.remote_end(bucket, self._cluster_id, topic, tier["partition"])
                if tier["pending_segments"] or end != (tier["remote_end_offset"] or 0):
                    return False
        return True

    def _end(self, workload: Workload, keyed_workload: KeyedWorkload, changes: Changes) -> None:
        _say("the end: all replicas in place, consumers catch up, nodes stop")
        changes.end()
        with changes.held():
            keyed_workload.finish()
            workload.finish()
            self._problems += keyed_workload.failures
            until(self._is_in_sync, "all replicas are in sync", WHOLE_WITHIN_S)
            until(self._is_listed, "the bucket lists all uploaded segments", WHOLE_WITHIN_S)
        self._stands_still = True
        for nodes in (self._cluster.brokers, self._cluster.voters):
            for node in nodes.values():
                node.signal(signal.SIGTERM)
            until(
                lambda nodes=nodes: not any(node.running for node in nodes.values()),  # type: ignore[misc]
                "the nodes stop when they are asked to",
                STOP_WITHIN_S,
            )

    def _create_topics(self) -> None:
        admin = AdminClient({**self._cluster.client(), "log_level": 0})
        topics = [
            NewTopic(name, count, len(BROKERS), config={**CONFIGS[name], "min.insync.replicas": "2"})
            for name, count in PARTITIONS.items()
        ]
        for future in admin.create_topics(topics).values():
            future.result(60)

    # -- after it --

    def _result(self, changes: dict[str, int]) -> dict[str, Any]:
        """The result of the run. Compares the disks only if every sent record had time to arrive."""
        events = list(history.load(self._directory / "history.jsonl"))
        keyed_events = list(history.load(self._directory / "keyed.jsonl"))
        verdict = checker.check(events, self._options.min_acknowledged)
        # Records that a run did not read, because it ended early, look lost.
        anomalies = list(verdict.anomalies) if self._stands_still else []
        invalid = list(verdict.invalid)
        compared = _Compared()
        try:
            if not self._stands_still:
                raise ChaosFailed("the run ended early: its copies are not compared")
            compared = self._compared(events, keyed_events)
        except (ChaosFailed, OSError, ObjectNotFound, ValueError) as failure:
            self._problems.append(f"nothing was compared: {failure}")
        anomalies += compared.anomalies
        invalid += compared.invalid
        for anomaly in anomalies[:SHOWN]:
            _say(f"{anomaly.kind} (partition {anomaly.partition}): {anomaly.what}")
        keyed_acknowledged = sum(isinstance(event, history.Acked) for event in keyed_events)
        if keyed_acknowledged < self._options.min_acknowledged // 10:
            invalid.append(f"{keyed_acknowledged} records with keys were acknowledged: too few")
        if not compared.remote:
            invalid.append("nothing reached the object store")
        counts = checker.Verdict(0, 0, 0, tuple(anomalies), ()).counts()
        return {
            "minutes": self._options.minutes,
            "faults": self._faults,
            "changes": changes,
            "acknowledged": verdict.acknowledged,
            "acknowledged_with_keys": keyed_acknowledged,
            "read": verdict.read,
            "batches_compared": compared.batches,
            "remote": compared.remote,
            "removed_remotely": compared.removed,
            **counts,
            "network": self._cluster.network.name,
            "seed": self._options.seed,
            "invalid": sorted(set(invalid)),
            "problems": self._problems,
            "passed": not anomalies and not invalid and not self._problems and bool(self._faults),
            "kept": None,
        }

    def _compared(
        self, events: Sequence[history.AnyEvent], keyed_events: Sequence[history.AnyEvent]
    ) -> "_Compared":
        """The verdict over all copies."""
        copies = {place: self._copies(*place) for topic in KINDS for place in _places(topic)}
        _say(f"{sum(map(len, copies.values()))} copies are read and compared")
        each = [copy for copies_of_one in copies.values() for copy in copies_of_one]
        compared = _Compared(
            anomalies=[*_compare(copies, keyed_events)],
            remote=sum(copy.end for copy in each if copy.name == replicas.REMOTE),
            batches=sum(len(copy.batches) for copy in each),
            removed=sum(map(_gaps, (copies[place][0] for place in _places(BOTH)))),
        )
        for logs in _by_replica(copies):
            found = audit.against_history(events, logs, self._options.min_acknowledged)
            compared.anomalies += found.anomalies
            compared.invalid += found.invalid
        return compared

    def _copies(self, topic: str, partition: int) -> list[Copy]:
        """The copy in the object store, if the partition is tiered, then one for each node. A missing one is
        a problem."""
        found = []
        if topic in (TIERED, BOTH):
            bucket = DirectoryBucket(self._directory / "objects")
            found.append(replicas.read_remote(bucket, self._cluster_id, topic, partition))
        for node in self._cluster.brokers.values():
            directory = node.data / "logs" / f"{topic}-{partition}"
            if directory.is_dir():
                found.append(replicas.read_directory(str(node), directory))
            else:
                self._problems.append(f"{node} has no replica of {topic}-{partition}")
        return found


@dataclass(slots=True)
class _Compared:
    anomalies: list[Anomaly] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    remote: int = 0  # the ends of the logs in the object store, together
    batches: int = 0
    removed: int = 0  # offsets whose records compaction has removed from the object store


Copies = dict[tuple[str, int], list[Copy]]


def _compare(copies: Copies, keyed_events: Sequence[history.AnyEvent]) -> Iterator[Anomaly]:
    for number, place in enumerate(_places(PLAIN, TIERED)):
        yield from audit.compare(number, copies[place])
    compacted = {number: _joined(copies[place]) for number, place in enumerate(_places(COMPACTED, BOTH))}
    yield from audit.compare_compacted(
        keyed_events, compacted, key_of=keyed.key_of, is_tombstone=keyed.is_tombstone
    )


def _gaps(copy: Copy) -> int:
    return copy.end - copy.start - sum(len(batch.records) for batch in copy.batches)


def _joined(copies: list[Copy]) -> list[Copy]:
    """The log as each broker serves it, in both tiers."""
    first, *others = copies
    return [audit.joined(first, local) for local in others] if first.name == replicas.REMOTE else copies


def _by_replica(copies: Copies) -> Iterator[dict[int, Copy]]:
    """The log of each partition as each broker has it."""
    places = _places(PLAIN, TIERED)
    for node in (f"node {broker}" for broker in BROKERS):
        logs = {}
        for number, place in enumerate(places):
            local = next((copy for copy in copies[place] if copy.name == node), None)
            if local is not None:
                first = copies[place][0]
                logs[number] = audit.joined(first, local) if first.name == replicas.REMOTE else local
        yield logs


def _places(*topics: str) -> list[tuple[str, int]]:
    return [(topic, number) for topic in topics for number in range(PARTITIONS[topic])]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="of faults; the last one is played to its end"
    )
    parser.add_argument("--faults", type=_names, default=list(FAULTS), help=f"default: {','.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=1, help="of the order of faults and changes")
    parser.add_argument("--fault-seconds", type=float, default=6.0)
    parser.add_argument(
        "--min-acknowledged", type=int, default=checker.MIN_ACKNOWLEDGED, help="minimum for the run to count"
    )
    parser.add_argument("--loopback", action="store_true", help="no namespaces, even if they are allowed")
    parser.add_argument("--keep", action="store_true", help="keep the directory of a run that passed too")
    parser.add_argument("--directory", type=Path, help="where to make it")
    options = parser.parse_args()
    options.faults = options.faults or list(FAULTS)
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
        _say(f"the history could not be made: {failure}")
        sys.exit(2)
