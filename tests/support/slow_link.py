"""A proxy in front of a server that sends on what its clients send, as fast as it can or slowly."""

import socket
import threading
from contextlib import suppress

SLOW_BYTES_PER_S = 300_000
PIECE_BYTES = 10_000
"""Size of the pieces that a slow link sends on."""


class SlowLink:
    """While it is entered, it accepts connections at `address` (host:port). `slow`: whether each connection
    sends SLOW_BYTES_PER_S to the server; responses are as fast as before."""

    def __init__(self, server: str) -> None:
        host, port = server.split(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.slow = threading.Event()
        self._ends = threading.Event()

    def __enter__(self) -> "SlowLink":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._listening.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._server) as server:
            responses = threading.Thread(target=self._send_on, args=(server, client), daemon=True)
            responses.start()
            self._send_on(client, server)
            responses.join()

    def _send_on(self, source: socket.socket, target: socket.socket) -> None:
        """Until one of them is closed."""
        is_limited = target.getpeername() == self._server
        with suppress(OSError):
            while sent := source.recv(PIECE_BYTES if is_limited and self.slow.is_set() else 1 << 16):
                target.sendall(sent)
                if is_limited and self.slow.is_set():
                    self._ends.wait(len(sent) / SLOW_BYTES_PER_S)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
