"""Throttling of clients over their quota: responses carry throttle times, and connections are muted. Without
quotas nothing is measured."""

import asyncio
import itertools
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, PRODUCE, Broker, produce, until
from immutables import Map
from manual_clock import ManualClock

from tierlog.broker.handlers.context import RawReply, RequestContext
from tierlog.broker.net.listener import Refusal
from tierlog.broker.net.throttling import Throttling
from tierlog.broker.quotas.limits import OVERLONG_NAME
from tierlog.broker.quotas.quotas import ClientQuotas
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import QuotaEntity, QuotaKey
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.codec import encode
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.fetch import FetchRequest, FetchResponse, ReplicaState
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

FETCH = 1
EVERYONE: QuotaEntity = (("client-id", None),)
NONE = ClusterImage(cluster_id="c")
REQUEST = QuotaKey.REQUEST_PERCENTAGE
BEAT = HeartbeatRequest(group_id="g")


class Throttled:
    """A listener with quotas. The clock stands still. The timer advances by one second at each call, so every
    callback seems to use one second of the event loop."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock = ManualClock()
        self.quotas = ClientQuotas()
        self.image = NONE
        self.sizes: list[int] = []
        broker.handlers[FETCH] = self.fetch

    async def start(self, **bounds: float) -> "Throttled":
        await self.broker.start()
        seconds = itertools.count()
        self.throttling = Throttling(
            self.broker.listener, self.quotas, self.clock, lambda: float(next(seconds))
        )
        self.set(**bounds)
        return self

    def set(self, entity: QuotaEntity = EVERYONE, **bounds: float) -> None:
        """Replace all quotas by those of one entity. Without bounds there are no quotas."""
        image = ClusterImage(cluster_id="c", quotas=Map({entity: Map(bounds)} if bounds else {}))
        self.throttling.follow(self.image, image)
        self.image = image

    @property
    def muted(self) -> int:
        return self.broker.listener.muted

    def fetch(self, context: RequestContext, request: FetchRequest) -> FetchResponse:
        """A response of `max_bytes` bytes, or an empty one over the quota; `session_id` is its size."""
        self.sizes.append(request.max_bytes)
        throttle_ms = context.meter.charge_fetch(request.max_bytes) if context.meter else 0
        return FetchResponse(throttle_time_ms=throttle_ms, session_id=0 if throttle_ms else request.max_bytes)


async def test_producer_over_its_quota_is_throttled_and_muted_and_others_are_not(broker: Broker) -> None:
    throttled = await Throttled(broker).start(producer_byte_rate=100)
    client, other = await broker.connect(), await broker.connect()
    assert (await client.ask(PRODUCE, 9, produce(b"x" * 1000))).throttle_time_ms == 0
    assert (await client.ask(PRODUCE, 9, produce(b"x" * 1000))).throttle_time_ms == 10_000
    assert len(broker.records) == 2  # the throttled records are appended, too
    client.send(PRODUCE, 9, produce(b"x"))
    for _ in range(20):
        await other.ask(METADATA, 9, MetadataRequest())
    assert (throttled.muted, len(broker.records)) == (1, 2)


async def test_producer_with_acks_0_over_its_quota_is_muted(broker: Broker) -> None:
    throttled = await Throttled(broker).start(producer_byte_rate=100)
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"x" * 2000, acks=0))
    await until(lambda: throttled.muted == 1)


@pytest.mark.parametrize("reply_as", ["future", "task"])
async def test_quotas_are_checked_when_a_pending_response_is_ready(broker: Broker, reply_as: str) -> None:
    throttled = await Throttled(broker).start(producer_byte_rate=100)
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def finish() -> Any:
        return await reply

    broker.on_produce = lambda *_: reply if reply_as == "future" else finish()
    client = await broker.connect()
    client.send(PRODUCE, 9, produce(b"x" * 2000))
    await until(lambda: any(channel.core.next_to_answer for channel in broker.listener._channels.values()))
    assert throttled.muted == 0
    reply.set_result(Broker().produce(None, produce(b"")))  # type: ignore[arg-type]
    assert (await client.receive(PRODUCE, 9))[1].throttle_time_ms == 10_000
    assert throttled.muted == 1


async def test_fetch_returns_at_most_a_burst_and_is_empty_over_the_quota(broker: Broker) -> None:
    throttled = await Throttled(broker).start(consumer_byte_rate=100)
    client = await broker.connect()
    response = await client.ask(FETCH, 12, FetchRequest(max_bytes=700))
    assert (response.throttle_time_ms, response.session_id) == (0, 700)
    other = await broker.connect()
    response = await other.ask(FETCH, 12, FetchRequest(max_bytes=5_000))
    assert (response.throttle_time_ms, response.session_id, throttled.muted) == (7_000, 0, 1)
    assert throttled.sizes == [700, 1000]


async def test_replicas_are_exempt_from_quotas_but_clients_that_pose_as_one_are_not(broker: Broker) -> None:
    sizes: list[int] = []

    def fetch(context: RequestContext, request: FetchRequest) -> FetchResponse:
        sizes.append(request.max_bytes)
        if request.replica_state.replica_epoch != 2:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no replica")
        return FetchResponse()

    throttled = Throttled(broker)
    broker.handlers[FETCH] = fetch
    await throttled.start(request_percentage=1, consumer_byte_rate=100)
    throttled.quotas.record(REQUEST, "ANONYMOUS", "test", 1000.0, throttled.clock.now)
    client = await broker.connect()
    from_replica = FetchRequest(max_bytes=5_000, replica_state=ReplicaState(replica_id=2, replica_epoch=2))
    response = await client.ask(FETCH, 17, from_replica)
    assert (response.throttle_time_ms, throttled.muted, sizes) == (0, 0, [5_000])
    assert throttled.quotas.throttled == {}
    client.send(FETCH, 17, FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=1)))
    await until(lambda: throttled.quotas.throttled == {REQUEST: 1})


async def test_fetch_over_the_request_quota_is_throttled_once(broker: Broker) -> None:
    throttled = await Throttled(broker).start(request_percentage=1, consumer_byte_rate=100)
    throttled.quotas.record(REQUEST, "ANONYMOUS", "test", 1000.0, throttled.clock.now)
    client = await broker.connect()
    response = await client.ask(FETCH, 12, FetchRequest(max_bytes=700))
    assert (response.throttle_time_ms, response.session_id) == (1_000, 0)
    assert throttled.quotas.throttled == {REQUEST: 1}


async def test_time_of_a_request_counts_against_the_quota_of_the_next(broker: Broker) -> None:
    throttled = await Throttled(broker).start(request_percentage=1)
    first, other = await broker.connect(), await broker.connect()
    assert (await first.ask(HEARTBEAT, 4, BEAT)).throttle_time_ms == 0
    await until(lambda: bool(throttled.quotas.report(REQUEST, throttled.clock.now)))
    assert (
        await other.ask(HEARTBEAT, 4, BEAT)
    ).throttle_time_ms == 1_000  # 1 s of work in the 10 s span is 10 %
    assert throttled.muted == 1


async def test_request_time_does_not_throttle_producers_with_acks_0(broker: Broker) -> None:
    throttled = await Throttled(broker).start(request_percentage=1)
    client = await broker.connect()
    for _ in range(3):
        client.send(PRODUCE, 9, produce(b"x", acks=0))
    await until(lambda: len(broker.records) == 3)
    assert throttled.muted == 0


@pytest.mark.parametrize("fails_in", ["handler", "future", "task"])
async def test_failed_request_over_the_request_quota_is_muted(broker: Broker, fails_in: str) -> None:
    throttled = await Throttled(broker).start(request_percentage=1)
    failure = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "no")
    loop = asyncio.get_running_loop()

    async def fail() -> Any:
        raise failure

    def handle(*_: Any) -> Any:
        if fails_in == "future":
            failed = loop.create_future()
            failed.set_exception(failure)
            return failed
        if fails_in == "task":
            return fail()
        raise failure

    broker.on_heartbeat = handle
    throttled.quotas.record(REQUEST, "ANONYMOUS", "test", 1000.0, throttled.clock.now)
    client = await broker.connect()
    assert (await client.ask(HEARTBEAT, 4, BEAT)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert throttled.muted == 1


@pytest.mark.parametrize("is_encoded", [False, True])
@pytest.mark.parametrize("bounds", [{"controller_mutation_rate": 1}, {REQUEST: 1e6}])
async def test_throttle_time_that_a_handler_sets_mutes_the_connection(
    broker: Broker, is_encoded: bool, bounds: dict[str, float]
) -> None:
    """The handlers of controller mutations check controller_mutation_rate themselves, and encode a large
    response in parts."""
    throttled = await Throttled(broker).start(**bounds)
    response = HeartbeatResponse(throttle_time_ms=5_000)
    broker.on_heartbeat = lambda *_: RawReply([encode(response, 4)]) if is_encoded else response
    client = await broker.connect()
    assert (await client.ask(HEARTBEAT, 4, BEAT)).throttle_time_ms == 5_000
    assert throttled.muted == 1


async def test_quotas_can_be_set_and_removed_while_clients_are_connected(broker: Broker) -> None:
    throttled = await Throttled(broker).start()
    client = await broker.connect()
    for size in (10**6, 10**6):
        assert (await client.ask(PRODUCE, 9, produce(b"x" * size))).throttle_time_ms == 0
    throttled.set(producer_byte_rate=10**5, request_percentage=1e6)
    assert broker.listener.stopwatch is not None
    assert (await client.ask(PRODUCE, 9, produce(b"x" * 10**6))).throttle_time_ms == 0
    throttled.set((("user", "ANONYMOUS"),), producer_byte_rate=1.0)
    assert (await client.ask(PRODUCE, 9, produce(b"x" * 10**6))).throttle_time_ms == 3_600_000
    client.send(PRODUCE, 9, produce(b"x"))
    assert throttled.muted == 1
    throttled.set()
    await client.receive(PRODUCE, 9)  # at once, not after the throttle time of an hour
    assert throttled.muted == 0
    assert (broker.listener.stopwatch, broker.listener.admission) == (None, None)
    other = await broker.connect()
    assert (await other.ask(PRODUCE, 9, produce(b"x" * 10**6))).throttle_time_ms == 0
    assert throttled.quotas.report(QuotaKey.PRODUCER_BYTE_RATE, throttled.clock.now) == []


async def test_change_of_another_quota_keeps_the_stopwatch(broker: Broker) -> None:
    throttled = await Throttled(broker).start(request_percentage=1e6)
    before = broker.listener.stopwatch
    assert before is not None
    throttled.set(request_percentage=1e6, producer_byte_rate=1.0)
    assert broker.listener.stopwatch is before  # a new one would have to be set on every connection


async def test_long_client_ids_use_little_memory(broker: Broker) -> None:
    throttled = await Throttled(broker).start(request_percentage=1e6)
    client = await broker.connect()
    client.writer.write(encode_request(APIS[HEARTBEAT], 4, 1, "x" * 300, BEAT))
    await client.receive(HEARTBEAT, 4)
    [channel] = broker.listener._channels.values()
    [row] = throttled.quotas.report(REQUEST, throttled.clock.now)
    assert (channel.connection.client_id, row.account.client_id) == (OVERLONG_NAME, OVERLONG_NAME)


async def test_connection_over_the_quota_stays_open_for_its_throttle_time(broker: Broker) -> None:
    throttled = await Throttled(broker).start()
    throttled.set((("ip", "127.0.0.1"),), connection_creation_rate=0.1)
    served = await broker.connect()
    await served.ask(METADATA, 9, MetadataRequest())
    refused = await broker.connect()
    refused.send(METADATA, 9, MetadataRequest())
    await until(lambda: broker.listener.refused[Refusal.QUOTA] == 1)
    assert broker.listener.connections == 1
    await broker.listener.close()
    assert await refused.expect_close() == b""
