"""The pump: one client connection on a raw non-blocking socket.

One readable event costs one receive, whatever number of frames it brings, and one send for all the answers
that were ready at once. A handler that answers at once costs no task. Answers leave in the order of the
requests: one that waits for an earlier one stays in `_waiting`. The connection is not read while too many
requests wait, too many response bytes are queued, or the listener's budget has no room; frames that were
already received then lie in `_held`. So do those beyond FRAMES_PER_TURN, while others have their turn. A
client over its quota is muted: not read either, for as long as its answer told it (KIP-219). Only a frame
that has room in the budget arrives all the same, and in time: others wait for that room. Nothing is read
either while a request has to be carried out before the next one is looked at (a CHANGE of
`handlers.ordering`, `context.hold_others`); no frame can have been begun then, as such a request is the last
that is handled.
"""

import asyncio
import select
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

from tierlog.broker.handlers.context import Connection
from tierlog.broker.handlers.ordering import Order
from tierlog.broker.net.bounds import (
    ABANDONED_REQUESTS,
    BLOCKED_AFTER_S,
    FRAMES_PER_TURN,
    Bounds,
)
from tierlog.broker.net.dispatch import NOT_STARTED, Call, Dispatcher
from tierlog.broker.net.end_reasons import Why
from tierlog.broker.net.outbox import Outbox
from tierlog.broker.net.receive import SIZE_PREFIX, Buffers, Partial, frame_size
from tierlog.broker.ports.files import Part
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.broker.wire.primitives import MalformedFrame

_ENDING, _WITHOUT_ROOM, _OTHERS_TURN, _MUTED, _IN_ORDER, _LAST = 1, 2, 4, 8, 16, 32
"""Why a connection is halted: it takes no further frame, whatever is queued. _LAST: one of the answers that
wait for their turn is its end.
"""
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

    def forget(self, pump: "Pump", why: Why, detail: str) -> None:
        """The connection is closed."""

    def kept_more(self, count: int) -> None:
        """So many bytes more (or fewer) are in memory because a client has not taken them."""

    def bound_held(self) -> None:
        """More than the budget's limit was received and cannot be handled yet."""


class _Slot:
    """The place of a response in the order of the requests."""

    __slots__ = ("done", "future", "parts", "request_bytes", "room")

    def __init__(self, request_bytes: int = 0) -> None:
        self.done = False
        self.future: asyncio.Future[Any] | None = None
        self.parts: list[Part] | None = []
        self.request_bytes = request_bytes
        self.room = 0  # of the budget, for a frame that is kept


class Pump:
    """Reads frames, calls handlers, sends answers, until either side closes."""

    def __init__(self, owner: Owner, sock: socket.socket, connection: Connection) -> None:
        self.connection = connection
        self.active_at = owner.loop.time()
        self._owner = owner
        self._socket = sock
        self._fd = sock.fileno()
        self._partial: Partial | None = None
        self._held = memoryview(b"")
        self.held_bytes = 0
        self._wanted: int | None = None  # what it waits for in the line of the budget
        self._waiting: deque[_Slot] = deque()
        self._waiting_bytes = 0  # of their requests
        self._appends = 0  # of those that wait
        self._acknowledged: asyncio.Future[None] | None = (
            None  # when there are none; only if it is waited for
        )
        self._out = Outbox(sock)
        self._reading = self._writing = self._closed = self._abandoned = False
        self._halted = 0
        self._most_waiting = owner.bounds.in_flight
        self.kept_bytes = 0
        """Answers in memory that the client has not taken."""
        self.blocked_at = 0.0
        """Since when it takes none of them, if it does not."""
        self._muted_until = 0.0
        self._unmute_timer: asyncio.Handle | None = None
        self._resume()

    @property
    def is_sending(self) -> bool:
        """Its client has not taken all that there is for it."""
        return self._writing

    def is_blocked(self, now: float) -> bool:
        """Its client takes nothing, which is more than to be slower than we are."""
        return self._writing and now - self.blocked_at > BLOCKED_AFTER_S

    @property
    def gives_way(self) -> bool:
        """It goes on in the next turn of the loop."""
        return bool(self._halted & _OTHERS_TURN)

    @property
    def is_saturated(self) -> bool:
        """So many requests wait, or such large ones, that no further one is taken."""
        if len(self._waiting) >= self._most_waiting:
            return True
        return self._waiting_bytes >= self._owner.bounds.frame_bytes

    def close(self, why: Why, detail: str = "") -> None:
        """Closes at once. Who waits for this client is told by a cancelled future; what begun tasks still
        answer is dropped.
        """
        if self._closed:
            return
        self._closed = True
        self._stop_reading()
        if self._writing:
            self._owner.loop.remove_writer(self._fd)
        self._socket.close()
        self._give_all_back()
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        for slot in self._waiting:
            if slot.future is not None:
                slot.future.cancel()
        if self._acknowledged is not None:
            self._acknowledged.cancel()
        self._waiting.clear()
        self._out.clear()
        self._owner.forget(self, why, detail)

    def _give_all_back(self) -> None:
        budget = self._owner.buffers.budget
        if self._wanted is not None and not budget.leave(self):
            budget.give(self._wanted)
        if self._partial is not None:
            self._partial.release(kept=False)
        for slot in self._waiting:
            budget.give(slot.room)
            slot.room = 0
        budget.held -= self.held_bytes
        self._owner.kept_more(-self.kept_bytes)
        self.held_bytes = self.kept_bytes = 0

    def close_if_overdue(self, now: float) -> None:
        """Closes a connection that is too slow with a frame, or has been idle for too long."""
        bounds = self._owner.bounds
        if self._writing and now - self.blocked_at > bounds.blocked_s:
            blocked_s = now - self.blocked_at
            return self.close(Why.BLOCKED, f"{self._out.bytes} bytes not taken for {blocked_s:.0f} s")
        if not self._reading:
            self._look_for_its_end()
        frame = self._partial
        if frame is not None and (self._reading or frame.room):
            waited = now - frame.begun_at
            if waited > bounds.frame_s or (waited > bounds.header_s and not frame.has_header):
                return self.close(Why.SLOW, f"{frame.have} bytes of a frame in {waited:.0f} s")
        if not self._waiting and not self.muted and now - self.active_at > bounds.idle_s:
            return self.close(Why.IDLE)
        return None

    # ---- muting -----------------------------------------------------------------------------------

    @property
    def muted(self) -> bool:
        return bool(self._halted & _MUTED)

    def mute(self, seconds: float) -> None:
        """Reads nothing for so long, or longer if it is muted for longer already; answers leave as ever."""
        if self._closed:
            return
        loop = self._owner.loop
        self._halted |= _MUTED
        if self._abandoned:
            loop.call_soon(self.close, Why.CLIENT)
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

    def unmute_soon(self) -> None:
        """Before its time; not within this call, which may come from anywhere."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = self._owner.loop.call_soon(self._timed(self._unmute))
            self._muted_until = 0.0  # whatever mutes it from now on counts

    def _unmute(self) -> None:
        self._unmute_timer = None
        self._halted &= ~_MUTED
        self.active_at = self._owner.loop.time()  # it was we who did not read
        self._resume()

    def _look_for_its_end(self) -> None:
        """A client that has gone has nothing left to slow down, though many of its requests wait: what it
        sent last is handled, and its end of the stream, behind that, closes the connection. If it only closed
        its sending side it must not be free of bounds: it is closed at once if muted, or saturated anew.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        if not poll.poll(0):
            return
        if self.muted or (self._abandoned and self.is_saturated):
            self.close(Why.CLIENT)
        elif not self._abandoned:
            self._abandoned = True
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
            return self.close(Why.NETWORK, str(failure))
        if not count:
            return self.close(Why.CLIENT)
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
        """Handles the frames in view[at:end] and sends what is ready; whether a handler kept a frame."""
        try:
            kept = self._handle_all(view, at, end)
        except MalformedFrame as fault:
            self._send()  # answers to what came before the bad frame
            self.close(Why.MALFORMED, str(fault))
            return True
        except Exception as failure:
            self._owner.dispatcher.report(f"connection from {self.connection.peer_host}", failure)
            self.close(Why.UNANSWERED, str(failure))
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
            self._give_way(view, at, end)
            return kept
        if at < end:
            frame = self._partial = Partial(self._owner.buffers, self.active_at)
            self._hold(view, self._continue(frame, view, at, end), end)
        return kept

    def _continue(self, frame: Partial, view: memoryview, at: int, end: int) -> int:
        """Fills a partial frame from view[at:end], and handles it once it is whole; the position after it, or
        where it found no room.
        """
        while True:
            if frame.have == frame.need == SIZE_PREFIX and not self._has_room_for(frame):
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

    def _has_room_for(self, frame: Partial) -> bool:
        """Takes a buffer of the frame's size, or a place in the line."""
        size = frame_size(frame.buffer, 0, self._owner.bounds.frame_bytes)
        if self._owner.buffers.budget.take(size):
            frame.grow(size)
            return True
        self._wait_for_room(size)
        return False

    def _wait_for_room(self, size: int) -> None:
        if self._wanted is None:
            self._wanted = size
            self._halted |= _WITHOUT_ROOM
            self._owner.buffers.budget.wait(self, size, self._timed(self._got_room))

    def _got_room(self) -> None:
        if self._closed:
            return
        if self._wanted and self._partial is not None:
            self._partial.grow(self._wanted)
        self._wanted = None
        self._halted &= ~_WITHOUT_ROOM
        self._resume()

    def _hold(self, view: memoryview, at: int, end: int) -> None:
        """Keeps what was received and cannot be handled yet."""
        if at == end:
            return
        if view is self._owner.buffers.shared:
            view, at, end = memoryview(bytearray(view[at:end])), 0, end - at
            self.held_bytes += end
            budget = self._owner.buffers.budget
            budget.held += end
            if budget.held > budget.limit:
                self._owner.loop.call_soon(self._owner.bound_held)
        self._held = view[at:end]

    def _give_way(self, view: memoryview, at: int, end: int) -> None:
        """The rest is handled after the other connections that are readable now."""
        if at < end:
            self._hold(view, at, end)
            self._halted |= _OTHERS_TURN
            self._owner.loop.call_soon(self._timed(self._have_turn))

    def _have_turn(self) -> None:
        self._halted &= ~_OTHERS_TURN
        self._resume()

    def _handle(self, view: memoryview, at: int, end: int, begun: Partial | None = None) -> bool:
        """Whether the handler kept the frame in view[at:end]; `begun` if it did not arrive whole."""
        dispatcher = self._owner.dispatcher
        call = dispatcher.call(self.connection, view, at, end, appends_wait=self._appends > 0)
        held_back = call.result is NOT_STARTED
        if held_back:
            call.result = self._started_after_appends(call)
            self._halted |= _IN_ORDER
        result = call.result
        if isinstance(result, asyncio.Future):
            slot = self._slot(call, end - at, begun)
            slot.future = result
            result.add_done_callback(self._timed(partial(self._completed, call, slot)))
            if call.context.others_wait is not None:
                self._halted |= _IN_ORDER
                call.context.others_wait.add_done_callback(self._timed(partial(self._carried_out, slot)))
        elif held_back or isinstance(result, CoroutineType):  # a compiled coroutine is not of this type
            task = self._owner.tasks.spawn("request", self._finish(call))
            slot = self._slot(call, end - at, begun)
            if call.order is _AFTER_APPENDS:
                slot.future = task  # reads: nobody needs them once the client has gone
            task.add_done_callback(self._timed(partial(self._completed, call, slot)))
        else:
            self._ready(dispatcher.parts(call.context, result))
        return call.keeps_frame

    async def _started_after_appends(self, call: Call) -> Any:
        """The reply of a request that may see nothing older than the appends before it."""
        if self._acknowledged is None:
            self._acknowledged = self._owner.loop.create_future()
        await self._acknowledged
        self._owner.dispatcher.start(call)
        if call.order is not _CHANGE:
            self._halted &= ~_IN_ORDER
            self._resume()
        result = call.result
        return await result if isinstance(result, Awaitable) else result

    def _carried_out(self, slot: _Slot, _held: "asyncio.Future[None]") -> None:
        """The request that others had to wait for; its bytes are not held any more."""
        self._give_room(slot)
        self._halted &= ~_IN_ORDER
        self._resume()

    @property
    def _is_full(self) -> bool:
        if self._halted or len(self._waiting) >= self._most_waiting:
            return True
        bounds = self._owner.bounds
        return self._out.bytes >= bounds.queued_response_bytes or self._waiting_bytes >= bounds.frame_bytes

    @property
    def _is_stopped(self) -> bool:
        """Not read; a begun frame that has room is let in first."""
        if not self._is_full:
            return False
        frame = self._partial
        return frame is None or not frame.room or bool(self._halted & (_ENDING | _LAST))

    def _timed(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback itself, unless someone counts the time that goes into this client."""
        stopwatch = self._owner.stopwatch
        return callback if stopwatch is None else partial(stopwatch, self.connection, callback)

    def rearm(self) -> None:
        """The owner's stopwatch came or went."""
        if self._reading:
            self._stop_reading()
            self._resume()

    def _stop_reading(self) -> None:
        if self._reading:
            self._owner.loop.remove_reader(self._fd)
            self._reading = False

    def _resume(self) -> None:
        """Reads again unless full, after what was held back; called after each change of what is queued."""
        while self._held and not self._is_stopped and not self._closed:
            held, self._held = self._held, memoryview(b"")
            self._guarded(held, 0, len(held))
        if self._closed:
            return
        if self.held_bytes and not self._held:
            self._owner.buffers.budget.held -= self.held_bytes
            self.held_bytes = 0
        if self._held or self._is_stopped:
            self._stop_reading()
        elif not self._reading:
            if self._partial is not None:
                self._partial.begun_at = self._owner.loop.time()  # it was we who did not read
            self._owner.loop.add_reader(self._fd, self._timed(self._on_readable))
            self._reading = True

    # ---- answering --------------------------------------------------------------------------------

    def _slot(self, call: Call, request_bytes: int, begun: Partial | None) -> _Slot:
        """For a request whose answer has to be waited for. What is kept of its frame has room."""
        slot = _Slot(request_bytes)
        if call.order is _APPEND:
            self._appends += 1
        elif call.order is _CHANGE:
            self._halted |= _IN_ORDER
        self._waiting.append(slot)
        self._waiting_bytes += request_bytes
        slot.room = request_bytes if call.keeps_frame else call.context.held_bytes
        if call.keeps_frame and begun is not None:
            begun.room = 0  # handed over
        elif slot.room:
            budget = self._owner.buffers.budget
            budget.used += slot.room
            if budget.used > budget.limit:
                self._wait_for_room(0)
        return slot

    def _give_room(self, slot: _Slot) -> None:
        if slot.room:
            self._owner.buffers.budget.give(slot.room)
            slot.room = 0

    def _ready(self, parts: list[Part] | None) -> None:
        """An answer that is there at once."""
        self._out.count(parts or ())
        if self._waiting:
            slot = _Slot()
            slot.done, slot.parts = True, parts
            self._waiting.append(slot)
            if parts is None:
                self._halted |= _LAST
        else:
            self._queue(parts)

    async def _finish(self, call: Call) -> Any:
        """Awaits a handler's coroutine; an exception is its result, as the connection will answer it."""
        try:
            return await call.result
        except Exception as failure:
            return failure

    def _completed(self, call: Call, slot: _Slot, future: "asyncio.Future[Any]") -> None:
        """An answer that had to be waited for."""
        if future.cancelled():
            return self.close(Why.STOPPING, "the request was cancelled")
        reply = future.exception() or future.result()
        if self._closed:
            return None
        self._give_room(slot)
        self._waiting_bytes -= slot.request_bytes
        dispatcher = self._owner.dispatcher
        try:
            if isinstance(reply, BaseException):
                reply = dispatcher.failed(call.context, call.request, reply)
            slot.parts = dispatcher.parts(call.context, reply)
        except Exception as failure:
            dispatcher.report(f"an answer to {self.connection.peer_host}", failure)
            return self.close(Why.UNANSWERED, str(failure))
        self._out.count(slot.parts or ())
        slot.done = True
        if slot.parts is None:
            self._halted |= _LAST
        if call.order is _APPEND:
            self._appends -= 1
        if self._halted & _IN_ORDER:
            self._let_others_start(call)
        while self._waiting and self._waiting[0].done:
            self._queue(self._waiting.popleft().parts)
        following = self._waiting[0].future if self._waiting else None
        if following is not None and following.done():
            return None  # its turn to complete comes at once: both leave with one system call
        return self._send()

    def _let_others_start(self, call: Call) -> None:
        """What had to wait for this answer."""
        held = call.context.others_wait
        if call.order is _CHANGE or (held is not None and not held.done()):
            self._halted &= ~_IN_ORDER
        elif not self._appends and self._acknowledged is not None:
            self._acknowledged.set_result(None)
            self._acknowledged = None

    def _queue(self, parts: list[Part] | None) -> None:
        """Queues an answer for sending; None ends the connection when all before it has been sent."""
        if parts is None:
            self._halted |= _ENDING
        elif not self._halted & _ENDING:
            self._out.queue(parts)

    def _send(self) -> None:
        """Sends what is queued, as far as the socket takes it."""
        out = self._out
        try:
            self._owner.sent_bytes += out.send()
        except OSError as failure:
            return self.close(Why.NETWORK, str(failure))
        finished = out.is_empty
        if finished and self._halted & _ENDING:
            return self.close(Why.UNANSWERED)
        if finished and self._writing:
            self._owner.loop.remove_writer(self._fd)
            self._writing = False
        elif not finished and not self._writing and not self._closed:
            self._owner.loop.add_writer(self._fd, self._timed(self._on_writable))
            self._writing = True
            self.blocked_at = self._owner.loop.time()
        if out.bytes or self.kept_bytes:
            kept_bytes, self.kept_bytes = self.kept_bytes, out.memory_bytes
            self._owner.kept_more(self.kept_bytes - kept_bytes)
        return self._resume()

    def _on_writable(self) -> None:
        self.active_at = self.blocked_at = self._owner.loop.time()
        self._send()
