"""A tiered topic whose brokers are killed at named steps (`killed_process`)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from cli_process import json_output
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_reader import read_from_start
from killed_process import KillSwitch
from scraping import metric
from waiting import until
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import delete_records, delete_topics, list_offsets
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import BrokerFailed, TierlogBroker

TOPIC = "events"
KEYS = 7
CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}
TIMEOUT_MS = 30_000
LATEST = -1  # as a timestamp of ListOffsets


def key(offset: int) -> bytes:
    return b"%d" % (offset % KEYS)


def value(offset: int) -> bytes:
    return b"value %06d " % offset * 10


class KilledLog:
    """Partition 0 of the topic. Each record is made from its offset."""

    def __init__(self, brokers: Sequence[TierlogBroker], switch: KillSwitch) -> None:
        self.brokers = brokers
        self.switch = switch
        self.start_offset = self.end_offset = 0
        self.kills = 0
        self._unacknowledged = 0  # records of the last batch, if its response did not arrive

    @property
    def running(self) -> list[TierlogBroker]:
        return [broker for broker in self.brokers if broker.running]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def create_topic(self, **settings: object) -> None:
        config = {**CONFIG, **{name.replace("_", "."): str(value) for name, value in settings.items()}}
        new = NewTopic(TOPIC, 1, len(self.brokers), config=config)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[TOPIC].result(60)
        self.start_offset = self.end_offset = 0

    # -- the leader --

    def leader(self) -> TierlogBroker:
        """The running broker that leads the partition. Raises BrokerFailed if no broker runs."""
        found: list[TierlogBroker] = []

        def has_one() -> bool:
            for broker in self.running:
                with suppress(OSError, CliError):
                    lines = AdminApi(broker.admin_url).get("/v1/tier/status")["partitions"]
                    found.extend([broker] if any(line["topic"] == TOPIC for line in lines) else [])
            return bool(found) or not self.running

        until(has_one, "no running broker leads the partition")
        if not found:
            raise BrokerFailed("no broker runs")
        return found[0]

    def produce(self, records: int, size: int = 0) -> None:
        """Append one batch. `size`: least size of each value. Raises OSError if the leader is killed."""
        self.find_end()
        offsets = range(self.end_offset, self.end_offset + records)
        new = [NewRecord(1_700_000_000_000 + at, key(at), value(at).ljust(size, b".")) for at in offsets]
        client = Client(self.leader().bootstrap)
        self._unacknowledged = records
        found = client.produce(TOPIC, encode_batch(new))
        while found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # not yet
            found = client.produce(TOPIC, encode_batch(new))
        client.close()
        assert (found.error_code, found.base_offset) == (ErrorCode.NONE, self.end_offset)
        self.end_offset, self._unacknowledged = self.end_offset + records, 0

    def find_end(self) -> None:
        """Whether a batch whose response did not arrive is in the log."""
        if self._unacknowledged:
            partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
            topic = list_offsets.ListOffsetsTopic(name=TOPIC, partitions=[partition])
            client = Client(self.leader().bootstrap)
            found = client.send(
                "ListOffsets", 7, list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic])
            )
            client.close()
            end_offset = found.topics[0].partitions[0].offset
            assert end_offset in (self.end_offset, self.end_offset + self._unacknowledged)
            self.end_offset, self._unacknowledged = end_offset, 0

    def flush(self) -> None:
        """Roll and upload. Raises CliError if the leader is killed."""
        AdminApi(self.leader().admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": TOPIC})

    def delete_records(self, before: int) -> None:
        """Raises OSError if the leader is killed."""
        self.start_offset = before
        partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=before)
        topic = delete_records.DeleteRecordsTopic(name=TOPIC, partitions=[partition])
        client = Client(self.leader().bootstrap)
        client.send(
            "DeleteRecords", 2, delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        )
        client.close()

    def delete_topic(self) -> None:
        """Raises OSError if the broker is killed."""
        client = Client(self.running[0].bootstrap)
        client.send(
            "DeleteTopics",
            5,
            delete_topics.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=TIMEOUT_MS),
        )
        client.close()

    # -- kills --

    def start(self) -> None:
        """Start what was killed."""
        for broker in self.brokers:
            broker.start()

    def kill_at(self, step: str, work: Callable[[], None] | None = None) -> TierlogBroker:
        """Start what was killed, and wait until a broker kills itself at the step, to which `work` leads.
        Without it, the step may be one of the start. Returns the broker, which is not started again."""
        if work is not None:
            self.start()
        self.switch.arm(step)
        with suppress(CliError, OSError, BrokerFailed):
            (work or self.start)()
        return self.await_kill(step)

    def await_kill(self, step: str) -> TierlogBroker:
        try:
            until(lambda: self.switch.has_killed, step)
        except AssertionError as missing:
            steps = "\n".join(self.switch.steps())
            raise AssertionError(f"no step {step!r}, but:\n{steps}") from missing
        until(lambda: len(self.running) < len(self.brokers), "a broker is killed")
        [killed] = [broker for broker in self.brokers if not broker.running]
        killed.kill()  # its end is awaited
        self.kills += 1
        return killed

    # -- what is left --

    def read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of all records; padding is removed."""
        found = read_from_start(self.bootstrap, TOPIC, first=self.start_offset)
        return [(one.offset(), one.key(), (one.value() or b"").rstrip(b".")) for one in found]

    def records(self, offsets: Iterable[int]) -> list[tuple[int, bytes, bytes]]:
        return [(offset, key(offset), value(offset)) for offset in offsets]

    def check(self) -> None:
        """Every record is there once, every object is right, and nothing else is in the bucket."""
        self.find_end()
        self.check_bucket()
        assert self.read() == self.records(range(self.start_offset, self.end_offset))

    def check_bucket(self) -> None:
        broker = self.running[0]
        queued = partial(metric, broker, "kafka_server_brokertopicmetrics_remotedeletelagsegments")
        until(lambda: not queued(), "segments that are queued for their deletion stay")
        json_output("tier", "verify", "--admin", broker.admin_url, code=0)
        [found] = json_output("tier", "gc", "--dry-run", "--admin", broker.admin_url)
        assert not found["unknown"], found
