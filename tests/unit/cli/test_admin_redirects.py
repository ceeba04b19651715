"""Logins of the admin API stay with the server that they are for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tierlog.cli.admin import AdminApi
from tierlog.client import admin


@contextmanager
def server(location: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """A server that redirects each GET, or answers it with `{}`; its URL, and the logins that it got."""
    logins: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_response(302 if location else 200)
            self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}", logins
        listening.shutdown()
        thread.join()


ASK: dict[str, Callable[[str], Any]] = {
    "cli": lambda url: AdminApi(url).get("/v1/quorum"),
    "jobs": lambda url: admin.request("GET", f"{url}/v1/quorum", timeout_s=30),
}


@pytest.mark.parametrize("ask", ASK)
def test_server_that_a_redirection_names_gets_no_login(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_ADMIN_TOKEN", "canary")
    with server() as (other, stolen), server(other) as (url, logins):
        assert ASK[ask](url) == {}
        assert logins == ["Bearer canary"]
        assert stolen == [None]
