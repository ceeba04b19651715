"""Many client connections in one thread, each with a fixed number of requests in flight; counts the
responses.
"""

import select
import socket
import struct
from collections.abc import Sequence


class ManyClients:
    """Connection n keeps `depths[n]` copies of `frames[n]` in flight (by default one)."""

    def __init__(
        self, address: tuple[str, int], frames: Sequence[bytes], depths: Sequence[int] | None = None
    ) -> None:
        self.answers = [0] * len(frames)
        self._frames = frames
        self._depths = depths or [1] * len(frames)
        self._sockets = [socket.create_connection(address, timeout=30) for _ in frames]
        self._rest = [b""] * len(frames)  # the incomplete response of each connection
        self._numbers = {each.fileno(): number for number, each in enumerate(self._sockets)}
        self._poll = select.epoll()
        for descriptor in self._numbers:
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self, answers: int) -> None:
        """Run until this many responses have come in all."""
        for number, depth in enumerate(self._depths):
            self._send(number, depth)
        while sum(self.answers) < answers:
            for descriptor, _ in self._poll.poll(30):
                self._receive(self._numbers[descriptor])

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._poll.close()

    def _send(self, number: int, count: int) -> None:
        self._sockets[number].sendall(self._frames[number] * count)

    def _receive(self, number: int) -> None:
        data = self._sockets[number].recv(1 << 20)
        assert data, f"connection {number} was closed after {self.answers[number]} answers"
        data = self._rest[number] + data
        at = count = 0
        while len(data) - at >= 4 and len(data) - at >= 4 + (size := struct.unpack_from(">i", data, at)[0]):
            at += 4 + size
            count += 1
        self._rest[number] = data[at:]
        self.answers[number] += count
        self._send(number, count)
