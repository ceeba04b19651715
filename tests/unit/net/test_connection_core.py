"""The connection core without sockets: bytes in, requests out, responses in, bytes out."""

import asyncio
from typing import Any

import pytest

from tierlog.broker.handlers.context import WHOLE_FRAME, Connection, Pending
from tierlog.broker.net.core.bounds import FRAMES_PER_TURN, Bounds
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.core.memory_pool import MemoryPool
from tierlog.broker.net.core.protocol import (
    HALT_TRANSITIONS,
    RECEIVING,
    ConnectionCore,
    Event,
    Request,
    State,
)
from tierlog.broker.net.core.receive import Buffers
from tierlog.protocol.api import BY_NAME, encode_request
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest
from tierlog.protocol.messages.heartbeat import HeartbeatRequest
from tierlog.protocol.messages.list_offsets import ListOffsetsRequest
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.protocol.primitives import MalformedFrame

DATA = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(1000))])
MESSAGES: dict[str, tuple[int, Any]] = {
    "Produce": (9, ProduceRequest(acks=-1, topic_data=[DATA])),
    "Heartbeat": (4, HeartbeatRequest(group_id="g")),
    "ListOffsets": (7, ListOffsetsRequest()),
    "DeleteTopics": (5, DeleteTopicsRequest()),
}


def frames(*names: str) -> bytes:
    """Requests with correlation ids 0, 1, 2, …"""
    return b"".join(
        encode_request(BY_NAME[name], MESSAGES[name][0], number, "c", MESSAGES[name][1])
        for number, name in enumerate(names)
    )


class Harness:
    """A core whose requests are noted as they start."""

    def __init__(self, limit: int = 1 << 20, **bounds: Any) -> None:
        self.pool = MemoryPool(limit)
        self.granted: list[None] = []
        self.buffers = Buffers(self.pool)
        self.core = self.connect(**bounds)
        self.started: list[Request] = []
        self.terms: dict[str, Any] | None = None
        """Terms of the Pending with which each request waits; None: the test waits or responds."""

    def connect(self, **bounds: Any) -> ConnectionCore:
        connection = Connection(1, "h", 1)
        return ConnectionCore(
            connection, self.buffers, Bounds(**bounds), lambda: self.granted.append(None), 0.0
        )

    def receive(self, data: bytes, now: float = 0.0) -> list[str]:
        """The APIs of the requests that start."""
        at = 0
        for buffer in self.core.buffers_to_fill():
            count = min(len(buffer), len(data) - at)
            buffer[:count] = data[at : at + count]
            at += count
        assert at == len(data)
        self.core.received(at, now)
        return self.take()

    def take(self) -> list[str]:
        names = []
        while (request := self.core.next_request()) is not None:
            self.started.append(request)
            if self.terms is not None:
                self.wait(-1, **self.terms)
            names.append(name_of(request))
        return names

    def resume(self) -> list[str]:
        return self.take() if self.core.resume() else []

    def respond(self, number: int, parts: list[Any] | None) -> None:
        self.core.respond(self.started[number], parts)

    def wait(self, number: int, **terms: Any) -> None:
        self.core.wait(self.started[number], Pending(None, **terms))  # type: ignore[arg-type]

    @property
    def sent(self) -> list[Any]:
        return list(self.core.out.parts)


def name_of(request: Request) -> str:
    return next(api.name for api in BY_NAME.values() if api.key == request.context.api)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_table_has_every_event_and_each_reason_that_begins_can_end_or_ends_the_connection() -> None:
    assert set(HALT_TRANSITIONS) == set(Event)
    for_good = {
        HALT_TRANSITIONS[event][0] for event in (Event.CLOSE_REQUESTED, Event.CLOSE_DUE, Event.CLOSED)
    }
    begins, ends = ({pair[place] for pair in HALT_TRANSITIONS.values()} - {0} for place in (0, 1))
    assert begins - for_good == ends


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (Event.MUTED, Event.UNMUTED),
        (Event.MEMORY_WANTED, Event.MEMORY_GRANTED),
        (Event.TURN_USED_UP, Event.TURN_STARTED),
        (Event.LATER_BLOCKED, Event.LATER_UNBLOCKED),
        (Event.REQUEST_DELAYED, Event.DELAYED_STARTED),
        (Event.CHANGE_STARTED, Event.CHANGE_DONE),
    ],
)
def test_reason_halts_until_it_ends(harness: Harness, begins: Event, ends: Event) -> None:
    core = harness.core
    core.on(begins)
    assert (core.state, core.receives) == (State.HALTED, False)
    core.on(Event.MUTED)
    core.on(ends)
    assert core.state is (State.OPEN if ends is Event.UNMUTED else State.HALTED)
    core.on(Event.UNMUTED)
    assert core.state is State.OPEN and core.state in RECEIVING


@pytest.mark.parametrize("size", [1, 3, 4, 7, 50, 1100, 1 << 20])
def test_requests_start_in_order_however_the_bytes_arrive(harness: Harness, size: int) -> None:
    names = ["Produce", "Heartbeat", "Produce", "DeleteTopics"]
    stream = frames(*names)
    found = [name for at in range(0, len(stream), size) for name in harness.receive(stream[at : at + size])]
    assert found == names
    assert [request.context.correlation_id for request in harness.started] == [0, 1, 2, 3]
    assert (harness.pool.used, harness.pool.held) == (0, 0)


def test_responses_leave_in_the_order_of_the_requests(harness: Harness) -> None:
    harness.receive(frames("Heartbeat", "Heartbeat", "Heartbeat"))
    harness.wait(0)
    harness.wait(1)
    harness.respond(2, [b"third"])
    harness.respond(1, [b"second"])
    assert harness.sent == [] and harness.core.out.bytes == len(b"thirdsecond")
    harness.respond(0, [b"first"])
    assert harness.sent == [b"first", b"second", b"third"]
    harness.core.out.sent(len(b"firstsec"))
    assert [bytes(part) for part in harness.sent] == [b"ond", b"third"]


def test_closing_response_ends_the_connection_after_earlier_ones(harness: Harness) -> None:
    harness.receive(frames("Heartbeat", "Heartbeat"))
    harness.wait(0)
    harness.respond(1, None)
    assert harness.core.state is State.ENDING and not harness.core.is_ready_to_close
    assert harness.receive(frames("Heartbeat")) == []
    harness.respond(0, [b"first"])
    assert harness.sent == [b"first"] and not harness.core.is_ready_to_close
    harness.core.out.sent(len(b"first"))
    assert harness.core.is_ready_to_close


def test_question_waits_for_the_appends_before_it(harness: Harness) -> None:
    assert harness.receive(frames("Produce")) == ["Produce"]
    harness.wait(0)
    assert harness.receive(frames("ListOffsets", "Heartbeat")) == []
    assert harness.core.state is State.HALTED and harness.pool.held > 0
    harness.respond(0, [b"appended"])
    assert [harness.resume(), harness.resume()] == [["ListOffsets"], ["Heartbeat"]]
    harness.resume()
    assert harness.pool.held == 0


def test_later_requests_wait_for_a_change(harness: Harness) -> None:
    harness.receive(frames("DeleteTopics"))
    harness.wait(0)
    assert harness.receive(frames("Heartbeat")) == []
    harness.respond(0, [b"deleted"])
    assert harness.resume() == ["Heartbeat"]


def test_later_requests_wait_until_a_pending_lets_them_start(harness: Harness) -> None:
    harness.receive(frames("Produce"))
    harness.wait(0, keeps=500, blocks_later_until=object())
    assert (harness.pool.used, harness.receive(frames("Produce"))) == (500, [])
    harness.core.unblock_later(harness.started[0])
    assert (harness.pool.used, harness.resume()) == (0, ["Produce"])
    harness.wait(1, blocks_later_until=object())
    harness.core.unblock_later(harness.started[0])  # again: it holds nothing any more
    assert harness.core.state is State.HALTED


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_kept_frame_has_its_memory_until_the_response_and_its_buffer_forever(
    harness: Harness, size: int
) -> None:
    harness.terms = {"keeps": WHOLE_FRAME}
    stream = frames("Produce")
    for at in range(0, len(stream), size):
        harness.receive(stream[at : at + size])
    assert harness.pool.used == len(stream) - 4
    body = harness.started[0].body
    assert body is not None and bytes(body) == stream[-len(body) :]
    harness.buffers.shared[:] = bytes(len(harness.buffers.shared))
    harness.respond(0, [b"done"])
    assert (harness.pool.used, harness.sent) == (0, [b"done"])
    assert bytes(body) == stream[-len(body) :]


def test_frame_waits_for_memory_and_is_then_received_although_halted() -> None:
    harness = Harness(limit=100)
    assert harness.pool.try_allocate(100)
    stream = frames("Produce", "Heartbeat")
    assert harness.receive(stream[:600]) == []
    assert (harness.core.state, harness.pool.waiting) == (State.HALTED, 1)
    harness.pool.release(100)
    assert harness.granted == [None]
    harness.core.on(Event.MUTED)
    harness.core.got_memory()
    assert harness.core.state is State.FINISHING
    assert harness.resume() == []
    assert harness.receive(stream[600:]) == ["Produce"]
    assert harness.core.state is State.HALTED
    harness.core.on(Event.UNMUTED)
    assert harness.resume() == ["Heartbeat"]


def test_turn_ends_after_some_requests(harness: Harness) -> None:
    stream = frames(*["Heartbeat"] * (FRAMES_PER_TURN + 5))
    assert len(harness.receive(stream)) == FRAMES_PER_TURN
    assert harness.resume() == []
    harness.core.on(Event.TURN_STARTED)
    assert len(harness.resume()) == 5


def test_too_many_waiting_requests_halt_it() -> None:
    harness = Harness(in_flight=2)
    core = harness.core
    for number in range(2):
        harness.receive(frames("Heartbeat"))
        harness.wait(number)
    assert (core.state, core.is_saturated, harness.receive(frames("Heartbeat"))) == (State.HALTED, True, [])
    harness.respond(0, [])
    assert harness.resume() == ["Heartbeat"]


def test_malformed_frame_leaves_earlier_responses(harness: Harness) -> None:
    with pytest.raises(MalformedFrame):
        harness.receive(frames("Heartbeat") + b"\xff\xff\xff\xff")
    harness.respond(0, [b"first"])
    assert harness.sent == [b"first"]


def test_close_releases_all_memory(harness: Harness) -> None:
    harness.terms = {"keeps": WHOLE_FRAME}
    harness.receive(frames("Produce"))
    stream = frames("ListOffsets", "Produce")
    harness.receive(stream[:-10])
    assert harness.pool.used and harness.pool.held
    assert len([*harness.core.unanswered()]) == 1
    harness.core.close()
    assert (harness.pool.used, harness.pool.held, harness.core.state) == (0, 0, State.CLOSED)
    assert not harness.core.resume() and harness.take() == []


def test_overdue_connections() -> None:
    harness = Harness(idle_s=10, header_s=2, frame_s=4, blocked_s=30)
    core = harness.core
    assert (core.overdue(10.0, True), core.overdue(10.1, True)) == (None, (CloseReason.IDLE, ""))
    harness.receive(frames("Produce")[:3], now=20.0)
    core.on_reading_resumed(20.0)
    late = core.overdue(22.1, True)
    assert late is not None and late[0] is CloseReason.SLOW
    assert core.overdue(22.1, False) is None
    core.is_sending, core.blocked_at = True, 20.0
    blocked = core.overdue(50.1, False)
    assert blocked is not None and blocked[0] is CloseReason.BLOCKED


def test_client_that_has_left_may_finish_once(harness: Harness) -> None:
    assert not harness.core.client_left(1.0)
    assert not harness.core.client_left(2.0)
    harness.core.on(Event.MUTED)
    assert harness.core.client_left(2.0)


def test_pending_is_awaitable() -> None:
    async def work() -> str:
        return "done"

    async def main() -> Any:
        return await Pending(work())

    assert asyncio.run(main()) == "done"


def test_an_answered_request_that_waits_for_earlier_responses_keeps_no_frame(harness: Harness) -> None:
    harness.receive(frames("Heartbeat", "Produce", "Produce"))
    first, at_once, later = harness.started
    for request in (at_once, later):
        request.message = request.body
    harness.wait(0)
    harness.respond(1, [b"at once"])
    harness.wait(2)
    harness.respond(2, [b"later"])
    assert [(one.body, one.message, one.pending) for one in (at_once, later)] == [(None, None, None)] * 2
    assert first.pending is not None
    harness.respond(0, [b"first"])
    assert harness.sent == [b"first", b"at once", b"later"]
