"""Send queue of one connection: sends bytes with sendmsg, file slices with sendfile.

A file slice is not read before it is sent, so responses that a client does not accept use no memory. A small
slice, and the end of a large one, is read and sent together with the bytes around it: with sendfile a
response with one small batch would take three system calls and two packets, and wake the client twice. Called
by `net.connection`.
"""

import os
import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

from tierlog.base.files import FileSlice, Part
from tierlog.broker.net.bounds import ALLOCATED_BYTES, COPIED_BYTES, LAST_BYTES, SEND_BUFFERS, SEND_TURN_BYTES


class Outbox:
    """Responses queued for a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._fd = sock.fileno()
        self._queue: deque[Part] = deque()
        self.bytes = 0
        """Bytes of all responses that are ready, including those that wait for earlier ones."""
        self._file_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory, not in files."""
        return self.bytes - self._file_bytes

    def count(self, parts: Iterable[Part]) -> None:
        """Count a response that is ready; it is queued after those before it."""
        for part in parts:
            self.bytes += len(part)
            if isinstance(part, FileSlice):
                self._file_bytes += len(part)

    def queue(self, parts: Iterable[Part]) -> None:
        self._queue.extend(parts)

    def clear(self) -> None:
        self._queue.clear()

    def send(self) -> int:
        """Send as much as the socket accepts, at most SEND_TURN_BYTES. Returns the bytes sent. Raises
        OSError."""
        queue = self._queue
        total = 0
        try:
            while queue and total < SEND_TURN_BYTES:
                first = queue[0]
                if isinstance(first, FileSlice) and first.count > COPIED_BYTES:
                    most = min(first.count - LAST_BYTES, SEND_TURN_BYTES - total)
                    sent = os.sendfile(self._fd, first.file.fd, first.position, most)
                    if not sent:
                        raise _truncated(first)
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
                    raise _truncated(part)
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


def _truncated(part: FileSlice) -> OSError:
    return OSError(f"{part.file.path} is shorter than a slice of it")


_copied = memoryview(bytearray(COPIED_BYTES))
"""Buffer for slices that are sent with sendmsg; free again when sendmsg returns."""
