"""Forwards requests to a node's admin API, and can run something before one of them."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class AdminProxy:
    """`before`: called before a request whose path ends with `path` is forwarded, the first time only."""

    def __init__(self, target: str, path: str, before: Callable[[], None]) -> None:
        self._target, self._path, self._before = target, path, before
        self._lock = threading.Lock()
        self._called = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy._forward(self, None)

            def do_POST(self) -> None:
                proxy._forward(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: object) -> None:
                """No log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes | None) -> None:
        if handler.path.endswith(self._path):
            with self._lock:
                is_first, self._called = not self._called, True
            if is_first:
                self._before()
        request = urllib.request.Request(
            self._target + handler.path, body, {"Content-Type": "application/json"}, method=handler.command
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as refused:
            status, content = refused.code, refused.read()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    @contextmanager
    def running(self) -> Iterator["AdminProxy"]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
