"""Observation of a cluster whose brokers have no vote: one address of a voter leads to all nodes."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tierlog.broker.diagnosis.evidence import QUORUM, observation_of
from tierlog.broker.diagnosis.health import assess
from tierlog.cli.observation import ask

VERSIONS = "/v1/versions"
VOTER, BROKER, SILENT, OTHER = 1, 11, 12, 13


@contextmanager
def node(documents: dict[str, dict[str, Any]]) -> Iterator[str]:
    """URL of an admin API that serves these documents, which may be filled in later."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = documents.get(self.path.partition("?")[0])
            content = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
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
        with socket.create_server(("127.0.0.1", 0)) as closed:
            urls[SILENT] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        urls[OTHER] = urls[BROKER]  # its address belongs to another node now
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
    assert dict(answers.urls) == urls
    problems = [problem.what for problem in assess(observation_of(answers)).problems]
    assert problems == [f"node {SILENT}: it does not respond", f"node {OTHER}: it does not respond"]
