"""A proxy in front of a broker that closes each connection after a random number of response bytes."""

import contextlib
import random
import selectors
import socket
import threading


class CuttingProxy:
    """Its clients lose responses to requests that were carried out, so they have to retry."""

    def __init__(self, seed: int, least: int, most: int) -> None:
        self.cuts = 0
        self._rng = random.Random(seed)
        self._least, self._most = least, most
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._broker = ("", 0)
        self._cutting = True
        self._closing = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def forward_to(self, host: str, port: int) -> None:
        self._broker = host, port

    def stop_cutting(self) -> None:
        """Keep all connections open from now on."""
        self._cutting = False

    def close(self) -> None:
        self._closing = True
        self._listening.close()

    def _accept(self) -> None:
        while not self._closing:
            with contextlib.suppress(OSError):
                client, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        left = self._rng.randint(self._least, self._most)
        with client, contextlib.suppress(OSError), socket.create_connection(self._broker) as broker:
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, broker)
            selector.register(broker, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65_536)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is broker and self._cutting:
                        left -= len(data)
                        if left < 0:
                            self.cuts += 1
                            return
                    key.data.sendall(data)
