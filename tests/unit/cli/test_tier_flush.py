"""`tierlog tier flush` against admin APIs in states that a healthy cluster passes through."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cli_inline import call

from tierlog.cli import flushing
from tierlog.cli.admin import AdminApi
from tierlog.cli.commands import tier

Answer = tuple[int, dict[str, Any]]
ROW = {"topic": "orders", "partition": 0, "pending_bytes": 2048, "last_error": "503 Slow Down"}


class Admin(ThreadingHTTPServer):
    """Broker 1, and broker 2 under the same address. `leader` leads the partition of orders."""

    daemon_threads = True

    def __init__(self, flush: Callable[["Admin"], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.flush = flush
        self.leader = 1
        self.progress_read = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str) -> Answer:
        if path == "/v1/tier/flush":
            return self.flush(self)
        if path == "/v1/tier/status":
            self.progress_read.set()
            return 200, {"partitions": [ROW]}
        partitions = [{"partition": 0, "leader": self.leader}]
        configs = {"remote.storage.enable": "true"}
        topics = [{"name": "orders", "configs": configs, "partitions": partitions}]
        brokers = [{"id": one, "admin_url": self.url} for one in (1, 2)]
        return 200, {"node_id": 1, "brokers": brokers, "topics": topics}


class Handler(BaseHTTPRequestHandler):
    server: Admin

    def do_GET(self) -> None:
        status, document = self.server.answer(self.path.partition("?")[0])
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        with suppress(BrokenPipeError):  # the command has given up
            self.end_headers()
            self.wfile.write(data)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def admins() -> Iterator[Callable[[Callable[[Admin], Answer]], Admin]]:
    started: list[Admin] = []

    def start(flush: Callable[[Admin], Answer]) -> Admin:
        started.append(Admin(flush))
        return started[-1]

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


Admins = Callable[[Callable[[Admin], Answer]], Admin]


def test_progress_is_printed_until_the_leader_responds(
    admins: Admins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "PROGRESS_INTERVAL_S", 0.01)

    def flush(admin: Admin) -> Answer:
        admin.progress_read.wait(30)
        return 200, {"partitions": [ROW]}

    ended = call("tier", "flush", "orders", "--admin", admins(flush).url)
    assert ended.code == 0 and "topic orders is completely uploaded" in ended.stderr
    assert "waiting for the upload of orders: 2.0 KiB left; orders-0: 503 Slow Down\n" in ended.stderr


def test_a_new_leader_is_asked_if_the_leadership_moves(
    admins: Admins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "METADATA_PAUSE_S", 0)

    def flush(admin: Admin) -> Answer:
        if admin.leader == 2:
            return 200, {"partitions": [ROW]}
        admin.leader = 2
        return 409, {"error": "this broker is no longer the leader of orders-0"}

    assert flushing.flush(AdminApi(admins(flush).url), "orders", 30) == [ROW]


def test_a_conflict_that_stays_is_an_error(admins: Admins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "METADATA_PAUSE_S", 0)
    refuse = lambda _: (409, {"error": "orders-0: remote.log.copy.disable is set"})  # noqa: E731
    ended = call("tier", "flush", "orders", "--admin", admins(refuse).url)
    assert ended.code == 1 and "remote.log.copy.disable is set" in ended.stderr
    assert "`tierlog tier status orders`" in ended.stderr


def test_an_upload_that_takes_too_long_is_no_unreachable_broker(
    admins: Admins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "FLUSH_TIMEOUT_S", 1.0)
    release = threading.Event()

    def flush(_: Admin) -> Answer:
        release.wait(30)
        return 503, {}

    ended = call("tier", "flush", "orders", "--admin", admins(flush).url)
    release.set()
    assert ended.code == 1 and "topic orders is not completely uploaded after 1 s" in ended.stderr
    assert "`tierlog tier status orders`" in ended.stderr and "tierlog dev" not in ended.stderr
