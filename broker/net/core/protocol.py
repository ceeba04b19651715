"""Connection core: turns received bytes into requests and responses into a queue of what to send.

The driver (`net.connection`) fills `buffers_to_fill`, calls `received`, and takes requests from
`next_request` until it returns None. For each request it calls `respond`; if the response comes later, it
calls `wait` first. Responses leave in the order of the requests through `out`. Time is an argument; nothing
here waits.

A halted connection starts no further requests, except one that is partly received (State.FINISHING) or
delayed by appends. It is halted while too many requests wait for their responses, while too many response
bytes are queued, and for the reasons `HALT_…`, each of which one event begins and another ends
(HALT_TRANSITIONS). `State` says whether it still receives and sends. Bytes that were received and cannot be
handled yet are held; after each change, the driver asks `resume` whether they can be handled now.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from struct import Struct
from typing import Any, Final

from tierlog.base.files import Part
from tierlog.broker.handlers.context import CLOSE, WHOLE_FRAME, Connection, Pending, RequestContext
from tierlog.broker.handlers.ordering import ORDER_OF, Order
from tierlog.broker.net.core.bounds import ABANDONED_REQUESTS_MAX, BLOCKED_AFTER_S, FRAMES_PER_TURN, Bounds
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.core.memory_pool import MemoryPool
from tierlog.broker.net.core.receive import SIZE_PREFIX, Buffers, PartialFrame
from tierlog.broker.net.core.send_queue import SendQueue
from tierlog.protocol.api import BY_NAME, PRODUCE_KEY, decode_request_header
from tierlog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tierlog.protocol.primitives import MalformedFrame


class Event(Enum):
    """Events that begin or end a reason to halt the connection."""

    MEMORY_WANTED = auto()  # for the next frame, or for one that a handler keeps
    MEMORY_GRANTED = auto()
    TURN_USED_UP = auto()  # FRAMES_PER_TURN requests have started
    TURN_STARTED = auto()
    MUTED = auto()  # by a quota (KIP-219)
    UNMUTED = auto()
    REQUEST_DELAYED = auto()  # it waits for the appends before it (handlers.ordering)
    DELAYED_STARTED = auto()
    CHANGE_STARTED = auto()  # a request of Order.CHANGE waits for the controller
    CHANGE_DONE = auto()
    LATER_BLOCKED = auto()  # until `Pending.blocks_later_until` is done
    LATER_UNBLOCKED = auto()
    CLOSE_REQUESTED = auto()  # a request closes the connection, after the responses to earlier ones
    CLOSE_DUE = auto()  # these responses are queued
    CLOSED = auto()


HALT_NO_MEMORY: Final = 1
HALT_YIELDED: Final = 2
HALT_MUTED: Final = 4
HALT_IN_ORDER: Final = 8
HALT_LATER_BLOCKED: Final = 16
HALT_CLOSE_REQUESTED: Final = 32
HALT_CLOSE_DUE: Final = 64
HALT_CLOSED: Final = 128
"""Reasons why a connection is halted. They are ints and no enum, because each request tests them."""

HALT_TRANSITIONS: Mapping[Event, tuple[int, int]] = {  # event: (reason that begins, reason that ends)
    Event.MEMORY_WANTED: (HALT_NO_MEMORY, 0),
    Event.MEMORY_GRANTED: (0, HALT_NO_MEMORY),
    Event.TURN_USED_UP: (HALT_YIELDED, 0),
    Event.TURN_STARTED: (0, HALT_YIELDED),
    Event.MUTED: (HALT_MUTED, 0),
    Event.UNMUTED: (0, HALT_MUTED),
    Event.REQUEST_DELAYED: (HALT_IN_ORDER, 0),
    Event.DELAYED_STARTED: (0, HALT_IN_ORDER),
    Event.CHANGE_STARTED: (HALT_IN_ORDER, 0),
    Event.CHANGE_DONE: (0, HALT_IN_ORDER),
    Event.LATER_BLOCKED: (HALT_LATER_BLOCKED, 0),
    Event.LATER_UNBLOCKED: (0, HALT_LATER_BLOCKED),
    Event.CLOSE_REQUESTED: (HALT_CLOSE_REQUESTED, 0),
    Event.CLOSE_DUE: (HALT_CLOSE_DUE, 0),
    Event.CLOSED: (HALT_CLOSED, 0),
}


SASL_AUTHENTICATE_KEY: Final = BY_NAME["SaslAuthenticate"].key
RAW_VERSION: Final = -1
"""Version of a SASL message that has no request header. Its response has no header either."""


class State(Enum):
    """States of a connection. Only OPEN and FINISHING receive; all but CLOSED send."""

    OPEN = auto()
    """Requests start as they arrive."""
    FINISHING = auto()
    """Halted, but a partial frame has its memory from the pool: the rest of it is received and its request
    starts. Nothing after it is received."""
    HALTED = auto()
    """Received frames are held."""
    ENDING = auto()
    """Closes when the responses to earlier requests are sent; further requests are not answered."""
    CLOSED = auto()


RECEIVING = (State.OPEN, State.FINISHING)
_APPEND, _CHANGE, _FREE = Order.APPEND, Order.CHANGE, Order.FREE
_WAIT_FOR_APPENDS = (Order.AFTER_APPENDS, Order.CHANGE)
_SIZE = Struct(">i").unpack_from
_NOTHING = memoryview(b"")


class Request:
    """A request from its frame to its response. `body` is decoded to `message` when the request starts: until
    then, the request uses only the bytes of its frame.
    """

    __slots__ = (
        "blocks_later",
        "body",
        "context",
        "is_done",
        "is_queued",
        "message",
        "order",
        "parts",
        "pending",
        "reserved",
        "size",
    )  # fmt: skip

    def __init__(
        self, context: RequestContext, body: bytes | memoryview | None, order: Order, size: int
    ) -> None:
        self.context = context
        self.body = body
        self.order = order
        self.size = size
        self.message: Any = None
        self.pending: Pending | None = None
        self.is_queued = self.is_done = self.blocks_later = False
        self.parts: list[Part] | None = None  # None: close the connection
        self.reserved = 0  # bytes of the memory pool


def _no_memory_granted() -> None:
    """Replaces the driver's `granted` when the connection is closed."""


def read_request(connection: Connection, view: memoryview, at: int, end: int) -> Request:
    """The request in view[at:end], which is a frame without its size prefix. Raises MalformedFrame.

    A request with a message and no body needs no decoding: CLOSE if the client must authenticate first.
    """
    authentication = connection.authentication
    if authentication is not None and authentication.reads_raw:
        return _read_raw(connection, view, at, end)
    header = decode_request_header(view, at, end)
    key, body_at = header.api_key, header.body_at
    context = RequestContext(key, header.api_version, header.correlation_id, header.client_id, connection)
    if authentication is not None and not authentication.admits(key):
        request = Request(context, None, _FREE, end - at)
        request.message = CLOSE
        return request
    if body_at < 0:  # unknown key or version
        return Request(context, None, _FREE, end - at)
    # produced records are used in place; other requests may outlive the receive buffer
    body = view[body_at:end] if key == PRODUCE_KEY else bytes(view[body_at:end])
    return Request(context, body, ORDER_OF.get(key, _FREE), end - at)


def _read_raw(connection: Connection, view: memoryview, at: int, end: int) -> Request:
    """The SASL message in view[at:end] as a request."""
    context = RequestContext(SASL_AUTHENTICATE_KEY, RAW_VERSION, 0, None, connection)
    request = Request(context, None, _CHANGE, end - at)
    request.message = SaslAuthenticateRequest(auth_bytes=bytes(view[at:end]))
    return request


class ConnectionCore:
    """The protocol of one connection. When the memory pool has reserved the memory for which the connection
    waits, it calls `granted`; the driver then calls `got_memory` in a later turn. `now`: monotonic seconds.
    """

    def __init__(
        self,
        connection: Connection,
        buffers: Buffers,
        bounds: Bounds,
        granted: Callable[[], None],
        now: float,
    ) -> None:
        self.connection = connection
        self.bounds = bounds
        self.out = SendQueue()
        self.small_frame_bytes = 0  # frames up to this size are accepted; larger ones are checked first
        self.halts = 0
        self.active_at = now
        self.held_bytes = 0
        self.is_sending = False  # whether the client has not accepted all queued responses yet
        self.blocked_at = 0.0  # when it last accepted bytes, while `is_sending`
        self.client_left_at: float | None = None  # when the client's close was noticed
        self._buffers = buffers
        self._granted = granted
        self._view, self._at, self._end = _NOTHING, 0, 0  # view[at:end] is received and not handled
        self._shared_is_kept = False  # by a handler
        self._turn_left = FRAMES_PER_TURN
        self._partial: PartialFrame | None = None
        self._whole: PartialFrame | None = None  # the frame of the latest request, if it came in pieces
        self._held = _NOTHING
        self._wanted: int | None = None  # bytes for which it waits in `_pool`
        self._pool = buffers.memory_pool
        self._waiting: deque[Request] = deque()  # in order; the first has no response yet
        self._waiting_bytes = 0  # held by requests without a response
        self._appends = 0  # unacknowledged
        self._delayed: Request | None = None  # starts when no append is unacknowledged
        self._waiting_max = bounds.in_flight

    # ---- states -----------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        begins, ends = HALT_TRANSITIONS[event]
        self.halts = self.halts & ~ends | begins

    @property
    def is_halted(self) -> bool:
        """Whether no request may start."""
        if self.halts or len(self._waiting) >= self._waiting_max:
            return True
        bounds = self.bounds
        return self.out.bytes >= bounds.queued_response_bytes or self._waiting_bytes >= bounds.frame_bytes

    @property
    def receives(self) -> bool:
        """Whether the state is OPEN or FINISHING."""
        if not self.is_halted:
            return True
        partial = self._partial
        return (
            partial is not None
            and partial.reserved > 0
            and not self.halts & (HALT_CLOSE_REQUESTED | HALT_CLOSE_DUE | HALT_CLOSED)
        )

    @property
    def state(self) -> State:
        if self.halts & HALT_CLOSED:
            return State.CLOSED
        if self.halts & (HALT_CLOSE_REQUESTED | HALT_CLOSE_DUE):
            return State.ENDING
        if not self.is_halted:
            return State.OPEN
        return State.FINISHING if self.receives else State.HALTED

    @property
    def is_saturated(self) -> bool:
        """Whether too many requests, or too many bytes of them, are pending."""
        return len(self._waiting) >= self._waiting_max or self._waiting_bytes >= self.bounds.frame_bytes

    @property
    def has_partial_frame(self) -> bool:
        """Whether a frame has begun to arrive."""
        return self._partial is not None

    @property
    def has_held_bytes(self) -> bool:
        """Whether received bytes wait until they can be handled."""
        return bool(self._held)

    def is_blocked(self, now: float) -> bool:
        """Whether the client accepts nothing, as opposed to reading slowly."""
        return self.is_sending and now - self.blocked_at > BLOCKED_AFTER_S

    # ---- bytes in, requests out -------------------------------------------------------------------

    def buffers_to_fill(self) -> list[memoryview]:
        """Buffers for the next receive, in order: the rest of a partial frame, then the shared buffer."""
        shared, partial = self._buffers.shared, self._partial
        return [shared] if partial is None else [partial.missing, shared]

    def received(self, count: int, now: float) -> None:
        """Take over `count` bytes that have arrived in `buffers_to_fill`, at `now` in monotonic seconds."""
        self.active_at = now
        partial = self._partial
        if partial is not None:
            taken = min(count, partial.need - partial.have)
            partial.have += taken
            count -= taken
        self._view, self._at, self._end = self._buffers.shared, 0, count
        self._turn_left = FRAMES_PER_TURN

    def resume(self) -> bool:
        """Whether requests that were received before may start: `next_request` returns them."""
        if self.halts & HALT_CLOSED:
            return False
        if self._delayed is not None and not self._appends:
            return True
        if self._held and self.receives:
            self._view, self._at, self._end = self._held, 0, len(self._held)
            self._held = _NOTHING
            self._turn_left = FRAMES_PER_TURN
            return True
        if self.held_bytes and not self._held:
            self._count_held((self._delayed.size if self._delayed else 0) - self.held_bytes)
        return False

    def next_request(self) -> Request | None:
        """The next request, which the driver must start at once. None if all received bytes are handled or
        held. Raises MalformedFrame.
        """
        if self._whole is not None:
            self._release_whole(self._whole)
        if self._delayed is not None:
            return None if self._appends else self._start_delayed(self._delayed)
        if self._partial is not None:
            return self._continue(self._partial)
        at, end = self._at, self._end
        if at == end:
            return self._hold_rest()
        if not self._turn_left:
            self.on(Event.TURN_USED_UP)
            return self._hold_rest()
        if end - at >= SIZE_PREFIX:
            if self.is_halted:
                return self._hold_rest()
            size = self._frame_size(self._view, at)
            at += SIZE_PREFIX
            if at + size <= end:
                self._at = at + size
                self._turn_left -= 1
                request = read_request(self.connection, self._view, at, at + size)
                return self._delay(request) if self._appends else request
        self._partial = PartialFrame(self._buffers, self.active_at)
        return self._continue(self._partial)

    def _frame_size(self, view: memoryview, at: int) -> int:
        size: int = _SIZE(view, at)[0]
        if not 0 < size <= self.small_frame_bytes:
            self._check_large(size)
        return size

    def _check_large(self, size: int) -> None:
        """Raises MalformedFrame if the frame is too large. Less is allowed before authentication."""
        authentication, most = self.connection.authentication, self.bounds.frame_bytes
        most = most if authentication is None else min(most, authentication.frame_bytes_max)
        if not 0 < size <= most:
            raise MalformedFrame(f"a frame of {size} bytes")
        self.small_frame_bytes = most

    def _continue(self, frame: PartialFrame) -> Request | None:
        """Fill a partial frame. Returns its request when it is whole."""
        view, at, end = self._view, self._at, self._end
        while True:
            if frame.have == frame.need == SIZE_PREFIX and not self._allocate_for(frame):
                break
            count = min(frame.need - frame.have, end - at)
            if not count:
                break
            frame.buffer[frame.have : frame.have + count] = view[at : at + count]
            frame.have += count
            at += count
        self._at = at
        if not frame.is_whole:
            return self._hold_rest()
        self._partial, self._whole = None, frame
        request = read_request(self.connection, frame.buffer, SIZE_PREFIX, frame.need)
        return self._delay(request) if self._appends else request

    def _hold_rest(self) -> Request | None:
        """Keep received bytes that cannot be handled yet, and free the shared buffer for other connections.
        Returns None, as there is no further request."""
        view, at, end = self._view, self._at, self._end
        is_shared = view is self._buffers.shared
        if at < end:
            if is_shared:
                view, at, end = memoryview(bytearray(view[at:end])), 0, end - at
                self._count_held(end)
            self._held = view[at:end]
        if self._shared_is_kept and is_shared:
            self._buffers.replace_shared()
        self._shared_is_kept = False
        self._view, self._at, self._end = _NOTHING, 0, 0
        return None

    def _count_held(self, count: int) -> None:
        """Add to the count of received bytes that cannot be handled yet; negative: subtract."""
        self.held_bytes += count
        self._buffers.memory_pool.held += count

    # ---- order ------------------------------------------------------------------------------------

    def _delay(self, request: Request) -> Request | None:
        """Keep a request that must wait for the appends before it, or return it if it need not wait. Later
        requests are not handled before it starts, so at most one is delayed.
        """
        if request.order not in _WAIT_FOR_APPENDS:
            return request
        self._delayed = request
        self._queue(request)
        self.on(Event.REQUEST_DELAYED)
        self._count_held(request.size)
        if self._whole is not None:
            self._release_whole(self._whole)
        return self._hold_rest()

    def _start_delayed(self, request: Request) -> Request:
        self._delayed = None
        self._count_held(-request.size)
        if request.order is not _CHANGE:
            self.on(Event.DELAYED_STARTED)
        return request

    def wait(self, request: Request, pending: Pending) -> None:
        """The request has started, and its response comes later."""
        request.pending = pending
        order = request.order
        if order is _APPEND:
            self._appends += 1
        elif order is _CHANGE:
            self.on(Event.CHANGE_STARTED)
        if not request.is_queued:
            self._queue(request)
        if pending.keeps:
            self._keep(request, pending.keeps)
        if pending.blocks_later_until is not None:
            request.blocks_later = True
            self.on(Event.LATER_BLOCKED)

    def _queue(self, request: Request) -> None:
        request.is_queued = True
        self._waiting.append(request)
        self._waiting_bytes += request.size

    def _keep(self, request: Request, keeps: int) -> None:
        """Reserve memory for the bytes of the frame that a handler keeps."""
        memory_pool, whole = self._buffers.memory_pool, self._whole
        request.reserved = request.size if keeps == WHOLE_FRAME else keeps
        if keeps == WHOLE_FRAME and whole is not None:
            self._whole = None  # its memory is the request's, its buffer the handler's
            return
        self._shared_is_kept = self._shared_is_kept or keeps == WHOLE_FRAME
        memory_pool.used += request.reserved
        if memory_pool.used > memory_pool.limit:
            self._wait_for_memory(0, memory_pool)

    def unblock_later(self, request: Request) -> None:
        """`Pending.blocks_later_until` is done."""
        self._release(request)
        if request.blocks_later:
            request.blocks_later = False
            self.on(Event.LATER_UNBLOCKED)

    # ---- responses --------------------------------------------------------------------------------

    def respond(self, request: Request, parts: list[Part] | None) -> None:
        """Queue the response behind earlier ones. None closes the connection after these."""
        self.out.count(parts or ())
        request.is_done, request.parts = True, parts
        request.body = request.message = request.pending = None  # free them while earlier responses delay it
        if request.is_queued:
            self._waiting_bytes -= request.size
            self._done_waiting(request)
        elif self._waiting:
            request.is_queued = True
            self._waiting.append(request)
        else:
            return self._send(parts)
        if parts is None:
            self.on(Event.CLOSE_REQUESTED)
        while self._waiting and self._waiting[0].is_done:
            self._send(self._waiting.popleft().parts)
        return None

    def close_after_responses(self) -> None:
        """Close the connection when the responses to all requests so far are sent."""
        self.on(Event.CLOSE_REQUESTED)
        if not self._waiting:
            self.on(Event.CLOSE_DUE)

    def _done_waiting(self, request: Request) -> None:
        """Let requests start that waited for this response."""
        self.unblock_later(request)
        if request.order is _CHANGE:
            self.on(Event.CHANGE_DONE)
        elif request.order is _APPEND:
            self._appends -= 1

    def _send(self, parts: list[Part] | None) -> None:
        if parts is None:
            self.on(Event.CLOSE_DUE)
        elif not self.halts & HALT_CLOSE_DUE:
            self.out.parts.extend(parts)

    @property
    def is_ready_to_close(self) -> bool:
        """Whether a request closes the connection and all responses before it are sent."""
        return bool(self.halts & HALT_CLOSE_DUE) and not self.out.parts

    @property
    def next_to_answer(self) -> Request | None:
        """The request whose response must leave first."""
        return self._waiting[0] if self._waiting else None

    def unanswered(self) -> Iterator[Pending]:
        """The Pending of each request that has no response yet."""
        return (request.pending for request in self._waiting if request.pending and not request.is_done)

    # ---- memory -----------------------------------------------------------------------------------

    def _allocate_for(self, frame: PartialFrame) -> bool:
        """Take a buffer of the frame's size, or wait for memory."""
        size = self._frame_size(frame.buffer, 0)
        frame.pool = self._buffers.pool_for(self.connection.authentication)
        if is_allocated := frame.pool.try_allocate(size):
            frame.grow(size)
        else:
            self._wait_for_memory(size, frame.pool)
        return is_allocated

    def _wait_for_memory(self, size: int, pool: MemoryPool) -> None:
        if self._wanted is None:
            self._wanted, self._pool = size, pool
            self.on(Event.MEMORY_WANTED)
            pool.wait_for(self, size, self._granted)

    def got_memory(self) -> None:
        if self._wanted and self._partial is not None:
            self._partial.grow(self._wanted)
        self._wanted = None
        self.on(Event.MEMORY_GRANTED)

    def _release(self, request: Request) -> None:
        if request.reserved:
            self._buffers.memory_pool.release(request.reserved)
            request.reserved = 0

    def _release_whole(self, frame: PartialFrame) -> None:
        self._whole = None
        frame.release(kept=False)

    # ---- time -------------------------------------------------------------------------------------

    def on_reading_resumed(self, now: float) -> None:
        """Restart the timeout of a partial frame, since the connection was not read."""
        if self._partial is not None:
            self._partial.begun_at = now

    def overdue(self, now: float, is_read: bool) -> tuple[CloseReason, str] | None:
        """Reason and details if the connection must be closed: it sends a frame too slowly, accepts no
        responses, or is idle for too long. `is_read`: whether the driver reads its socket."""
        bounds = self.bounds
        blocked_s = now - self.blocked_at
        if self.is_sending and blocked_s > bounds.blocked_s:
            return CloseReason.BLOCKED, f"{self.out.bytes} bytes not accepted for {blocked_s:.0f} s"
        frame = self._partial
        if frame is not None and (is_read or frame.reserved):
            waited = now - frame.begun_at
            if waited > bounds.frame_s or (waited > bounds.header_s and not frame.has_header):
                return CloseReason.SLOW, f"{frame.have} bytes of a frame in {waited:.0f} s"
        if not self._waiting and not self.halts & HALT_MUTED and now - self.active_at > bounds.idle_s:
            return CloseReason.IDLE, ""
        return None

    def client_left(self, now: float) -> bool:
        """The client has closed its connection, or only its sending side. Returns whether to close.

        The requests that it has sent are still handled, up to ABANDONED_REQUESTS_MAX more than usual. The
        connection is closed when the end of the stream is read after them. A client that has only closed its
        sending side must not escape limits: its connection is closed if it is muted or saturated again, or
        if its requests wait too long for earlier ones.
        """
        if self.halts & HALT_MUTED:
            return True
        if self.client_left_at is not None:
            waits_too_long = (
                self.halts & HALT_IN_ORDER and now - self.client_left_at > self.bounds.abandoned_s
            )
            return bool(waits_too_long) or self.is_saturated
        self.client_left_at = now
        self._waiting_max += ABANDONED_REQUESTS_MAX
        return False

    # ---- end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release all memory. The driver cancels what `unanswered` yields first."""
        self.on(Event.CLOSED)
        if self._wanted is not None and not self._pool.cancel_wait(self):
            self._pool.release(self._wanted)
        for frame in (self._partial, self._whole):
            if frame is not None:
                frame.release(kept=frame is self._whole)  # a handler that failed may still refer to it
        for request in self._waiting:
            self._release(request)
        if self._view is self._buffers.shared:
            self._buffers.replace_shared()
        self._count_held(-self.held_bytes)
        self._granted = _no_memory_granted  # the old one refers to the driver, which refers to this
        self._partial = self._whole = self._delayed = None
        self._view, self._at, self._end = _NOTHING, 0, 0
        self._held = _NOTHING
        self._waiting.clear()
        self.out.parts.clear()
