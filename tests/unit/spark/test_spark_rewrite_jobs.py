"""Jobs `rewrite` and `compact` without Spark: what they refuse, and how they speak to the admin API."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tierlog.base.types import TopicIdPartition
from tierlog.client.admin import AdminRefused, AdminUnreachable, ClusterAdmin
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs import replacing
from tierlog.spark.jobs.arguments import Job, JobFailed, NoProgress, parse
from tierlog.spark.jobs.compact import JOB as COMPACT
from tierlog.spark.jobs.replacing import NotReplaced, Replacer
from tierlog.spark.jobs.rewrite import GROUPS_AT_ONCE, ROUND_MAX, PlannedGroup, rounds_of
from tierlog.spark.jobs.rewrite import JOB as REWRITE
from tierlog.spark.jobs.rewrite_plan import Group, RewriteLimits

WHERE = TopicIdPartition(UUID(int=7), 0)
LIMITS = {
    "leader_epoch": 3,
    "log_start_offset": 0,
    "local_log_start_offset": 9,
    "index_interval_bytes": 4096,
    "bytes_max": 5,
    "span_ms_max": None,
    "compaction": None,
}


class Server:
    """Two nodes on one port: answers /v1/cluster, and what `answers` has for other requests, in order."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def do_POST(self) -> None:
                server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                server.answer(self)

            def log_message(self, *_: object) -> None:
                """No log."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path.partition("?")[0])
        status, body = (200, self.cluster()) if handler.path == "/v1/cluster" else self.answers.pop(0)
        content = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def cluster(self) -> dict[str, Any]:
        partitions = [{"partition": 0, "leader": 2}, {"partition": 1, "leader": -1}]
        return {
            "node_id": 1,
            "brokers": [{"id": 1, "admin_url": "http://other:1"}, {"id": 2, "admin_url": self.url}],
            "topics": [{"id": str(WHERE.topic_id), "name": "t", "partitions": partitions}],
        }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(replacing, "FIRST_PAUSE_S", 0.001)
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_leader_of_a_partition_is_asked(server: Server) -> None:
    admin = ClusterAdmin(f"http://127.0.0.1:1, {server.url}")  # no node is at the first address
    assert admin.leader(WHERE) == server.url
    with pytest.raises(AdminRefused, match="partition 1 of t has no leader"):
        admin.leader(WHERE._replace(partition=1))
    server.answers = [(409, {"error": "the manifest has changed"})]
    with pytest.raises(AdminRefused, match="the manifest has changed") as refused:
        admin.post(WHERE, "/v1/x", {})
    assert refused.value.status == 409
    with pytest.raises(AdminUnreachable):
        ClusterAdmin("http://127.0.0.1:1").refresh()


def test_busy_leader_is_asked_again_and_a_conflict_is_not(server: Server) -> None:
    replacer = Replacer(server.url, 60)
    server.answers = [(503, {"error": "busy"}), (503, {"error": "busy"}), (200, LIMITS)]
    assert replacer.limits(WHERE).local_log_start_offset == 9
    server.answers = [(409, {"error": "not the leader"})]
    with pytest.raises(NotReplaced, match="not the leader"):
        replacer.limits(WHERE)
    server.answers = [(503, {"error": "busy"})] * 20
    with pytest.raises(NotReplaced, match="busy"):
        replacer.limits(WHERE)


def test_repeated_requests_of_a_lease_have_one_id(server: Server) -> None:
    old = [SimpleNamespace(uuid=UUID(int=1), base_offset=0, end_offset=5)]
    begun = (200, {"new": [{"uuid": str(UUID(int=9)), "leader_epoch": 3}]})
    replacer = Replacer(server.url, 60)
    server.answers = [(503, {"error": "lost"}), begun, begun]
    for _ in range(2):
        assert replacer.begin(WHERE, old).uuid == UUID(int=9)  # type: ignore[arg-type]
    first, second, other = [body["request_id"] for body in server.bodies]
    assert first == second != other


def test_job_fails_if_no_node_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "FIRST_PAUSE_S", 0.001)
    with pytest.raises(JobFailed, match="tierlog cluster health"):
        Replacer("http://127.0.0.1:1", 60).limits(WHERE)


def test_rounds_are_limited_for_a_partition_and_as_a_whole() -> None:
    """All groups of a round are announced before the first one is written."""
    sources = [Source("t", WHERE.topic_id, number) for number in range(300)]
    group, limits = Group((), False), RewriteLimits(1, None, 1, None)
    planned = [PlannedGroup(source, group, limits, 1) for source in sources for _ in range(9)]
    rounds = list(rounds_of(planned))
    assert sum(map(len, rounds)) == len(planned)
    assert max(map(len, rounds)) == ROUND_MAX
    assert max(Counter(one.source for one in rounds[0]).values()) == GROUPS_AT_ONCE


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (REWRITE, [], "nothing to do: give --codec"),
        (REWRITE, ["--segment-mib", "2048"], "--segment-mib must be 1 to 1024"),
        (REWRITE, ["--codec", "zstd", "--lease-seconds", "0"], "--lease-seconds"),
        (COMPACT, ["--lease-seconds", "601"], "--lease-seconds"),
        (COMPACT, ["--map-mib", "0"], "--map-mib"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(job: Job, arguments: list[str], message: str) -> None:
    given = ["--path", ".", "--admin", "http://127.0.0.1:1", *arguments]
    with pytest.raises(JobFailed, match=message):
        job.run(parse(job, given), NoProgress())
