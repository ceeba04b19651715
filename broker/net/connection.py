"""Channel: one client connection on a raw non-blocking socket, as Kafka's KafkaChannel.

One readable event costs one receive, however many frames it brings, and one send for all responses that are
ready. A handler that answers at once needs no task. Responses leave in the order of the requests; those that
wait for earlier ones are in `_pending`.

The connection is not read while too many requests wait, too many response bytes are queued, the memory pool
is used up, its client is muted for a quota (KIP-219), or a request must start or finish before the next one
(`handlers.ordering`, `context.hold_others`). Received frames then wait in `_held`; so do those beyond
FRAMES_PER_TURN. A frame with memory from the pool is received all the same: others wait for that memory.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

from tierlog.base.files import Part
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.context import Connection
from tierlog.broker.handlers.ordering import Order
from tierlog.broker.net.bounds import ABANDONED_REQUESTS, BLOCKED_AFTER_S, FRAMES_PER_TURN, Bounds
from tierlog.broker.net.close_reasons import CloseReason
from tierlog.broker.net.dispatch import NOT_STARTED, Call, Dispatcher
from tierlog.broker.net.outbox import Outbox
from tierlog.broker.net.pending_responses import PendingResponses, ResponseSlot
from tierlog.broker.net.receive import SIZE_PREFIX, Buffers, PartialFrame, frame_size
from tierlog.protocol.primitives import MalformedFrame

_ENDING, _NO_MEMORY, _YIELDED, _MUTED, _IN_ORDER, _OTHERS_WAIT, _LAST = 1, 2, 4, 8, 16, 32, 64
"""Why a connection is halted: it handles no further frame. _IN_ORDER: a request waits for earlier appends, or
a CHANGE is running. _OTHERS_WAIT: a handler called `context.hold_others`. _LAST: a pending response closes
the connection.
"""
_NOT_YET = (asyncio.Future, CoroutineType)
_APPEND, _AFTER_APPENDS, _CHANGE = Order.APPEND, Order.AFTER_APPENDS, Order.CHANGE


class Stopwatch(Protocol):
    """Calls back, and counts the time for the connection's client."""

    def __call__(self, connection: Connection, callback: Callable[..., None], *arguments: Any) -> None: ...


class Owner(Protocol):
    """What connections share: their listener."""

    loop: asyncio.AbstractEventLoop
    bounds: Bounds
    buffers: Buffers
    dispatcher: Dispatcher
    received_bytes: int
    sent_bytes: int
    tasks: TaskGroup
    stopwatch: "Stopwatch | None"

    def forget(self, channel: "Channel", why: CloseReason, detail: str) -> None:
        """Called when the connection is closed."""

    def count_kept(self, count: int) -> None:
        """Count bytes of responses in memory that a client has not accepted; negative: fewer."""

    def limit_held(self) -> None:
        """Called when more than the memory pool's limit was received and cannot be handled yet."""


class Channel:
    """Reads frames, calls handlers and sends responses until either side closes."""

    def __init__(self, owner: Owner, sock: socket.socket, connection: Connection) -> None:
        self.connection = connection
        self.active_at = owner.loop.time()
        self._owner = owner
        self._socket = sock
        self._fd = sock.fileno()
        self._partial: PartialFrame | None = None
        self._held = memoryview(b"")
        self.held_bytes = 0
        self._wanted: int | None = None  # bytes that it waits for in the memory pool
        self._pending = PendingResponses()
        self._appends = 0  # unacknowledged appends
        self._delayed_call: tuple[Call, ResponseSlot] | None = None  # starts when there are none
        self._out = Outbox(sock)
        self._reading = self._writing = self._closed = False
        self._gone_at: float | None = None  # when the client's close was noticed
        self._halted = 0
        self._most_waiting = owner.bounds.in_flight
        self.kept_bytes = 0  # of responses in memory that the client has not accepted
        self.blocked_at = 0.0  # since when it has accepted none
        self._muted_until = 0.0
        self._unmute_timer: asyncio.Handle | None = None
        self._resume()

    @property
    def is_sending(self) -> bool:
        """Whether the client has not accepted all of its responses yet."""
        return self._writing

    def is_blocked(self, now: float) -> bool:
        """Whether the client accepts nothing, as opposed to reading slowly."""
        return self._writing and now - self.blocked_at > BLOCKED_AFTER_S

    @property
    def has_yielded(self) -> bool:
        """Whether it continues in the next turn of the event loop."""
        return bool(self._halted & _YIELDED)

    @property
    def is_saturated(self) -> bool:
        """Whether too many requests, or too many bytes of them, are pending."""
        if len(self._pending) >= self._most_waiting:
            return True
        return self._pending.bytes >= self._owner.bounds.frame_bytes

    def close(self, why: CloseReason, detail: str = "") -> None:
        """Close at once. Pending futures are cancelled; responses of running tasks are dropped."""
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        if self._writing:
            self._owner.loop.remove_writer(self._fd)
        self._socket.close()
        self._release_all()
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        self._delayed_call = None
        self._pending.cancel()
        self._out.clear()
        self._owner.forget(self, why, detail)

    def _release_all(self) -> None:
        memory_pool = self._owner.buffers.memory_pool
        if self._wanted is not None and not memory_pool.cancel_wait(self):
            memory_pool.release(self._wanted)
        if self._partial is not None:
            self._partial.release(kept=False)
        self._pending.release_memory(memory_pool)
        memory_pool.held -= self.held_bytes
        self._owner.count_kept(-self.kept_bytes)
        self.held_bytes = self.kept_bytes = 0

    def close_if_overdue(self, now: float) -> None:
        """Close a connection that sends a frame too slowly, accepts no responses, or is idle for too long."""
        bounds = self._owner.bounds
        if self._writing and now - self.blocked_at > bounds.blocked_s:
            blocked_s = now - self.blocked_at
            return self.close(
                CloseReason.BLOCKED, f"{self._out.bytes} bytes not accepted for {blocked_s:.0f} s"
            )
        if not self._reading:
            self._check_for_close(now)
        frame = self._partial
        if frame is not None and (self._reading or frame.reserved):
            waited = now - frame.begun_at
            if waited > bounds.frame_s or (waited > bounds.header_s and not frame.has_header):
                return self.close(CloseReason.SLOW, f"{frame.have} bytes of a frame in {waited:.0f} s")
        if not self._pending and not self.muted and now - self.active_at > bounds.idle_s:
            return self.close(CloseReason.IDLE)
        return None

    # ---- muting -----------------------------------------------------------------------------------

    @property
    def muted(self) -> bool:
        return bool(self._halted & _MUTED)

    def mute(self, seconds: float) -> None:
        """Do not read the connection for this time, or longer if it is already muted for longer."""
        if self._closed:
            return
        loop = self._owner.loop
        self._halted |= _MUTED
        if self._gone_at is not None:
            loop.call_soon(self.close, CloseReason.CLIENT)
            return
        until = loop.time() + seconds
        if self._unmute_timer is not None:
            if until <= self._muted_until:
                return
            self._unmute_timer.cancel()
        self._muted_until = until
        self._unmute_timer = loop.call_at(until, self._timed(self._unmute))
        if self._is_stopped:
            self._stop_reading()

    def unmute(self) -> None:
        """End the mute early, but not within this call."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = self._owner.loop.call_soon(self._timed(self._unmute))
            self._muted_until = 0.0  # a later mute counts whatever its time

    def _unmute(self) -> None:
        self._unmute_timer = None
        self._halted &= ~_MUTED
        self.active_at = self._owner.loop.time()  # it was not read meanwhile
        self._resume()

    def _check_for_close(self, now: float) -> None:
        """Handle the last requests of a client that has closed its connection, beyond the limit of pending
        ones; its end of stream, behind them, closes the connection. A client that has only closed its sending
        side must not escape limits: it is closed if it is muted or saturated again, or if its requests wait
        too long for earlier ones.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        if not poll.poll(0):
            return
        gone_at = self._gone_at
        if self.muted:
            self.close(CloseReason.CLIENT)
        elif gone_at is not None:
            waits_too_long = self._halted & _IN_ORDER and now - gone_at > self._owner.bounds.abandoned_s
            if waits_too_long or self.is_saturated:
                self.close(CloseReason.CLIENT)
        else:
            self._gone_at = now
            self._most_waiting += ABANDONED_REQUESTS
            self._timed(self._resume)()

    # ---- receiving --------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        owner = self._owner
        shared = owner.buffers.shared
        frame = self._partial
        try:
            if frame is None:
                count = self._socket.recv_into(shared)
            else:
                count = self._socket.recvmsg_into((frame.rest, shared))[0]
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as failure:
            return self.close(CloseReason.NETWORK, str(failure))
        if not count:
            return self.close(CloseReason.CLIENT)
        self.active_at = owner.loop.time()
        owner.received_bytes += count
        if frame is not None:
            taken = min(count, frame.need - frame.have)
            frame.have += taken
            count -= taken
        if self._guarded(shared, 0, count):
            owner.buffers.replace_shared()
        return None

    def _guarded(self, view: memoryview, at: int, end: int) -> bool:
        """Handle the frames in view[at:end] and send ready responses. Returns whether a handler kept a
        frame."""
        try:
            kept = self._handle_all(view, at, end)
        except MalformedFrame as fault:
            self._send()  # responses to earlier frames
            self.close(CloseReason.MALFORMED, str(fault))
            return True
        except Exception as failure:
            self._owner.dispatcher.report(f"connection from {self.connection.peer_host}", failure)
            self.close(CloseReason.UNANSWERED, str(failure))
            return True
        self._send()
        return kept

    def _handle_all(self, view: memoryview, at: int, end: int) -> bool:
        frame = self._partial
        if frame is not None:
            at = self._continue(frame, view, at, end)
            if not frame.is_whole:
                self._hold(view, at, end)
                return False
        kept = False
        frame_bytes = self._owner.bounds.frame_bytes
        for _ in range(FRAMES_PER_TURN):
            if end - at < SIZE_PREFIX:
                break
            if self._is_full:
                self._hold(view, at, end)
                return kept
            size = frame_size(view, at, frame_bytes)
            stop = at + SIZE_PREFIX + size
            if stop > end:
                break
            kept |= self._handle(view, at + SIZE_PREFIX, stop)
            at = stop
        else:
            self._yield_turn(view, at, end)
            return kept
        if at < end:
            frame = self._partial = PartialFrame(self._owner.buffers, self.active_at)
            self._hold(view, self._continue(frame, view, at, end), end)
        return kept

    def _continue(self, frame: PartialFrame, view: memoryview, at: int, end: int) -> int:
        """Fill a partial frame from view[at:end] and handle it when it is whole. Returns the position after
        it, or where it found no memory.
        """
        while True:
            if frame.have == frame.need == SIZE_PREFIX and not self._allocate_for(frame):
                return at
            count = min(frame.need - frame.have, end - at)
            if not count:
                break
            frame.buffer[frame.have : frame.have + count] = view[at : at + count]
            frame.have += count
            at += count
        if frame.is_whole:
            self._partial = None
            kept = True
            try:
                kept = self._handle(frame.buffer, SIZE_PREFIX, frame.need, frame)
            finally:
                frame.release(kept)
        return at

    def _allocate_for(self, frame: PartialFrame) -> bool:
        """Take a buffer of the frame's size, or wait for memory."""
        size = frame_size(frame.buffer, 0, self._owner.bounds.frame_bytes)
        if self._owner.buffers.memory_pool.try_allocate(size):
            frame.grow(size)
            return True
        self._wait_for_memory(size)
        return False

    def _wait_for_memory(self, size: int) -> None:
        if self._wanted is None:
            self._wanted = size
            self._halted |= _NO_MEMORY
            self._owner.buffers.memory_pool.wait_for(self, size, self._timed(self._got_memory))

    def _got_memory(self) -> None:
        if self._closed:
            return
        if self._wanted and self._partial is not None:
            self._partial.grow(self._wanted)
        self._wanted = None
        self._halted &= ~_NO_MEMORY
        self._resume()

    def _hold(self, view: memoryview, at: int, end: int) -> None:
        """Keep received bytes that cannot be handled yet."""
        if at == end:
            return
        if view is self._owner.buffers.shared:
            view, at, end = memoryview(bytearray(view[at:end])), 0, end - at
            self._count_held(end)
        self._held = view[at:end]

    def _count_held(self, count: int) -> None:
        """Count received bytes that cannot be handled yet; negative: fewer."""
        self.held_bytes += count
        memory_pool = self._owner.buffers.memory_pool
        memory_pool.held += count
        if count > 0 and memory_pool.held > memory_pool.limit:
            self._owner.loop.call_soon(self._owner.limit_held)

    def _yield_turn(self, view: memoryview, at: int, end: int) -> None:
        """Handle the rest after the other readable connections."""
        if at < end:
            self._hold(view, at, end)
            self._halted |= _YIELDED
            self._owner.loop.call_soon(self._timed(self._take_turn))

    def _take_turn(self) -> None:
        self._halted &= ~_YIELDED
        self._resume()

    def _handle(self, view: memoryview, at: int, end: int, begun: PartialFrame | None = None) -> bool:
        """Returns whether the handler kept the frame in view[at:end]. `begun`: the frame, if it did not
        arrive whole.
        """
        dispatcher = self._owner.dispatcher
        call = dispatcher.call(self.connection, view, at, end, appends_wait=self._appends > 0)
        if call.result is NOT_STARTED:
            self._delay(call, end - at)
        elif isinstance(call.result, _NOT_YET):
            self._wait_for(call, self._slot(call, end - at, begun))
        else:
            self._ready(dispatcher.parts(call.context, call.result))
        return call.keeps_frame

    def _wait_for(self, call: Call, slot: ResponseSlot) -> None:
        """Answer when the handler's future or coroutine is done."""
        result = call.result
        if not isinstance(result, asyncio.Future):
            result = self._owner.tasks.spawn("request", self._finish(call))
            if call.order is _AFTER_APPENDS:
                slot.future = result  # a read: cancelled with the connection
        else:
            slot.future = result
            others_wait = call.context.others_wait
            if others_wait is not None:
                self._halted |= _OTHERS_WAIT
                others_wait.add_done_callback(self._timed(partial(self._release_others, slot)))
        result.add_done_callback(self._timed(partial(self._completed, call, slot)))

    def _delay(self, call: Call, request_bytes: int) -> None:
        """Keep a request that must wait for earlier appends. No later request is handled before it starts, so
        there is at most one.
        """
        slot = ResponseSlot(request_bytes)
        self._pending.wait(slot)
        self._delayed_call = call, slot
        self._halted |= _IN_ORDER
        self._count_held(request_bytes)

    def _start_delayed(self) -> None:
        """Called when the earlier appends are acknowledged."""
        if self._delayed_call is None:
            return None
        call, slot = self._delayed_call
        self._delayed_call = None
        self._count_held(-slot.request_bytes)
        try:
            self._owner.dispatcher.start(call)
        except MalformedFrame as fault:
            self._send()
            return self.close(CloseReason.MALFORMED, str(fault))
        if call.order is not _CHANGE:
            self._halted &= ~_IN_ORDER
        if isinstance(call.result, _NOT_YET):
            self._wait_for(call, slot)
            return self._resume()
        return self._answer(call, slot, call.result)

    def _release_others(self, slot: ResponseSlot, _held: "asyncio.Future[None]") -> None:
        """A request that held others (`context.hold_others`) lets them start; its bytes are released."""
        self._release_memory(slot)
        self._halted &= ~_OTHERS_WAIT
        self._resume()

    @property
    def _is_full(self) -> bool:
        if self._halted or len(self._pending) >= self._most_waiting:
            return True
        bounds = self._owner.bounds
        return self._out.bytes >= bounds.queued_response_bytes or self._pending.bytes >= bounds.frame_bytes

    @property
    def _is_stopped(self) -> bool:
        """Whether it is not read; a partial frame that has memory is received first."""
        if not self._is_full:
            return False
        frame = self._partial
        return frame is None or not frame.reserved or bool(self._halted & (_ENDING | _LAST))

    def _timed(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback, measured by the owner's stopwatch if there is one."""
        stopwatch = self._owner.stopwatch
        return callback if stopwatch is None else partial(stopwatch, self.connection, callback)

    def rearm(self) -> None:
        """Called when the owner's stopwatch changes."""
        if self._reading:
            self._stop_reading()
            self._resume()

    def _stop_reading(self) -> None:
        if self._reading:
            self._owner.loop.remove_reader(self._fd)
            self._reading = False

    def _resume(self) -> None:
        """Handle held frames, then read again unless full. Called after each change of what is queued."""
        while self._held and not self._is_stopped and not self._closed:
            held, self._held = self._held, memoryview(b"")
            self._guarded(held, 0, len(held))
        if self._closed:
            return
        if self.held_bytes and not self._held:
            delayed = self._delayed_call
            self._count_held((delayed[1].request_bytes if delayed else 0) - self.held_bytes)
        if self._held or self._is_stopped:
            self._stop_reading()
        elif not self._reading:
            if self._partial is not None:
                self._partial.begun_at = self._owner.loop.time()  # it was not read meanwhile
            self._owner.loop.add_reader(self._fd, self._timed(self._on_readable))
            self._reading = True

    # ---- answering --------------------------------------------------------------------------------

    def _slot(self, call: Call, request_bytes: int, begun: PartialFrame | None) -> ResponseSlot:
        """The slot of a request that is not answered at once. The bytes kept of its frame are reserved."""
        slot = ResponseSlot(request_bytes)
        if call.order is _APPEND:
            self._appends += 1
        elif call.order is _CHANGE:
            self._halted |= _IN_ORDER
        self._pending.wait(slot)
        slot.reserved = request_bytes if call.keeps_frame else call.context.held_bytes
        if call.keeps_frame and begun is not None:
            begun.reserved = 0  # now in the slot
        elif slot.reserved:
            memory_pool = self._owner.buffers.memory_pool
            memory_pool.used += slot.reserved
            if memory_pool.used > memory_pool.limit:
                self._wait_for_memory(0)
        return slot

    def _release_memory(self, slot: ResponseSlot) -> None:
        if slot.reserved:
            self._owner.buffers.memory_pool.release(slot.reserved)
            slot.reserved = 0

    def _ready(self, parts: list[Part] | None) -> None:
        """A response that is ready at once."""
        self._out.count(parts or ())
        if self._pending:
            self._pending.answer_later(parts)
            if parts is None:
                self._halted |= _LAST
        else:
            self._queue(parts)

    async def _finish(self, call: Call) -> Any:
        """Await a handler's coroutine. Returns its exception, which becomes an error response."""
        try:
            return await call.result
        except Exception as failure:
            return failure

    def _completed(self, call: Call, slot: ResponseSlot, future: "asyncio.Future[Any]") -> None:
        """Called when a handler is done."""
        if future.cancelled():
            return self.close(CloseReason.STOPPING, "the request was cancelled")
        return self._answer(call, slot, future.exception() or future.result())

    def _answer(self, call: Call, slot: ResponseSlot, reply: Any) -> None:
        """Send a response in its turn, and start requests that waited for it."""
        if self._closed:
            return None
        self._release_memory(slot)
        dispatcher = self._owner.dispatcher
        try:
            if isinstance(reply, BaseException):
                reply = dispatcher.failed(call.context, call.request, reply)
            parts = dispatcher.parts(call.context, reply)
        except Exception as failure:
            dispatcher.report(f"an answer to {self.connection.peer_host}", failure)
            return self.close(CloseReason.UNANSWERED, str(failure))
        self._out.count(parts or ())
        self._pending.answer(slot, parts)
        if parts is None:
            self._halted |= _LAST
        if call.order is _APPEND:
            self._appends -= 1
        if self._halted & (_IN_ORDER | _OTHERS_WAIT):
            self._start_waiting(call)
        while self._pending.has_ready:
            self._queue(self._pending.take())
        if self._pending.next_is_done:
            return None  # its callback runs next: both leave with one system call
        return self._send()

    def _start_waiting(self, call: Call) -> None:
        """Let requests start that waited for this response."""
        held = call.context.others_wait
        if held is not None and not held.done():
            self._halted &= ~_OTHERS_WAIT
        if call.order is _CHANGE:
            self._halted &= ~_IN_ORDER
        elif not self._appends and self._delayed_call is not None:
            self._owner.loop.call_soon(self._timed(self._start_delayed))

    def _queue(self, parts: list[Part] | None) -> None:
        """Queue a response for sending; None closes the connection after earlier responses."""
        if parts is None:
            self._halted |= _ENDING
        elif not self._halted & _ENDING:
            self._out.queue(parts)

    def _send(self) -> None:
        """Send queued responses as far as the socket accepts them."""
        out = self._out
        try:
            self._owner.sent_bytes += out.send()
        except OSError as failure:
            return self.close(CloseReason.NETWORK, str(failure))
        finished = out.is_empty
        if finished and self._halted & _ENDING:
            return self.close(CloseReason.UNANSWERED)
        if finished and self._writing:
            self._owner.loop.remove_writer(self._fd)
            self._writing = False
        elif not finished and not self._writing and not self._closed:
            self._owner.loop.add_writer(self._fd, self._timed(self._on_writable))
            self._writing = True
            self.blocked_at = self._owner.loop.time()
        if out.bytes or self.kept_bytes:
            kept_bytes, self.kept_bytes = self.kept_bytes, out.memory_bytes
            self._owner.count_kept(self.kept_bytes - kept_bytes)
        return self._resume()

    def _on_writable(self) -> None:
        self.active_at = self.blocked_at = self._owner.loop.time()
        self._send()
