"""`tierlog tier verify` against an admin API that reports what a healthy cluster cannot show."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cli_inline import call

from tierlog.cli.commands import tier_checks
from tierlog.cli.commands.tier_checks import _Progress

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
    segments: tuple[dict[str, Any], ...] = (PAGE, SEGMENT)
    size = 10
    verified: tuple[str, ...] | list[str] = ()
    hold: tuple[int, threading.Event, threading.Event] | None = None
    """The number of the verification that does not end before the second event; the first one is set."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = {"topic": "orders", "partition": 0, "remote_bytes": self.size}
        offset = int(parse_qs(query).get("offset", ["0"])[0])
        self._answer(
            {
                "/v1/quorum": {},
                "/v1/cluster": CLUSTER,
                "/v1/brokers": {"brokers": [{"id": 1, "fenced": False}]},
                "/v1/partitions": {"partitions": self.offline if "condition=offline" in query else []},
                "/v1/tier/status": {"partitions": [status]},
                "/v1/tier/segments": {
                    "segments": [row for row in self.segments if row["end_offset"] > offset]
                },
            }[path]
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/tier/roots":  # one in each response
            done = 0 if body["after"] is None else body["after"][1]
            self._answer({"faults": self.roots[done : done + 1], "next": self._next(done)})
        else:
            if "uuid" in body:
                self.verified = [*self.verified, body["uuid"]]
                Admin.verified = self.verified
                if self.hold is not None and len(self.verified) == self.hold[0] + 1:
                    self.hold[1].set()
                    self.hold[2].wait(60)
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


def test_manifest_faults_of_an_interrupted_run_are_in_the_result_of_the_resumed_one(
    admin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The brokers have written the manifests again, so that a second check finds nothing."""
    rows = [{"topic": "orders", "partition": 0, "object": "root-0", "fault": "damaged"}]
    words = ["tier", "verify", "--resume", str(tmp_path / "progress"), "--json", "--admin", admin]
    monkeypatch.setattr(Admin, "roots", rows)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(tier_checks, "_verify_all", interrupt)
        assert call(*words).code == 130
    monkeypatch.setattr(Admin, "roots", ())
    monkeypatch.setattr(Admin, "segments", (SEGMENT,))
    ended = call(*words)
    assert ended.code == 1 and json.loads(ended.stdout)["manifests"] == rows


def many_segments(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Serve one partition of so many segments, all in one response."""
    rows = [
        {"base_offset": 10 * n, "end_offset": 10 * n + 10, "bytes": 10, "uuid": str(uuid.UUID(int=n))}
        for n in range(count)
    ]
    monkeypatch.setattr(Admin, "segments", rows)
    monkeypatch.setattr(Admin, "verified", [])


def test_sample_of_some_percent_verifies_about_as_many_segments(
    admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_segments(monkeypatch, 400)
    ended = call("tier", "verify", "--sample", "30", "--json", "--admin", admin)
    found = json.loads(ended.stdout)
    assert ended.code == 0 and found["segments"] == len(set(Admin.verified)) == len(Admin.verified)
    assert 70 <= found["segments"] <= 170  # 120 expected; less likely than one in a million otherwise
    first = set(Admin.verified)
    monkeypatch.setattr(Admin, "verified", [])
    call("tier", "verify", "--sample", "30", "--json", "--admin", admin)
    assert set(Admin.verified) != first  # another run reads others


@pytest.mark.parametrize("sample", ["100", "30"])
def test_run_that_ctrl_c_ends_is_resumed_where_it_was(
    admin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sample: str
) -> None:
    """The real command, interrupted while a segment is verified: that one is read again, and no other one."""
    many_segments(monkeypatch, 60)
    held, go = threading.Event(), threading.Event()
    monkeypatch.setattr(Admin, "hold", (5, held, go))
    file = tmp_path / "progress"
    words = ["tier", "verify", "--sample", sample, "--resume", str(file), "--json", "--admin", admin]
    with subprocess.Popen([sys.executable, "-m", "tierlog.cli.main", *words]) as process:
        assert held.wait(60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    go.set()
    saved = json.loads(file.read_text())
    assert saved["segments"] == 5
    before, interrupted = Admin.verified[:5], Admin.verified[5]
    monkeypatch.setattr(Admin, "hold", None)
    monkeypatch.setattr(Admin, "verified", [])
    ended = call(*words)
    assert ended.code == 0 and not file.exists()
    chooses = _Progress(float(sample), None, seed=saved["seed"]).chooses
    chosen = [row["uuid"] for row in Admin.segments if chooses("orders-0", row["base_offset"])]
    assert [*before, *Admin.verified] == chosen and Admin.verified[0] == interrupted
    assert json.loads(ended.stdout)["segments"] == len(chosen)


def test_progress_bar_fills_on_a_terminal(admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    many_segments(monkeypatch, 20)
    monkeypatch.setattr(Admin, "size", 200)
    ours, theirs = pty.openpty()
    words = ["tier", "verify", "--json", "--admin", admin]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "tierlog.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while some := os.read(ours, 4096):
                shown += some
        assert process.stdout is not None and json.loads(process.stdout.read())["segments"] == 20
    os.close(ours)
    assert process.returncode == 0
    assert b"verifying" in shown and b"200/200 bytes" in shown
