"""Client of a schema registry: its credentials, and responses that break off."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tierlog.client import registry
from tierlog.client.registry import RegistryAddress
from tierlog.spark.options import InvalidOption, parse_options


class Server(ThreadingHTTPServer):
    """Redirects each path but those of /schemas/ids/ to another server, and truncates the first response."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.other = ""
        self.truncated = 0
        self.authorizations: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.authorizations.append(self.headers["Authorization"])
        if self.server.other:
            self.send_response(302)
            self.send_header("Location", self.server.other + self.path)
            self.end_headers()
            return
        body = b'{"schema": "\\"int\\""}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        size = 5 if self.server.truncated else len(body)
        self.server.truncated = max(0, self.server.truncated - 1)  # before the client can ask again
        self.wfile.write(body[:size])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    pair = Server(), Server()
    threads = [threading.Thread(target=one.serve_forever) for one in pair]
    for thread in threads:
        thread.start()
    yield pair
    for one in pair:
        one.shutdown()
        one.server_close()
    for thread in threads:
        thread.join()


def test_password_is_not_sent_to_the_target_of_a_redirect(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.other = second.url
    assert registry.schema_of_id(RegistryAddress(url=first.url, user="u:secret"), 1) == '"int"'
    assert first.authorizations == ["Basic dTpzZWNyZXQ="]
    assert second.authorizations == [None]


def test_truncated_response_is_requested_again(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "PAUSE_S", 0)
    servers[0].truncated = 1
    assert registry.schema_of_id(RegistryAddress(url=servers[0].url), 2) == '"int"'
    servers[0].truncated = registry.TRIES
    with pytest.raises(registry.RegistryError, match="/schemas/ids/3: IncompleteRead"):
        registry.schema_of_id(RegistryAddress(url=servers[0].url), 3)


@pytest.mark.parametrize("url", ["http://u:secret@host:1", "u:secret@host"])
def test_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    given = {"path": ".", "topic": "t", "value.format": "avro", "schema.registry.url": url}
    with pytest.raises(InvalidOption, match=r"set `schema\.registry\.basic\.auth") as failure:
        parse_options(given)
    assert "secret" not in str(failure.value)
