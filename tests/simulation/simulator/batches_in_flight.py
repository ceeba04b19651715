"""Idempotent producers that keep up to five batches in flight on a connection, as librdkafka.

A producer sends the next batches before the first is acknowledged, until it sees a failure. Sometimes it
learns of a new leader in between, and sends the next batch there while earlier ones are on their way to the
former one. Once it has all responses, it sends the batches that failed again, in order. A batch must never be
refused as a gap after an earlier one failed, and none may overtake an earlier one, which `check_order`
notices in the end. Runs in which retention deletes have none of these producers: the retry of a
deleted batch counts as new (guarantee 10).
"""

import asyncio
import random
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass

from simulator.broker import SimBroker
from simulator.network import Broken, Network, Refused
from simulator.witness import Violation
from simulator.workload import PAUSED_S, PRODUCE, REQUEST_TIMEOUT_S, Client, new_producer_id
from tierlog.broker.handlers.context import Connection
from tierlog.protocol.api import APIS, decode_response, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tierlog.records.writer import NewRecord, encode_batch

SHARE = 0.3
"""Share of the cluster runs without deletions in which such producers write."""

IN_FLIGHT_MAX = 5
FIRST_NUMBER = 500
"""The values of the producer of partition n begin with this number plus n."""

GAP_S = 0.002
"""Largest time between two batches: responses take as long, so that several are in flight."""

REFRESH_SHARE = 0.2
"""Share of the batches before which a producer looks for a newer leader."""

RETRY_S = (0.0, 0.004)
"""Short, so that a broker begins to lead, or to accept batches, while some are in flight."""

PAUSE_S = 0.15
VERSION = 11
_GAPS = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


def has_batches_in_flight(seed: int) -> bool:
    return random.Random(f"in flight {seed}").random() < SHARE


@dataclass(slots=True, eq=False)
class Sent:
    value: bytes
    batch: bytes
    is_acknowledged: bool = False


class Pipeline:
    """A connection to one process of a broker, which serves requests in the order in which they were sent."""

    def __init__(self, network: Network, name: str, broker: SimBroker, number: int) -> None:
        self._network, self._name, self._broker, self._number = network, name, broker, number
        self._connection = Connection(number, "client", 1)
        self._process = broker.process
        self._sent = self._served = 0
        self.is_open = True

    def begin(self, frame: bytes) -> "asyncio.Future[bytes]":
        number, self._sent = self._sent, self._sent + 1
        return self._network.call(
            self._name, self._broker.name, self._number, lambda: self._serve(number, frame)
        )

    async def _serve(self, number: int, frame: bytes) -> bytes:
        if not self.is_open or number != self._served or self._broker.process is not self._process:
            raise Broken("the stream has ended before")
        self._served += 1
        return await self._broker.serve(frame, self._connection)


class Producer:
    """The values of one producer id in one partition. `done`: completed operations, by kind."""

    def __init__(
        self,
        client: Client,
        network: Network,
        brokers: dict[int, SimBroker],
        partition: int,
        done: Counter[str],
    ) -> None:
        self._client, self._network, self._brokers = client, network, brokers
        self._partition, self._done = partition, done
        self._pipelines: dict[int, Pipeline] = {}
        self._in_flight = deque[Sent]()
        self._count = 0
        self._refreshes = random.Random(client.rng.getrandbits(48))

    async def play(self) -> None:
        """Runs until cancelled."""
        client, rng = self._client, self._client.rng
        producer_id = await new_producer_id(client)
        while True:
            if self._partition in client.history.paused:
                await asyncio.sleep(PAUSED_S)
                continue
            for _ in range(rng.randint(1, IN_FLIGHT_MAX)):
                if len(self._in_flight) < IN_FLIGHT_MAX:
                    self._in_flight.append(self._next(producer_id))
            if await self._send([one for one in self._in_flight if not one.is_acknowledged]):
                await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
            else:
                await client.lost(self._partition, RETRY_S)
            while self._in_flight and self._in_flight[0].is_acknowledged:
                self._in_flight.popleft()

    def _next(self, producer_id: int) -> Sent:
        value = b"%d-%d" % (FIRST_NUMBER + self._partition, self._count)
        records = [NewRecord(1_750_000_000_000 + self._count, None, value, ())]
        batch = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=self._count)
        self._count += 1
        return Sent(value, bytes(batch))

    async def _send(self, batches: list[Sent]) -> bool:
        """Send batches until one is known to have failed. Returns whether all are acknowledged."""
        pipelines, answers = list[Pipeline](), list[asyncio.Future[bytes]]()
        for sent in batches:
            if self._refreshes.random() < REFRESH_SHARE:
                self._client.look_for_newer_leader(self._partition)
            pipelines.append(self._pipeline())
            answers.append(pipelines[-1].begin(self._frame(sent)))
            await asyncio.sleep(self._client.rng.uniform(0, GAP_S))
            if not all(map(_has_succeeded, _arrived(answers))):
                break
        self._done["batches in flight to two leaders"] += len(set(pipelines)) > 1
        failed = 0
        for pipeline, sent, answer in zip(pipelines, batches, answers, strict=False):
            failed += not await self._take(pipeline, sent, answer, is_first=not failed)
        self._done["batches sent again after one in flight failed"] += max(failed - 1, 0)
        return not failed

    def _pipeline(self) -> Pipeline:
        leader = self._client.leader_to_call(self._partition)
        known = self._pipelines.get(leader)
        if known is None or not known.is_open:
            broker, number = self._brokers[leader], self._client.rng.getrandbits(48)
            known = self._pipelines[leader] = Pipeline(self._network, self._client.name, broker, number)
        return known

    def _frame(self, sent: Sent) -> bytes:
        data = PartitionProduceData(index=self._partition, records=bytearray(sent.batch))
        topic = TopicProduceData(name=self._client.topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        return encode_request(APIS[PRODUCE], VERSION, 7, "simulated", request)

    async def _take(
        self, pipeline: Pipeline, sent: Sent, answer: "asyncio.Future[bytes]", *, is_first: bool
    ) -> bool:
        """Whether the batch is acknowledged. `is_first`: no earlier batch has failed."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                result = _decoded(await answer)
        except (TimeoutError, Broken, Refused):
            pipeline.is_open = False
            return False
        error = ErrorCode(result.error_code)
        client = self._client
        if error is ErrorCode.NONE:
            sent.is_acknowledged = True
            client.history.note(self._partition, [(result.base_offset, sent.value)], "acknowledged")
            return True
        client.history.errors[error.name] += 1
        if error in _GAPS and not is_first:
            raise Violation(f"partition {self._partition}: {sent.value!r} is a gap after a batch that failed")
        if error in _GAPS and client.last_call_reached_leader(self._partition):
            raise Violation(f"partition {self._partition} forgot what it acknowledged to {client.name}")
        return False


def _arrived(answers: "list[asyncio.Future[bytes]]") -> "list[asyncio.Future[bytes]]":
    """The answers that a client has: a broker sends none before the ones of earlier requests."""
    found = []
    for answer in answers:
        if not answer.done():
            break
        found.append(answer)
    return found


def _has_succeeded(answer: "asyncio.Future[bytes]") -> bool:
    with suppress(Broken, Refused):
        return bool(_decoded(answer.result()).error_code == ErrorCode.NONE)
    return False


def _decoded(frame: bytes) -> PartitionProduceResponse:
    response = decode_response(APIS[PRODUCE], VERSION, bytearray(frame), 4, len(frame))[1]
    return response.responses[0].partition_responses[0]  # type: ignore[no-any-return]
