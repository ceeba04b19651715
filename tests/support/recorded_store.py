"""A pytest plugin that writes down each request of the S3 store: method, path and query, and the names of
headers that need a permission. `pytest -p recorded_store` with RECORDED_REQUESTS=FILE.

The store gets the address of a proxy that passes bytes on. Requests of tests themselves do not pass it.
"""

import os
import re
import socket
import socketserver
import threading
from contextlib import suppress

import s3_servers

HEAD = re.compile(rb"^([A-Z]+) (\S+) HTTP/1\.1\r\n((?:[^\r\n]+\r\n)*)\r\n", re.MULTILINE)
WITH_PERMISSION = re.compile(rb"^(x-amz-(?:tagging|acl|object-lock)[^:]*):", re.MULTILINE | re.IGNORECASE)
PIECE_BYTES = 1 << 16
TAIL_BYTES = 8192  # longer than the head of any request

_record = open(os.environ["RECORDED_REQUESTS"], "a", encoding="utf-8")  # noqa: SIM115 (until the process ends)


class Pass(socketserver.BaseRequestHandler):
    """One connection. Heads are searched in what was sent, with the end of the piece before."""

    def handle(self) -> None:
        with socket.create_connection(self.server.target) as onward:  # type: ignore[attr-defined]
            back = threading.Thread(target=self._pass_back, args=(onward,))
            back.start()
            tail = b""
            with suppress(OSError):  # tests close connections on purpose
                while piece := self.request.recv(PIECE_BYTES):
                    tail = note(tail + piece)
                    onward.sendall(piece)
                onward.shutdown(socket.SHUT_WR)
            back.join()

    def _pass_back(self, onward: socket.socket) -> None:
        with suppress(OSError):
            while piece := onward.recv(PIECE_BYTES):
                self.request.sendall(piece)
            self.request.shutdown(socket.SHUT_RDWR)


def note(sent: bytes) -> bytes:
    """Write down the complete heads, and return what may be the beginning of another."""
    end = 0
    for found in HEAD.finditer(sent):
        method, path, headers = found.groups()
        names = sorted(name.decode().lower() for name in WITH_PERMISSION.findall(headers))
        _record.write(" ".join([method.decode(), path.decode(), *names]) + "\n")
        end = found.end()
    _record.flush()
    return sent[max(end, len(sent) - TAIL_BYTES) :]


class Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.target = host, int(port)
        super().__init__(("127.0.0.1", 0), Pass)
        threading.Thread(target=self.serve_forever, daemon=True).start()


_proxies: dict[str, Proxy] = {}
_url = s3_servers.S3Server.url


def _proxied_url(server: s3_servers.S3Server, prefix: str) -> str:
    proxy = _proxies.get(server.address)
    if proxy is None:
        proxy = _proxies[server.address] = Proxy(server.address)
    return _url(server, prefix).replace(server.address, f"127.0.0.1:{proxy.server_address[1]}")


s3_servers.S3Server.url = _proxied_url  # type: ignore[method-assign]
