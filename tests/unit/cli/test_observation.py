"""Observation of clusters: one address of a voter leads to all nodes; and nodes that refuse, or are down."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli_inline import call

from tierlog.broker.diagnosis.evidence import QUORUM, observation_of
from tierlog.broker.diagnosis.health import assess
from tierlog.cli import cluster_files
from tierlog.cli.errors import ExitCode
from tierlog.cli.observation import ask

VERSIONS = "/v1/versions"
VOTER, BROKER, SILENT, OTHER = 1, 11, 12, 13


@contextmanager
def node(documents: dict[str, dict[str, Any]], missing: int = 404) -> Iterator[str]:
    """URL of an admin API that serves these documents, which may be filled in later. `missing`: its status
    for all others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path.partition("?")[0])
            content = json.dumps(found).encode()
            self.send_response(missing if found is None else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def quorum(node_id: int, url: str, role: str) -> dict[str, Any]:
    voters = {str(VOTER): url}
    return {
        "node_id": node_id,
        "cluster_id": "c",
        "role": role,
        "term": 1,
        "applied_index": 5,
        "voters": voters,
    }


def test_brokers_without_a_vote_are_asked_too() -> None:
    documents: dict[int, dict[str, dict[str, Any]]] = {VOTER: {}, BROKER: {}}
    with ExitStack() as stack:
        urls = {one: stack.enter_context(node(found)) for one, found in documents.items()}
        urls[SILENT] = "http://silent.invalid:9644"
        urls[OTHER] = urls[BROKER]  # the address of its own machine, where another node responds to this one
        rows = [
            {"id": one, "admin_url": urls[one], "fenced": False, "stopping": False}
            for one in (BROKER, SILENT, OTHER)
        ]
        counts = {"offline": 0, "below-min-in-sync": 0, "under-replicated": 0}
        for one, found in documents.items():
            found[QUORUM] = quorum(one, urls[VOTER], "leader" if one == VOTER else "observer")
            found[VERSIONS] = {"version": "1.0.0"}
        documents[VOTER]["/v1/brokers"] = {"brokers": rows, "assigned": [BROKER], "partitions": counts}
        answers = ask([urls[VOTER]], [VERSIONS])
    assert answers.of(VERSIONS).keys() == {VOTER, BROKER}
    del urls[OTHER]
    assert dict(answers.urls) == urls
    problems = [problem.what for problem in assess(observation_of(answers)).problems]
    assert problems == [f"node {SILENT}: it does not respond"]


def test_waiting_for_health_ends_at_once_if_it_cannot_help() -> None:
    begin = time.monotonic()
    wrong = call("cluster", "health", "--wait", "3600", "--admin", "localhost:9644")
    assert wrong.code == ExitCode.USAGE and "is not the URL of an admin API" in wrong.stderr
    with node({}, missing=401) as url:
        refused = call("cluster", "health", "--wait", "3600", "--admin", url)
    assert refused.code == ExitCode.FAILED and "TIERLOG_ADMIN_USER" in refused.stderr
    assert time.monotonic() - begin < 60


def test_doctor_of_a_local_cluster_that_is_down_ends_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = tmp_path / "cluster"
    cluster_files.save(directory, cluster_files.new_plan(3))
    cluster_files.set_last_started(directory)
    ended = call("doctor", "--json")
    assert ended.code == ExitCode.UNREACHABLE
    assert {one["rule"] for one in json.loads(ended.stdout)["findings"]} >= {"quorum", "node"}
