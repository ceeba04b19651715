"""Commands that wait for moves, to remove their throttle, while the node that they ask restarts or ends."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tierlog.cli import moves
from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError, ExitCode

ORDERS = {("orders", 0)}


class MovingNode:
    """The admin API of a node that ends each stream of changes in the middle of a chunk. `moving`: whether
    the partition is being moved, by the number of streams so far."""

    def __init__(self) -> None:
        self.streams = 0
        self.moving: Callable[[int], bool] = lambda streams: True
        self.on_stream: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/v1/events":
                    outer.streams += 1
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"a\r\ndata: {}\n\n\r\nff\r\n")
                    self.wfile.flush()
                    self.close_connection = True
                    outer.on_stream()
                    return
                rows = [{"topic": "orders", "partition": 0}] * outer.moving(outer.streams)
                content = json.dumps({"partitions": rows}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def api(self) -> AdminApi:
        return AdminApi(f"http://127.0.0.1:{self.server.server_port}", timeout_s=5)

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[MovingNode]:
    monkeypatch.setattr(moves, "RECONNECT_S", 0.0)
    made = MovingNode()
    yield made
    made.end()


def test_a_stream_of_changes_that_breaks_off_is_requested_again(node: MovingNode) -> None:
    node.moving = lambda streams: streams < 3
    moves.wait_until_moved(node.api, ORDERS)
    assert node.streams == 3


def test_throttle_that_stays_is_named_if_the_node_ends(node: MovingNode) -> None:
    def end_once() -> None:
        if node.streams == 2:
            node.server.server_close()  # no further connection is accepted

    node.on_stream = end_once
    with pytest.raises(CliError) as ended:
        moves.wait_until_moved(node.api, ORDERS)
    assert ended.value.code is ExitCode.UNREACHABLE
    assert ended.value.hint.startswith("The copies continue with their throttle.")
    assert "`tierlog partition unthrottle`" in ended.value.hint


def test_throttle_that_stays_is_named_after_an_interruption(
    node: MovingNode, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(AdminApi):
        def get(self, path: str, **query: object) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moves.wait_until_moved(Interrupted(node.api.url, timeout_s=5), ORDERS)
    assert "`tierlog partition unthrottle`" in capsys.readouterr().err
