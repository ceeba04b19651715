"""The answers of one connection on their way out: bytes leave by sendmsg, slices of files by sendfile.

A slice stays a slice until it is sent, so an answer that its client does not take holds no memory. A small
one, and the last of a large one, is read when its turn comes, and leaves with what is around it: by sendfile
the answer with one small batch is three system calls and two packets, and wakes its reader twice. Called by
the pump.
"""

import os
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

from tierlog.base.files import FileSlice, Part
from tierlog.broker.net.bounds import ALLOCATED_BYTES, COPIED_BYTES, LAST_BYTES, SEND_BUFFERS, SEND_TURN_BYTES


class Outbox:
    """What is queued for a socket, and how much of it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._fd = sock.fileno()
        self._queue: deque[Part] = deque()
        self.bytes = 0
        """Of all answers that are there, also those that wait for earlier ones."""
        self._file_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Of these, what does not lie in files."""
        return self.bytes - self._file_bytes

    def count(self, parts: Iterable[Part]) -> None:
        """An answer is there; it is queued when those before it are."""
        for part in parts:
            self.bytes += len(part)
            if isinstance(part, FileSlice):
                self._file_bytes += len(part)

    def queue(self, parts: Iterable[Part]) -> None:
        self._queue.extend(parts)

    def clear(self) -> None:
        self._queue.clear()

    def send(self) -> int:
        """Sends as far as the socket takes it, and at most for a turn; returns how much. Raises OSError."""
        queue = self._queue
        total = 0
        try:
            while queue and total < SEND_TURN_BYTES:
                first = queue[0]
                if isinstance(first, FileSlice) and first.count > COPIED_BYTES:
                    most = min(first.count - LAST_BYTES, SEND_TURN_BYTES - total)
                    sent = os.sendfile(self._fd, first.file.fd, first.position, most)
                    if not sent:
                        raise _cut_short(first)
                else:
                    sent = self._send_buffers()
                total += sent
                self._sent(sent)
        except (BlockingIOError, InterruptedError):
            pass
        return total

    @property
    def is_empty(self) -> bool:
        return not self._queue

    def _send_buffers(self) -> int:
        buffers: list[bytes | bytearray | memoryview] = []
        used, flags = 0, 0
        for part in islice(self._queue, SEND_BUFFERS):
            if not isinstance(part, FileSlice):
                buffers.append(part)
            elif part.count <= COPIED_BYTES - used:
                room = _copied[used : used + part.count]
                buffers.append(part.read() if part.count <= ALLOCATED_BYTES else room[: part.read_into(room)])
                if len(buffers[-1]) < part.count:
                    raise _cut_short(part)
                used += part.count
            else:
                flags = socket.MSG_MORE  # the file's first bytes share the packet
                break
        return self._socket.sendmsg(buffers, (), flags)

    def _sent(self, count: int) -> None:
        queue = self._queue
        self.bytes -= count
        while queue and count >= len(queue[0]):
            first = queue.popleft()
            count -= len(first)
            if isinstance(first, FileSlice):
                self._file_bytes -= first.count
        if count:
            first = queue[0]
            if isinstance(first, FileSlice):
                self._file_bytes -= count
                queue[0] = FileSlice(first.file, first.position + count, first.count - count)
            else:
                queue[0] = memoryview(first)[count:]


def _cut_short(part: FileSlice) -> OSError:
    return OSError(f"{part.file.path} ends inside a slice of it")


_copied = memoryview(bytearray(COPIED_BYTES))
"""Where slices are read that leave with what is around them: free again once the kernel has its copy."""
