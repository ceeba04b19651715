"""The pump: one client connection on a raw non-blocking socket.

One readable event costs one receive, whatever number of frames it brings, and one send for all the answers
that were ready at once. A handler that answers at once costs no task. Answers leave in the order of the
requests: one that waits for an earlier one is `_pending`. The connection is not read while too many
requests wait, too many response bytes are queued, or the listener's budget has no room; frames that were
already received then lie in `_held`. So do those beyond FRAMES_PER_TURN, while others have their turn. A
client over its quota is muted: not read either, for as long as its answer told it (KIP-219). Only a frame
that has room in the budget arrives all the same, and in time: others wait for that room. Nothing is read
either while a request must start or be done before the next one is looked at (`handlers.ordering`,
`context.hold_others`); no frame can have been begun then, as such a request is the last that is handled.
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
from tierlog.broker.net.dispatch import NOT_STARTED, Call, Dispatcher
from tierlog.broker.net.end_reasons import Why
from tierlog.broker.net.outbox import Outbox
from tierlog.broker.net.pending import Pending, Slot
from tierlog.broker.net.receive import SIZE_PREFIX, Buffers, Partial, frame_size
from tierlog.protocol.primitives import MalformedFrame

_ENDING, _WITHOUT_ROOM, _OTHERS_TURN, _MUTED, _IN_ORDER, _OTHERS_WAIT, _LAST = 1, 2, 4, 8, 16, 32, 64
"""Why a connection is halted: it takes no further frame, whatever is queued. _IN_ORDER: a request waits for
appends before it, or a CHANGE is under way. _OTHERS_WAIT: a handler asked for it (`context.hold_others`).
_LAST: one of the answers that wait for their turn is its end.
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

    def forget(self, pump: "Pump", why: Why, detail: str) -> None:
        """The connection is closed."""

    def kept_more(self, count: int) -> None:
        """So many bytes more (or fewer) are in memory because a client has not taken them."""

    def bound_held(self) -> None:
        """More than the budget's limit was received and cannot be handled yet."""


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
        self._pending = Pending()
        self._appends = 0  # of those that wait
        self._held_back: tuple[Call, Slot] | None = None  # until there are none
        self._out = Outbox(sock)
        self._reading = self._writing = self._closed = False
        self._gone_at: float | None = None  # when its client was seen to have closed
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
        if len(self._pending) >= self._most_waiting:
            return True
        return self._pending.bytes >= self._owner.bounds.frame_bytes

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
        self._held_back = None
        self._pending.cancel()
        self._out.clear()
        self._owner.forget(self, why, detail)

    def _give_all_back(self) -> None:
        budget = self._owner.buffers.budget
        if self._wanted is not None and not budget.leave(self):
            budget.give(self._wanted)
        if self._partial is not None:
            self._partial.release(kept=False)
        self._pending.give_room_back(budget)
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
            self._look_for_its_end(now)
        frame = self._partial
        if frame is not None and (self._reading or frame.room):
            waited = now - frame.begun_at
            if waited > bounds.frame_s or (waited > bounds.header_s and not frame.has_header):
                return self.close(Why.SLOW, f"{frame.have} bytes of a frame in {waited:.0f} s")
        if not self._pending and not self.muted and now - self.active_at > bounds.idle_s:
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
        if self._gone_at is not None:
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

    def _look_for_its_end(self, now: float) -> None:
        """A client that has gone has nothing left to slow down, though many of its requests wait: what it
        sent last is handled, and its end of the stream, behind that, closes the connection. If it only closed
        its sending side it must not be free of bounds: it is closed at once if muted, or saturated anew. So
        is one whose requests wait for too long for those before them, which may never be done.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        if not poll.poll(0):
            return
        gone_at = self._gone_at
        if self.muted:
            self.close(Why.CLIENT)
        elif gone_at is not None:
            waits_too_long = self._halted & _IN_ORDER and now - gone_at > self._owner.bounds.abandoned_s
            if waits_too_long or self.is_saturated:
                self.close(Why.CLIENT)
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
            self._count_held(end)
        self._held = view[at:end]

    def _count_held(self, count: int) -> None:
        """So many bytes more (or fewer) were received and cannot be handled yet."""
        self.held_bytes += count
        budget = self._owner.buffers.budget
        budget.held += count
        if count > 0 and budget.held > budget.limit:
            self._owner.loop.call_soon(self._owner.bound_held)

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
        if call.result is NOT_STARTED:
            self._hold_back(call, end - at)
        elif isinstance(call.result, _NOT_YET):
            self._wait_for(call, self._slot(call, end - at, begun))
        else:
            self._ready(dispatcher.parts(call.context, call.result))
        return call.keeps_frame

    def _wait_for(self, call: Call, slot: Slot) -> None:
        """Answers when the handler's future or coroutine is done."""
        result = call.result
        if not isinstance(result, asyncio.Future):
            result = self._owner.tasks.spawn("request", self._finish(call))
            if call.order is _AFTER_APPENDS:
                slot.future = result  # reads: nobody needs them once the client has gone
        else:
            slot.future = result
            others_wait = call.context.others_wait
            if others_wait is not None:
                self._halted |= _OTHERS_WAIT
                others_wait.add_done_callback(self._timed(partial(self._carried_out, slot)))
        result.add_done_callback(self._timed(partial(self._completed, call, slot)))

    def _hold_back(self, call: Call, request_bytes: int) -> None:
        """Keeps a request that may see nothing older than the appends before it. No later one is handled
        before it has started, so there is at most one.
        """
        slot = Slot(request_bytes)
        self._pending.wait(slot)
        self._held_back = call, slot
        self._halted |= _IN_ORDER
        self._count_held(request_bytes)

    def _start_held_back(self) -> None:
        """The appends before it are acknowledged."""
        if self._held_back is None:
            return None
        call, slot = self._held_back
        self._held_back = None
        self._count_held(-slot.request_bytes)
        try:
            self._owner.dispatcher.start(call)
        except MalformedFrame as fault:
            self._send()
            return self.close(Why.MALFORMED, str(fault))
        if call.order is not _CHANGE:
            self._halted &= ~_IN_ORDER
        if isinstance(call.result, _NOT_YET):
            self._wait_for(call, slot)
            return self._resume()
        return self._answer(call, slot, call.result)

    def _carried_out(self, slot: Slot, _held: "asyncio.Future[None]") -> None:
        """The request that others had to wait for; its bytes are not held any more."""
        self._give_room(slot)
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
            held_back = self._held_back
            self._count_held((held_back[1].request_bytes if held_back else 0) - self.held_bytes)
        if self._held or self._is_stopped:
            self._stop_reading()
        elif not self._reading:
            if self._partial is not None:
                self._partial.begun_at = self._owner.loop.time()  # it was we who did not read
            self._owner.loop.add_reader(self._fd, self._timed(self._on_readable))
            self._reading = True

    # ---- answering --------------------------------------------------------------------------------

    def _slot(self, call: Call, request_bytes: int, begun: Partial | None) -> Slot:
        """For a request whose answer has to be waited for. What is kept of its frame has room."""
        slot = Slot(request_bytes)
        if call.order is _APPEND:
            self._appends += 1
        elif call.order is _CHANGE:
            self._halted |= _IN_ORDER
        self._pending.wait(slot)
        slot.room = request_bytes if call.keeps_frame else call.context.held_bytes
        if call.keeps_frame and begun is not None:
            begun.room = 0  # handed over
        elif slot.room:
            budget = self._owner.buffers.budget
            budget.used += slot.room
            if budget.used > budget.limit:
                self._wait_for_room(0)
        return slot

    def _give_room(self, slot: Slot) -> None:
        if slot.room:
            self._owner.buffers.budget.give(slot.room)
            slot.room = 0

    def _ready(self, parts: list[Part] | None) -> None:
        """An answer that is there at once."""
        self._out.count(parts or ())
        if self._pending:
            self._pending.answer_later(parts)
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

    def _completed(self, call: Call, slot: Slot, future: "asyncio.Future[Any]") -> None:
        """An answer that had to be waited for."""
        if future.cancelled():
            return self.close(Why.STOPPING, "the request was cancelled")
        return self._answer(call, slot, future.exception() or future.result())

    def _answer(self, call: Call, slot: Slot, reply: Any) -> None:
        """Sends a response in its turn, and starts what had to wait for it."""
        if self._closed:
            return None
        self._give_room(slot)
        dispatcher = self._owner.dispatcher
        try:
            if isinstance(reply, BaseException):
                reply = dispatcher.failed(call.context, call.request, reply)
            parts = dispatcher.parts(call.context, reply)
        except Exception as failure:
            dispatcher.report(f"an answer to {self.connection.peer_host}", failure)
            return self.close(Why.UNANSWERED, str(failure))
        self._out.count(parts or ())
        self._pending.answer(slot, parts)
        if parts is None:
            self._halted |= _LAST
        if call.order is _APPEND:
            self._appends -= 1
        if self._halted & (_IN_ORDER | _OTHERS_WAIT):
            self._let_others_start(call)
        while self._pending.has_ready:
            self._queue(self._pending.take())
        if self._pending.next_is_done:
            return None  # its turn to complete comes at once: both leave with one system call
        return self._send()

    def _let_others_start(self, call: Call) -> None:
        """What had to wait for this answer."""
        held = call.context.others_wait
        if held is not None and not held.done():
            self._halted &= ~_OTHERS_WAIT
        if call.order is _CHANGE:
            self._halted &= ~_IN_ORDER
        elif not self._appends and self._held_back is not None:
            self._owner.loop.call_soon(self._timed(self._start_held_back))

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
