"""`tierlog tier verify` against an admin API that reports what a healthy cluster cannot show."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cli_inline import call

CLUSTER = {
    "node_id": 1,
    "brokers": [{"id": 1, "admin_url": ""}],
    "topics": [
        {
            "name": "orders",
            "partitions": [{"partition": 0, "leader": 1}, {"partition": 1, "leader": -1}],
        }
    ],
}
SEGMENT = {"base_offset": 100, "end_offset": 200, "bytes": 10, "uuid": "6f1d0c4e-0000-0000-0000-000000000001"}
PAGE = {"base_offset": 0, "end_offset": 100, "error": "the page is damaged"}


class Admin(BaseHTTPRequestHandler):
    offline: tuple[dict[str, Any], ...] = ()
    roots: tuple[dict[str, Any], ...] = ()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = {"topic": "orders", "partition": 0, "remote_bytes": 10}
        self._answer(
            {
                "/v1/quorum": {},
                "/v1/cluster": CLUSTER,
                "/v1/brokers": {"brokers": [{"id": 1, "fenced": False}]},
                "/v1/partitions": {"partitions": self.offline if "condition=offline" in query else []},
                "/v1/tier/status": {"partitions": [status]},
                "/v1/tier/segments": {"segments": [PAGE, SEGMENT] if "offset=0" in query else []},
            }[path]
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/tier/roots":  # one in each response
            done = 0 if body["after"] is None else body["after"][1]
            self._answer({"faults": self.roots[done : done + 1], "next": self._next(done)})
        else:
            self._answer({"position": None, "errors": [], "faults": []})

    def _next(self, done: int) -> list[Any] | None:
        return ["id", done + 1] if done + 1 < len(self.roots) else None

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def admin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_segments_behind_an_unreadable_page_are_verified(admin: str) -> None:
    ended = call("tier", "verify", "orders", "--json", "--admin", admin)
    assert ended.code == 1
    found = json.loads(ended.stdout)
    assert found["segments"] == 1
    [error] = found["errors"]
    assert (error["base_offset"], error["end_offset"], error["error"]) == (0, 100, PAGE["error"])


def test_partitions_without_a_leader_are_listed_and_fail_the_command(
    admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"topic": "orders", "partition": 1, "has_remote_data": True},
        {"topic": "local", "partition": 0, "has_remote_data": False},
    ]
    monkeypatch.setattr(Admin, "offline", rows)
    ended = call("tier", "verify", "--json", "--admin", admin)
    assert ended.code == 1 and "no broker leads it: orders-1" in ended.stderr
    assert json.loads(ended.stdout)["without_leader"] == ["orders-1"]


def test_manifest_roots_with_a_fault_are_listed_and_fail_the_command(
    admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"topic": "orders", "partition": n, "object": f"root-{n}", "fault": "missing"} for n in range(3)]
    monkeypatch.setattr(Admin, "roots", rows)
    ended = call("tier", "verify", "--json", "--admin", admin)
    assert ended.code == 1
    assert json.loads(ended.stdout)["manifests"] == rows
    ended = call("tier", "verify", "--admin", admin)
    assert "3 manifest roots or documents" in ended.stdout + ended.stderr and "root-2" in ended.stdout
