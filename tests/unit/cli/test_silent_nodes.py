"""Commands beside nodes that refuse connections, or accept them and never respond, as paused processes do."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from cli_inline import call
from scripted_broker import broker

from tierlog.broker.diagnosis.evidence import QUORUM, Answers
from tierlog.cli import admin, groups, observation
from tierlog.cli.client import KafkaClient
from tierlog.cli.errors import CliError, ExitCode
from tierlog.client import cluster
from tierlog.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from tierlog.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker


def test_all_admin_apis_that_do_not_respond_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "PROBE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refused = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(CliError) as failed:
            admin.admin_api(f"{silent},{refused}")
        with pytest.raises(admin.NoResponse):
            admin.admin_api(silent)
    assert failed.value.code is ExitCode.UNREACHABLE
    assert failed.value.message.startswith("cannot reach any of 2 admin APIs: ")
    assert f"{silent} did not respond within 0.1 s" in failed.value.message
    assert f"{refused}: " in failed.value.message and "refused" in failed.value.message


class Busy(BaseHTTPRequestHandler):
    """The admin API of a broker with many partitions: it takes long to describe them."""

    DOCUMENTS: ClassVar[dict[str, Any]] = {
        "/v1/quorum": {},
        "/v1/cluster": {
            "node_id": 1,
            "brokers": [{"id": 1, "admin_url": ""}],
            "topics": [{"name": "orders", "partitions": [{"partition": 0, "leader": 1}]}],
        },
        "/v1/tier/status": {"partitions": []},
    }
    TAKES_S = 2.5
    closing = threading.Event()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/v1/tier/status":
            self.closing.wait(self.TAKES_S)
        content = json.dumps(self.DOCUMENTS[path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_broker_that_responds_is_waited_for_while_it_describes_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin, "READ_TIMEOUT_S", Busy.TAKES_S - 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ended = call("tier", "status", "--json", "--admin", f"http://127.0.0.1:{server.server_port}")
        Busy.closing.set()
        server.shutdown()
    assert ended.code == ExitCode.OK, ended


def test_self_test_says_that_the_network_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    answers = Answers(urls={1: url}, documents={1: {QUORUM: {}}})
    monkeypatch.setattr(observation, "ask", lambda seeds, paths: answers)
    ended = call("cluster", "self-test", "--admin", url, "--json", "-t", "store", "-t", "network")
    assert ended.code == ExitCode.UNAVAILABLE, ended
    lines = {line["what"]: line for line in json.loads(ended.stdout)["lines"]}
    assert lines.keys() == {"store", "network"}
    assert lines["network"]["problem"] == "no node knows the brokers"


def test_groups_of_a_broker_that_is_paused_are_listed_once_it_is_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as paused:

        def respond(name: str, port: int) -> Any:
            requests.append(name)
            monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 0.1)  # this connection is open
            if name == "ListGroups":
                moved = ["of 2"] if requests.count("Metadata") > 1 else []
                found = [ListedGroup(group_id=name, protocol_type="") for name in ["of 1", *moved]]
                return ListGroupsResponse(groups=found)
            ports = [port] if requests.count("Metadata") > 1 else [port, paused.getsockname()[1]]
            nodes = [
                MetadataResponseBroker(node_id=one, host="127.0.0.1", port=at)
                for one, at in enumerate(ports, 1)
            ]
            return MetadataResponse(brokers=nodes, topics=[])

        with broker(respond) as address, KafkaClient(address) as client:
            assert [row["group"] for row in groups.rows(client)] == ["of 1", "of 2"]
    assert requests == ["Metadata", "Metadata", "ListGroups"]
