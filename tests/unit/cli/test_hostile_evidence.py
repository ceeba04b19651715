"""`tierlog doctor` with servers that are no nodes, responses that do not end, and bundles made to do harm."""

import gzip
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_inline import call

from tierlog.broker.diagnosis.evidence import QUORUM, TIER, Answers, Evidence
from tierlog.broker.diagnosis.findings import Finding, diagnose, report
from tierlog.cli import bundle, observation
from tierlog.cli.evidence import manifests
from tierlog.cli.observation import ask

Respond = Callable[[str], bytes]
EMPTY: dict[str, Any] = {
    "version": 1,
    "taken_at_ms": 1_700_000_000_000,
    "hanging": [],
    "not_read": [],
    **{name: {} for name in ("urls", "documents", "clocks", "settings", "processes", "roles")},
}


class Server:
    """Responds with the bytes that `respond` returns for a path, and says that `missing` more follow, which
    come when the server ends. `urls`: of other nodes that it names."""

    def __init__(self) -> None:
        self.respond: Respond = lambda path: b"{}"
        self.missing: Callable[[str], int] = lambda path: 0
        self.closes = False
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = outer.respond(self.path)
                missing = outer.missing(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(content) + missing))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
                while missing and not outer.closes and not outer.ended.wait(0.05):
                    self.wfile.write(b" ")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def quorum(self, node: int = 1, **changes: Any) -> bytes:
        """GET /v1/quorum of a node that leads a quorum of one."""
        document = {"node_id": node, "cluster_id": "c", "role": "leader", "term": 1, "applied_index": 1}
        return json.dumps({**document, "voters": {"1": self.url}, "learners": {}, **changes}).encode()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.mark.parametrize(
    "content", [b'{"a":1}', b'{"node_id":"x","voters":[1]}', b"[" * 100_000, b"\xff", b"null"]
)
def test_server_that_is_no_node_is_no_response(server: Server, content: bytes) -> None:
    server.respond = lambda path: content
    ended = call("doctor", "--admin", server.url)
    assert ended.code in (1, 3) and server.url in ended.stderr


def test_nonsense_beside_the_quorum_is_reported_by_each_rule(server: Server) -> None:
    nonsense = b'{"directories":"a","brokers":3,"partitions":{"a":1},"problems":5,"damaged":[1]}'
    server.respond = lambda path: server.quorum() if path == QUORUM else nonsense
    ended = call("doctor", "--json", "--admin", server.url)
    assert ended.code == 5
    assert "unreadable" in {one["rule"] for one in json.loads(ended.stdout)["findings"]}


def test_names_of_topics_become_names_of_files_only_if_they_are_names_of_topics(server: Server) -> None:
    names = ["orders", "../../orders", "/etc/orders", "", "a b", 7]
    rows = [{"topic": name, "partition": 0, "remote_segments": 1} for name in names]
    responses = {QUORUM: server.quorum(), TIER: json.dumps({"partitions": rows}).encode()}
    server.respond = lambda path: responses.get(path, b'{"segments":[]}')
    not_read: list[str] = []
    found = manifests(ask([server.url], [TIER]), not_read)
    assert (found.keys(), not_read) == ({"orders-0.json", "7-0.json"}, [])


def test_response_that_breaks_off_is_named(server: Server) -> None:
    server.closes = True
    server.respond = lambda path: server.quorum() if path == QUORUM else b'{"damaged":'
    server.missing = lambda path: 0 if path == QUORUM else 100
    ended = call("doctor", "--json", "--admin", server.url)
    [finding] = [one for one in json.loads(ended.stdout)["findings"] if one["rule"] == "not-read"]
    assert ended.code == 5 and "the response lacks 100 bytes" in finding["what"]


def test_response_that_trickles_ends_at_the_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "DEADLINE_S", 0.3)
    server.respond = lambda path: server.quorum() if path == QUORUM else b""
    server.missing = lambda path: 0 if path == QUORUM else 1_000_000
    answers = ask([server.url], ["/v1/scrub"])
    assert "/v1/scrub of node 1: it did not respond in time" in answers.unread


def test_server_that_names_ever_new_nodes_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "NODES_MAX", 5)
    named: list[int] = []

    def respond(path: str) -> bytes:
        named.append(len(named) + 1)
        return server.quorum(named[-1], voters={str(1000 + named[-1]): f"{server.url}/{named[-1]}"})

    server.respond = respond
    assert len(ask([server.url], []).urls) < 20


def archive(path: Path, **files: bytes) -> Path:
    """A bundle with these files; `evidence` names evidence.json."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"bundle/{'evidence.json' if name == 'evidence' else name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"taken_at_ms": 10**30},
        {"taken_at_ms": "x"},
        {"clocks": {"1": "x"}},
        {"not_read": [5]},
        {"documents": {"1": 5}},
        {"processes": {"1": "gone"}},
    ],
)
def test_bundle_with_wrong_types_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = archive(tmp_path / "b.tar.gz", evidence=json.dumps(EMPTY | changes).encode())
    ended = call("doctor", "--bundle", str(found))
    assert ended.code == 1 and "is not a complete debug bundle" in ended.stderr


def test_deep_document_and_damaged_compression_are_refused(tmp_path: Path) -> None:
    deep = archive(tmp_path / "deep.tar.gz", evidence=b"[" * 200_000)
    content = bytearray(archive(tmp_path / "b.tar.gz", evidence=json.dumps(EMPTY).encode()).read_bytes())
    content[20:60] = bytes(40)
    (tmp_path / "damaged.tar.gz").write_bytes(content)
    for found in (deep, tmp_path / "damaged.tar.gz"):
        ended = call("doctor", "--bundle", str(found))
        assert ended.code == 1 and "is not a complete debug bundle" in ended.stderr


def test_bundle_with_more_than_its_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = json.dumps(EMPTY).encode()
    long_header = tarfile.TarInfo("x")
    long_header.type, long_header.size = b"x", 6 << 30
    with gzip.open(tmp_path / "header.tar.gz", "wb") as file:
        file.write(long_header.tobuf(format=tarfile.USTAR_FORMAT) + bytes(4096))
    assert "too large" in call("doctor", "--bundle", str(tmp_path / "header.tar.gz")).stderr

    monkeypatch.setattr(bundle, "READ_BYTES_MAX", len(evidence) + 100)
    metrics = {f"metrics/{node}.txt": bytes(60) for node in (1, 2)}
    found = archive(tmp_path / "sum.tar.gz", evidence=evidence, **metrics)
    assert "metrics/2.txt has 60 bytes" in call("doctor", "--bundle", str(found)).stderr

    monkeypatch.setattr(bundle, "MEMBERS_MAX", 1)
    found = archive(tmp_path / "many.tar.gz", evidence=evidence, other=b"")
    assert "more than 1 files" in call("doctor", "--bundle", str(found)).stderr


def test_names_forge_no_finding_and_no_command() -> None:
    hanging = {"topic": "x\n`; rm -rf ~ #\x1b[2J", "partition": 0, "start_offset": 1}
    given = Evidence(
        taken_at_ms=0, hanging=[hanging], not_read=["\x1b[31mx\nUNAVAILABLE: forged"], answers=Answers()
    )
    findings = diagnose(given)
    [finding] = [one for one in findings if one.rule == "hanging-transaction"]
    assert "`tierlog txn abort 'x\n`; rm -rf ~ #\x1b[2J' 0 1`" in finding.next
    text = report(findings)
    assert text.replace("\n", "").isprintable()
    lines = text.splitlines()
    assert sum(line.startswith("UNAVAILABLE") for line in lines) == sum(
        one.urgency == "unavailable" for one in findings
    )


def test_rule_that_fails_does_not_hide_the_others() -> None:
    given = Evidence(
        taken_at_ms=0,
        answers=Answers(documents={1: {"/v1/directories": {"directories": [{}]}}}),
        metrics={1: "tierlog_unexpected_failures_total x\ntierlog_unexpected_failures_total 2\n"},
    )
    found: dict[str, Finding] = {one.rule: one for one in diagnose(given)}
    assert found["unreadable"].urgency == "risk" and "directories" in found["unreadable"].what
    assert "2 internal errors" in found["unexpected-failure"].what
