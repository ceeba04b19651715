"""Outbox: sends the queued parts of a connection, bytes with sendmsg and file slices with sendfile.

A file slice is not read before it is sent, so responses that wait for a slow client use no memory. A small
slice, and the end of a large one, is read and sent together with the bytes around it: with sendfile a
response with one small batch would take three system calls and two packets, and wake the client twice. Called
by `net.connection`.
"""

import os
import socket
from itertools import islice

from tierlog.base.files import FileSlice
from tierlog.broker.net.core.bounds import (
    ALLOCATE_BYTES_MAX,
    COPY_BYTES_MAX,
    SEND_BUFFERS,
    SEND_TURN_BYTES,
    SENDFILE_TAIL_BYTES,
)
from tierlog.broker.net.core.send_queue import SendQueue


class Outbox:
    """Sends a queue on a socket."""

    def __init__(self, sock: socket.socket, queue: SendQueue) -> None:
        self._socket = sock
        self._fd = sock.fileno()
        self.queue = queue

    def send(self) -> int:
        """Send as much as the socket accepts, and stop after SEND_TURN_BYTES. Returns the bytes sent. Raises
        OSError."""
        parts = self.queue.parts
        total = 0
        try:
            while parts and total < SEND_TURN_BYTES:
                first = parts[0]
                if isinstance(first, FileSlice) and first.count > COPY_BYTES_MAX:
                    count = min(first.count - SENDFILE_TAIL_BYTES, SEND_TURN_BYTES - total)
                    sent = os.sendfile(self._fd, first.file.fd, first.position, count)
                    if not sent:
                        raise _truncated(first)
                else:
                    sent = self._send_buffers()
                total += sent
                self.queue.sent(sent)
        except (BlockingIOError, InterruptedError):
            pass
        return total

    def _send_buffers(self) -> int:
        buffers: list[bytes | bytearray | memoryview] = []
        used, flags = 0, 0
        for part in islice(self.queue.parts, SEND_BUFFERS):
            if not isinstance(part, FileSlice):
                buffers.append(part)
            elif part.count <= COPY_BYTES_MAX - used:
                target = _slice_buffer[used : used + part.count]
                is_small = part.count <= ALLOCATE_BYTES_MAX
                buffers.append(part.read() if is_small else target[: part.read_into(target)])
                if len(buffers[-1]) < part.count:
                    raise _truncated(part)
                used += part.count
            else:
                flags = socket.MSG_MORE  # so that the file's first bytes are sent in the same packet
                break
        return self._socket.sendmsg(buffers, (), flags)


def _truncated(part: FileSlice) -> OSError:
    return OSError(f"{part.file.path} is shorter than a slice of it")


_slice_buffer = memoryview(bytearray(COPY_BYTES_MAX))
"""Buffer for slices that are sent with sendmsg; free again when sendmsg returns."""
