#!/usr/bin/env python3
"""A link with latency and limited bandwidth between a broker and its S3 server, in a process of its own.

Each response begins `--latency-ms` after its request, and each connection transfers `--mb-s`. Prints the port
that it listens on."""

import argparse
import socket
import threading
import time
from contextlib import suppress

PIECE_BYTES = 256 << 10


class Link:
    """One connection. Two threads: requests pass at once, responses are delayed."""

    def __init__(self, client, target, latency_s, bytes_per_s):
        self._client, self._server = client, socket.create_connection(target)
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self._requested_at = 0.0
        for end in (self._client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for work in (self._requests, self._responses):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work):
        with suppress(OSError):
            work()
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _requests(self):
        while piece := self._client.recv(PIECE_BYTES):
            self._requested_at = time.perf_counter()
            self._server.sendall(piece)

    def _responses(self):
        buffer = memoryview(bytearray(PIECE_BYTES))
        answered, due = -1.0, 0.0
        while count := self._server.recv_into(buffer):
            if answered != self._requested_at:
                answered = self._requested_at
                due = answered + self._latency_s
            now = time.perf_counter()
            if due > now:
                time.sleep(due - now)
            self._client.sendall(buffer[:count])
            due = max(due, now - 0.01) + count / self._bytes_per_s


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="HOST:PORT")
    parser.add_argument("--latency-ms", type=float, default=40)
    parser.add_argument("--mb-s", type=float, default=90)
    options = parser.parse_args()
    host, port = options.target.split(":")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            client, _ = listening.accept()
            Link(client, (host, int(port)), options.latency_ms / 1e3, options.mb_s * 1e6)


if __name__ == "__main__":
    main()
