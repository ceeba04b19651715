"""Clients of a simulated cluster, and the history of their responses, which is checked at the end.

Producers are idempotent with acks=all, and send one batch after the other, retrying until its outcome is
known. Every value is unique and has the producer's number and a sequence, so a lost, duplicated or
reordered record is noticed. Consumers record what they read by offset.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from simulator.broker import SimBroker
from simulator.clock import START_MS
from simulator.dialler import SimCaller, SimDialler
from simulator.network import Network
from simulator.witness import Violation
from tierlog.base.network import Unreachable
from tierlog.base.types import NO_TIMESTAMP
from tierlog.metadata.image import TopicImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.batch import check_batch, correct_header, iter_batches, read_header
from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

TOPIC = "orders"
PRODUCE, FETCH, INIT, LIST_OFFSETS = (
    BY_NAME[name].key for name in ("Produce", "Fetch", "InitProducerId", "ListOffsets")
)
EARLIEST = -2
REQUEST_TIMEOUT_S = 2.0
RETRY_S = (0.02, 0.2)
PAUSED_S = 0.01
MAX_RECORDS = 1 << 20
HONEST = 0.7
"""Share of the batches whose header has the true timestamp of the records."""

FAR_MS = 30 * 86_400_000
"""Longer than retention.ms, and than the error of any clock."""

BEHIND = 0.25
"""Share of the producers whose headers are all FAR_MS in the past: then whole segments have nothing else."""


@dataclass(slots=True)
class History:
    """Acknowledged and consumed values, by partition and offset."""

    acknowledged: dict[int, dict[int, bytes]] = field(default_factory=dict)
    seen: dict[int, dict[int, bytes]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    """Completed operations, by kind."""
    bits_flip: bool = False
    """Whether batches that a consumer gets may be damaged."""
    paused: set[int] = field(default_factory=set)
    """Partitions whose producers have been stopped for a moment."""
    log_start: Callable[[int], int] | None = None
    """The committed log start offset of a partition, if retention deletes within the run."""
    check_durable: Callable[[int, int, str], None] = lambda partition, offset, kind: None
    """Called with the last of some acknowledged or consumed records: partition, offset, kind."""

    def note(self, partition: int, records: list[tuple[int, bytes]], kind: str) -> None:
        """Add (offset, value) pairs of acknowledged or consumed records."""
        known = (self.acknowledged if kind == "acknowledged" else self.seen).setdefault(partition, {})
        for offset, value in records:
            if known.setdefault(offset, value) != value:
                raise Violation(
                    f"{kind}: offset {offset} of partition {partition} holds {known[offset]!r} and {value!r}"
                )
        if records:
            self.check_durable(partition, records[-1][0], kind)

    def start_offset(self, partition: int) -> int:
        """The committed log start offset."""
        return 0 if self.log_start is None else self.log_start(partition)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


class Client:
    """Client that looks leaders up in the image of any node and keeps a connection to each."""

    def __init__(
        self,
        name: str,
        network: Network,
        brokers: dict[int, SimBroker],
        history: History,
        rng: random.Random,
        topic: str = TOPIC,
    ) -> None:
        self.name, self.history, self.rng, self.topic = name, history, rng, topic
        self.nodes = sorted(brokers)
        self._brokers = brokers
        self._dialler = SimDialler(network, name, brokers, rng)
        self._callers: dict[int, SimCaller] = {}
        self._leaders: dict[int, int] = {}
        self._leader_used: dict[int, int] = {}
        self._epochs: dict[int, int] = {}  # the newest known leader epochs

    async def call_leader(self, partition: int, api_key: int, version: int, request: object) -> object | None:
        """The response, or None after a pause. The leader is then looked up again."""
        try:
            return await self.ask(self.leader_to_call(partition), api_key, version, request)
        except Unreachable:
            await self.lost(partition)
            return None

    def leader_to_call(self, partition: int) -> int:
        """The leader as the client knows it, which gets the next request."""
        self._leader_used[partition] = leader = self.leader_of(partition)
        return leader

    async def ask(self, broker: int, api_key: int, version: int, request: object) -> object:
        caller = self._callers.get(broker)
        if caller is None or not caller.is_open:
            caller = await self._dialler.connect_to(self._brokers[broker].name)
            self._callers[broker] = caller
        return await caller.call(api_key, version, request, REQUEST_TIMEOUT_S)

    def whole(self, records: bytes, offset: int, epoch: int) -> bytes:
        """The fetched batches before the first damaged one. `epoch`: leader epoch of the fetch, -1 for any.

        Brokers do not check the batches of a response (ADR 0008), so in runs with bit rot the client fetches
        again from the damage. In other runs all batches must be intact.
        """
        if not self.history.bits_flip:
            return records
        at, least, last_epoch = 0, 0, -1
        while at < len(records):
            try:
                header = check_batch(records, at)
            except RecordsError:
                break
            if not least <= header.base_offset <= offset < header.next_offset:
                break
            if header.leader_epoch < last_epoch or 0 <= epoch < header.leader_epoch:
                break
            last_epoch, at = header.leader_epoch, at + header.size
            least = offset = header.next_offset
        return records[:at]

    async def lost(self, partition: int, retry_s: tuple[float, float] = RETRY_S) -> None:
        self._leaders.pop(partition, None)
        await asyncio.sleep(self.rng.uniform(*retry_s))

    def last_call_reached_leader(self, partition: int) -> bool:
        """Whether the last request went to a leader of at least the newest known epoch.

        Real clients do not go back to an older leader (KIP-320), whose errors about later records mean
        nothing.
        """
        replicas = self._brokers[self._leader_used[partition]].replicas
        replica = None if replicas is None else replicas.get(self.topic, partition)
        return (
            replica is not None
            and replica.is_leader
            and replica.leader_epoch >= self._epochs.get(partition, -1)
        )

    def leader_epoch(self, partition: int) -> int:
        """The newest known leader epoch, which a node or the leader itself may not know yet."""
        if partition not in self._leaders:
            self._look_up(partition)
        return self._epochs.get(partition, -1)

    def topic_id(self) -> UUID | None:
        """From the image of some node: it may be that of an earlier topic of the name."""
        topic = self.topic_image()
        return None if topic is None else topic.topic_id

    def topic_image(self) -> TopicImage | None:
        """From the image of some node, which may be old."""
        known = [b.metadata.image for b in self._brokers.values() if b.metadata is not None]
        return self.rng.choice(known).topic(self.topic) if known else None

    def leader_of(self, partition: int) -> int:
        """The leader as the client knows it."""
        return self._leaders.get(partition) or self._look_up(partition)

    def look_for_newer_leader(self, partition: int) -> None:
        """Learn of a newer leader, as clients do in the background. Older ones are ignored (KIP-320)."""
        topic = self.topic_image()
        known = None if topic is None else topic.partitions[partition]
        if known is not None and known.leader >= 0 and known.leader_epoch > self._epochs.get(partition, -1):
            self._leaders[partition], self._epochs[partition] = known.leader, known.leader_epoch

    def _look_up(self, partition: int) -> int:
        """The leader in the image of some node, which may be old."""
        topic = self.topic_image()
        known = None if topic is None else topic.partitions[partition]
        if known is None or known.leader < 0:
            return self.rng.choice(self.nodes)
        self._leaders[partition] = known.leader
        self._epochs[partition] = max(self._epochs.get(partition, -1), known.leader_epoch)
        return known.leader


class Timestamps:
    """The timestamps of a producer's batches.

    Retention must use the records' timestamps, which are never old enough to be deleted within a run.
    """

    def __init__(self, draws: random.Random, *, is_behind: bool = False) -> None:
        self._draws, self._is_behind = draws, is_behind

    @classmethod
    def of_producer(cls, seed: int, number: int) -> Self:
        is_behind = random.Random(f"behind {seed} {number}").random() < BEHIND
        return cls(random.Random(f"stamps {seed} {number}"), is_behind=is_behind)

    def next(self) -> tuple[int | None, int]:
        """The false maximum timestamp of a header, or None if it is true, and the time of the records."""
        now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000)
        if self._is_behind:
            return now_ms - FAR_MS, now_ms
        if self._draws.random() < HONEST:
            return None, now_ms
        if self._draws.random() < 0.5:
            return 0, NO_TIMESTAMP  # as librdkafka writes records without a time
        return self._draws.choice((0, now_ms - FAR_MS, now_ms + FAR_MS)), now_ms


async def produce(client: Client, number: int, partition: int, pause_s: float, stamps: Timestamps) -> None:
    """Runs until cancelled."""
    producer_id = await new_producer_id(client)
    sequence = sent = 0
    while True:
        if partition in client.history.paused:
            await asyncio.sleep(PAUSED_S)
            continue
        count = client.rng.randint(1, 4)
        values = [b"%d-%d" % (number, sent + n) for n in range(count)]
        said, time = stamps.next()
        records = [NewRecord(time, None, value, ()) for value in values]
        batch = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        _set_header_timestamp(batch, time if said is None else said)
        offset = await send(client, partition, bytes(batch))
        client.history.note(partition, list(enumerate(values, offset)), "acknowledged")
        sequence, sent = sequence + count, sent + count
        await asyncio.sleep(client.rng.expovariate(1 / pause_s))


def _set_header_timestamp(batch: bytearray, said: int) -> None:
    header = read_header(batch)
    if said != header.max_timestamp:
        correct_header(batch, 0, header._replace(max_timestamp=said))


async def new_producer_id(client: Client) -> int:
    while True:
        broker = client.rng.choice(client.nodes)
        try:
            answer = await client.ask(broker, INIT, 4, InitProducerIdRequest(transactional_id=None))
        except Unreachable:
            answer = None
        if answer is not None and answer.error_code == ErrorCode.NONE:  # type: ignore[attr-defined]
            return int(answer.producer_id)  # type: ignore[attr-defined]
        await asyncio.sleep(client.rng.uniform(*RETRY_S))


async def send(client: Client, partition: int, batch: bytes) -> int:
    """Send a batch until it is acknowledged. Returns its offset."""
    while True:
        data = PartitionProduceData(index=partition, records=bytearray(batch))
        request = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name=client.topic, partition_data=[data])]
        )
        answer = await client.call_leader(partition, PRODUCE, 11, request)
        if answer is None:
            continue
        result = answer.responses[0].partition_responses[0]  # type: ignore[attr-defined]
        if result.error_code == ErrorCode.NONE:
            return int(result.base_offset)
        client.history.errors[ErrorCode(result.error_code).name] += 1
        forgotten = result.error_code in (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        )
        if forgotten and client.last_call_reached_leader(partition):
            raise Violation(f"partition {partition} forgot what it acknowledged to {client.name}")
        await client.lost(partition)


async def consume(client: Client, partition: int, pause_s: float) -> None:
    """Read to the end of the partition, sometimes from the start again. Runs until cancelled."""
    offset = 0
    while True:
        epoch = client.leader_epoch(partition)
        wanted = FetchPartition(
            partition=partition,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            partition_max_bytes=1 << 16,
        )
        request = FetchRequest(
            max_wait_ms=100, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])]
        )
        answer = await client.call_leader(partition, FETCH, 12, request)
        if answer is None:
            continue
        result = answer.responses[0].partitions[0]  # type: ignore[attr-defined]
        if result.error_code != ErrorCode.NONE:
            client.history.errors[ErrorCode(result.error_code).name] += 1
            if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and offset > 0 <= epoch:
                _check_not_lost(client, partition, offset, epoch)
            if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and client.history.log_start is not None:
                offset = max(offset, await earliest(client, partition) or 0)
            await client.lost(partition)
            continue
        records = client.whole(bytes(result.records or b""), offset, epoch)
        _check_epoch(partition, epoch, records)
        shown = [record for record in values_of(records) if record[0] >= offset]
        client.history.note(partition, shown, "seen")
        if shown:
            offset = shown[-1][0] + 1
            if offset > result.high_watermark:
                raise Violation(f"partition {partition}: {offset - 1} was read above {result.high_watermark}")
            if offset < result.high_watermark:
                continue  # a remote read returns one segment at a time
        if client.rng.random() < 0.05:
            offset = 0
        await asyncio.sleep(client.rng.expovariate(1 / pause_s))


async def earliest(client: Client, partition: int) -> int | None:
    """The log start offset in a leader's response; None if there is none."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=EARLIEST)
    topic = ListOffsetsTopic(name=client.topic, partitions=[wanted])
    answer = await client.call_leader(partition, LIST_OFFSETS, 7, ListOffsetsRequest(topics=[topic]))
    if answer is None:
        return None
    result = answer.topics[0].partitions[0]  # type: ignore[attr-defined]
    if result.error_code != ErrorCode.NONE:
        await client.lost(partition)
        return None
    committed = 0 if client.history.log_start is None else client.history.log_start(partition)
    if result.offset > committed:
        raise Violation(f"partition {partition} begins at {committed}, but ListOffsets says {result.offset}")
    client.history.done["log starts listed"] += 1
    return int(result.offset)


def _check_not_lost(client: Client, partition: int, offset: int, epoch: int) -> None:
    """Every leader of the client's epoch or later has the records, even if it does not know yet that they are
    committed. Followers and leaders of earlier epochs may lack them."""
    for broker in client._brokers.values():
        replica = None if broker.replicas is None else broker.replicas.get(TOPIC, partition)
        leads = replica is not None and replica.is_leader and replica.leader_epoch >= epoch
        if leads and replica.log_end_offset < offset:
            raise Violation(
                f"partition {partition}: a leader ends at {replica.log_end_offset}, and {offset} was seen"
            )


def _check_epoch(partition: int, said: int, records: bytes) -> None:
    """Check the batches' epochs against the leader epoch of the fetch (KIP-320); -1 if it had none."""
    for _, batch in iter_batches(records):
        if 0 <= said < batch.leader_epoch:
            raise Violation(
                f"partition {partition}: a fetch of epoch {said} was answered in epoch {batch.leader_epoch}"
            )


def values_of(records: bytes) -> list[tuple[int, bytes]]:
    """(offset, value) of each record in complete batches."""
    return [
        (record.offset, record.value or b"")
        for at, _ in iter_batches(records)
        for record in iter_records(records, at, max_bytes=MAX_RECORDS)
    ]


def check_order(partition: int, values: list[bytes]) -> None:
    """Raises Violation unless the values of each producer are all there, once and in order."""
    last: dict[bytes, int] = {}
    for value in values:
        producer, _, number = value.partition(b"-")
        if int(number) != last.get(producer, -1) + 1:
            raise Violation(f"partition {partition}: {value!r} follows {last.get(producer)}")
        last[producer] = int(number)
