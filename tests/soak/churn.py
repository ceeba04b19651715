"""Repeats one kind of operation thousands of times against one broker, and reports the objects that it keeps.

    .venv/bin/python tests/soak/churn.py [--kinds groups,members] [--times 2000] [--traced]

The broker reports its reachable objects (inspected.py), so neither garbage nor memory that an allocator
keeps counts. Each kind runs three times as often as requested: the first third is warm-up, and the growth
of the other two is reported per operation. Linux only.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from crc32c import crc32c
from samples import read_process
from wire_client import Client, message

from tierlog.protocol.api import BY_NAME, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

INSPECTED = Path(__file__).with_name("inspected.py")
SETTINGS = {
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 200,
    "log.cleaner.backoff.ms": 200,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 1 << 20,
    "producer.id.expiration.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "remote.log.manager.task.interval.ms": 500,
    "remote.log.delete.grace.ms": 500,
    "remote.cache.bytes": 16 << 20,
    "remote.cache.memory.bytes": 32 << 20,
    "max.incremental.fetch.session.cache.slots": 10,
}
QUIET_S = 3.0
"""Longer than each delay in the settings above."""

KEPT_LEAST = 0.2
"""Objects of a type per operation. Fewer are noise."""

BUFFERS = ("mmap.mmap", "builtins.memoryview", "builtins.managedbuffer")
"""Types of receive buffers. A listener keeps a bounded number of spare ones, which grows as long as frames
arrive in pieces, as they do on a busy machine: fewer than one per operation are noise."""


LOG_TAIL = 3000


class ChurnFailed(Exception):
    """The broker ended during the churn."""


class Inspected:
    """The broker process under churn."""

    def __init__(self, directory: Path, *, traced: bool = False) -> None:
        self.log_path = directory / "broker.log"
        words = ["dev", "--json", "--port", "0", "--admin-port", "0"]
        words += ["--data-dir", str(directory / "data"), "--object-store", f"file://{directory / 'objects'}"]
        for name, value in SETTINGS.items():
            words += ["--set", f"{name}={value}"]
        environment = {**os.environ, **({"CHURN_TRACED": "1"} if traced else {})}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(INSPECTED), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        self.bootstrap: str = json.loads(self._line())["bootstrap"]

    def look(self) -> dict[str, Any]:
        if self._process.stdin is None:
            raise ChurnFailed("the broker has no pipe")
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return {**json.loads(self._line()), **read_process(self._process.pid)}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> bytes:
        line = self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise ChurnFailed(f"the broker ended:\n{self.log_path.read_text()[-LOG_TAIL:]}")
        return line


class Clients:
    """The operations: one method per kind, called with the number of the operation."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.wire = Client(bootstrap)
        self.topic = self.wire.create()
        self.compacted = self.wire.create(
            cleanup_policy="compact",
            segment_bytes="65536",
            segment_ms="1000",
            min_cleanable_dirty_ratio="0.1",
        )
        self.short = self.wire.create(segment_bytes="65536", retention_bytes="131072")
        self.tiered = self.wire.create(
            remote_storage_enable="true",
            segment_bytes="65536",
            local_retention_bytes="65536",
            retention_bytes="262144",
        )
        self.wire.coordinator("g")

    def ask(self, api: str, version: int, values: dict[str, Any]) -> Any:
        return self.wire.send(api, version, message(api, values))

    # -- groups --

    def _offsets(self, group: str) -> dict[str, Any]:
        place = {
            "partition_index": 0,
            "committed_offset": 1,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        return {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": self.topic, "partitions": [place]}],
        }

    def group_commits(self, n: int) -> None:
        """A new group id commits, and the group is deleted."""
        self.ask("OffsetCommit", 8, self._offsets(f"group-{n}"))
        self.ask("DeleteGroups", 2, {"groups_names": [f"group-{n}"]})

    def group_questions(self, n: int) -> None:
        group = f"asked-{n}"
        self.ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})
        self.ask("DescribeGroups", 4, {"groups": [group]})
        self.ask("OffsetFetch", 8, {"groups": [{"group_id": group, "topics": None}]})
        self.ask("Heartbeat", 4, {"group_id": group, "generation_id": 1, "member_id": "nobody"})

    def _join(
        self, group: str, member: str = "", instance: str | None = None, client: Client | None = None
    ) -> Any:
        values = {
            "group_id": group,
            "session_timeout_ms": 600_000,
            "rebalance_timeout_ms": 1000,
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"}],
        }
        return (client or self.wire).send("JoinGroup", 7, message("JoinGroup", values))

    def _member(self, group: str, instance: str | None = None) -> tuple[str, int]:
        joined = self._join(group, instance=instance)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = self._join(group, joined.member_id)
        values = {
            "group_id": group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": joined.member_id, "assignment": b"x"}],
        }
        self.ask("SyncGroup", 5, values)
        return joined.member_id, joined.generation_id

    def _leave(self, group: str, member: str, instance: str | None = None) -> None:
        self.ask(
            "LeaveGroup",
            4,
            {"group_id": group, "members": [{"member_id": member, "group_instance_id": instance}]},
        )

    def members(self, n: int) -> None:
        """Members of one group, one after the other, which leave."""
        member, _ = self._member("members")
        self._leave("members", member)

    def static_members(self, n: int) -> None:
        self._member("static", f"instance-{n}")
        self._leave("static", "", f"instance-{n}")

    def group_members(self, n: int) -> None:
        """A new group, whose member leaves, and which is deleted."""
        member, _ = self._member(f"short-{n}")
        self._leave(f"short-{n}", member)
        self.ask("DeleteGroups", 2, {"groups_names": [f"short-{n}"]})

    def pending_members(self, n: int) -> None:
        """Joins that never return with the member id from the response."""
        self._join_briefly(f"pending-{n}")

    def _join_briefly(self, group: str) -> None:
        values = {
            "group_id": group,
            "session_timeout_ms": 200,
            "rebalance_timeout_ms": 1000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"x"}],
        }
        self.ask("JoinGroup", 7, values)

    # -- topics --

    def topics(self, n: int) -> None:
        name = self.wire.create(partitions=2)
        self.wire.produce(name, batch())
        self.wire.fetch(name, 0)
        self.ask("DeleteTopics", 5, {"topic_names": [name], "timeout_ms": 10000})

    def tiered_topics(self, n: int) -> None:
        name = self.wire.create(remote_storage_enable="true")
        self.wire.produce(name, batch())
        self.ask("DeleteTopics", 5, {"topic_names": [name], "timeout_ms": 10000})

    def unknown_topics(self, n: int) -> None:
        name = f"unknown-{n}"
        self.ask("Metadata", 9, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
        self.wire.produce(name, batch())
        self.wire.fetch(name, 0)

    def topic_configs(self, n: int) -> None:
        config = {"name": "retention.ms", "config_operation": 0, "value": str(10_000_000 + n)}
        resource = {"resource_type": 2, "resource_name": self.topic, "configs": [config]}
        self.ask("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})

    # -- producers --

    def producers(self, n: int) -> None:
        producer = self.wire.producer_id()
        self.wire.produce(self.topic, batch(producer_id=producer))

    def client_ids(self, n: int) -> None:
        request = message("Metadata", {"topics": []})
        self.wire._socket.sendall(encode_request(BY_NAME["Metadata"], 9, 1, f"client-{n}", request))
        self.wire.receive("Metadata", 9)

    def quotas(self, n: int) -> None:
        """Set a quota for a client id, use it, and remove it."""
        entity = [{"entity_type": "client-id", "entity_name": f"client-{n}"}]
        entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]}
        self.ask("AlterClientQuotas", 1, {"entries": [entry]})
        self.client_ids(n)
        entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]}
        self.ask("AlterClientQuotas", 1, {"entries": [entry]})

    # -- connections --

    def connections(self, n: int) -> None:
        client = Client(self.bootstrap)
        values = {"client_software_name": f"name-{n}", "client_software_version": f"{n}"}
        client.send("ApiVersions", 3, message("ApiVersions", values))
        client.close()

    def dropped_connections(self, n: int) -> None:
        client = Client(self.bootstrap)
        client._socket.sendall(b"\0\0\0\x20abc")
        client.close()

    def malformed_frames(self, n: int) -> None:
        client = Client(self.bootstrap)
        client._socket.sendall(b"\0\0\0\x0a\0\x03\0\x09\0\0\0\0\xff\xff\xff\xff")
        with suppress(OSError):
            client.receive("Metadata", 9)
        client.close()

    def waiting_fetches(self, n: int) -> None:
        """Fetches whose connection closes while they wait."""
        client = Client(self.bootstrap)
        end = self.wire.fetch(self.topic, 0, max_bytes=1).responses[0].partitions[0].high_watermark
        requested = {"partition": 0, "fetch_offset": end, "partition_max_bytes": 1 << 20}
        values = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "topics": [{"topic": self.topic, "partitions": [requested]}],
        }
        client.post("Fetch", 12, message("Fetch", values))
        client.close()

    def fetch_sessions(self, n: int) -> None:
        """Fetch sessions whose connection closes."""
        client = Client(self.bootstrap)
        requested = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
        values = {
            "max_wait_ms": 0,
            "session_id": 0,
            "session_epoch": 0,
            "topics": [{"topic": self.topic, "partitions": [requested]}],
        }
        client.send("Fetch", 12, message("Fetch", values))
        client.close()

    # -- logs --

    def segments(self, n: int) -> None:
        self.wire.produce(self.short, batch(size=20_000))

    def compacted_segments(self, n: int) -> None:
        self.wire.produce(self.compacted, batch(size=20_000, key=b"key-%d" % (n % 50)))

    def tiered_segments(self, n: int) -> None:
        self.wire.produce(self.tiered, batch(size=20_000))

    def tiered_reads(self, n: int) -> None:
        answer = self.ask(
            "ListOffsets",
            7,
            {
                "replica_id": -1,
                "topics": [{"name": self.tiered, "partitions": [{"partition_index": 0, "timestamp": -2}]}],
            },
        )
        self.wire.produce(self.tiered, batch(size=20_000))
        self.wire.fetch(self.tiered, answer.topics[0].partitions[0].offset)

    def reads(self, n: int) -> None:
        self.wire.fetch(self.topic, 0)


def batch(size: int = 100, key: bytes | None = b"k", producer_id: int = -1) -> bytes:
    records = [NewRecord(time.time_ns() // 1_000_000, key, os.urandom(size))]
    encoded = encode_batch(records)
    if producer_id >= 0:
        changed = bytearray(encoded)
        struct.pack_into(">qhi", changed, 43, producer_id, 0, 0)
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
        encoded = bytes(changed)
    return encoded


KINDS = [
    name
    for name, value in vars(Clients).items()
    if callable(value) and not name.startswith("_") and name != "ask"
]


def play(broker: Inspected, clients: Clients, kinds: Sequence[str], times: int) -> dict[str, Any]:
    """Run each kind `times` times in three thirds. Returns the growth per operation."""
    looks = []
    for third in range(3):
        for kind in kinds:
            for number in range(third * times, (third + 1) * times):
                getattr(clients, kind)(number)
        time.sleep(QUIET_S)
        looks.append(broker.look())
    first, middle, last = looks

    def per_turn(name: str, before: dict[str, Any], after: dict[str, Any]) -> float:
        return round((after[name] - before[name]) / times, 2)

    grown = {
        name: round(
            min(count - middle["objects"].get(name, 0), middle["objects"].get(name, 0) - had) / times, 2
        )
        for name, count in last["objects"].items()
        for had in [first["objects"].get(name, 0)]
    }
    return {
        "blocks": [per_turn("blocks", first, middle), per_turn("blocks", middle, last)],
        "malloc": [per_turn("malloc_used", first, middle), per_turn("malloc_used", middle, last)],
        "rss_kib": [round(each["rss_mib"] * 1024) for each in looks],
        "descriptors": [each["descriptors"] for each in looks],
        "kept": {
            name: count for name, count in grown.items() if count >= (1 if name in BUFFERS else KEPT_LEAST)
        },
        "traced": last.get("traced", []),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"default: {','.join(KINDS)}")
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--traced", action="store_true", help="with tracemalloc: where what is kept was made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierlog-churn-") as directory:
        broker = Inspected(Path(directory), traced=options.traced)
        try:
            clients = Clients(broker.bootstrap)
            for kind in options.kinds.split(","):
                found = play(broker, clients, [kind], options.times)
                traced = found.pop("traced")
                print(kind, json.dumps(found), *traced, sep="\n    ", flush=True)
        finally:
            broker.close()


if __name__ == "__main__":
    main()
