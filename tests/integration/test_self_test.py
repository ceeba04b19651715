"""`tierlog cluster self-test`: measures a node, leaves nothing behind, and ends on a broken cluster."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cli_inline import Ended, call
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.self_test import NEEDS, Verdict, measure_nodes
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

QUICK = ("--seconds", "0.4", "--disk-mib", "1")
MEASURED = (0, ExitCode.DEGRADED, ExitCode.UNAVAILABLE)
"""The verdict depends on the machine."""


@pytest.fixture(autouse=True)
def no_local_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield


def self_test(*words: str) -> Ended:
    return call("cluster", "self-test", *QUICK, *words)


def lines(ended: Ended) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ended.stdout)["lines"]
    return found


def files_below(directory: Path) -> set[str]:
    return {str(file) for file in directory.rglob("*") if "self-test" in file.name}


def test_disks_store_and_network_are_measured_and_nothing_is_left(
    tierlog_session_broker: TierlogBroker,
) -> None:
    ended = self_test("--bootstrap", tierlog_session_broker.bootstrap, "--json")
    assert ended.code in MEASURED, ended
    found = lines(ended)
    assert {line["what"] for line in found} == {need.what for need in NEEDS.values()}
    assert all(line["verdict"] != Verdict.UNKNOWN and line["value"] for line in found)
    assert ended.stderr.startswith("target: ")
    assert files_below(tierlog_session_broker.data_dir) == set()


def test_nodes_that_do_not_respond_are_named_beside_the_others(
    tierlog_session_broker: TierlogBroker,
) -> None:
    urls = {1: tierlog_session_broker.admin_url, 2: "http://127.0.0.1:1", 3: "http://127.0.0.1:1"}
    found = list(measure_nodes(urls, {1, 3}, ["disk"], 0.1, 1 << 20))
    assert {line.verdict for line in found if line.node == 1} & {Verdict.OK, Verdict.SLOW, Verdict.BAD}
    problems = [line.problem for line in found if line.verdict is Verdict.UNKNOWN]
    assert problems[0] == "the node does not respond" and "refused" in problems[1]


def test_only_the_wanted_tests_run(tierlog_session_broker: TierlogBroker) -> None:
    ended = self_test("--bootstrap", tierlog_session_broker.bootstrap, "-t", "network", "--json")
    assert [line["what"] for line in lines(ended)] == ["round trip, p99"]
    shown = self_test("--bootstrap", tierlog_session_broker.bootstrap, "-t", "network")
    assert "at most 10 ms" in shown.stdout and "between nodes" in shown.stderr


def test_a_store_that_is_down_is_named(
    tierlog_broker_factory: TierlogBrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "unused")
    url = "s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=x"
    broker = tierlog_broker_factory({"object.store.url": url})
    ended = self_test("--bootstrap", broker.bootstrap, "-t", "store", "--json")
    assert ended.code == ExitCode.UNAVAILABLE
    assert any(line["where"] == "object store" and line["problem"] for line in lines(ended))


def test_a_second_test_is_refused_while_the_store_is_measured(
    tierlog_broker_factory: TierlogBrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "unused")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&region=x"
        broker = tierlog_broker_factory({"object.store.url": url})
        body = {"tests": ["store"], "seconds": 0.1}
        words = (AdminApi(broker.admin_url, timeout_s=60).post, "/v1/self-test", body)
        with ThreadPoolExecutor() as pool:
            first = pool.submit(*words)
            until(lambda: first.done() or _is_refused(broker.admin_url), "the first test is under way")
            assert not first.done()
            assert first.result()["store"]["error"]
    assert not _is_refused(broker.admin_url)


def _is_refused(url: str) -> bool:
    try:
        AdminApi(url).post("/v1/self-test", {"tests": []})
    except CliError as failure:
        assert failure.status == 409
        return True
    return False


def test_a_paused_node_does_not_hold_up_the_test(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        ended = self_test("--admin", broker.admin_url)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert ended.code == ExitCode.UNREACHABLE and "no node responds" in ended.stderr


@pytest.mark.parametrize(
    "body", [{"seconds": 0}, {"seconds": 31}, {"disk_bytes": 1 << 40}, {"seconds": "x"}, {"other": 1}]
)
def test_a_node_bounds_what_it_is_asked_for(
    body: dict[str, object], tierlog_session_broker: TierlogBroker
) -> None:
    with pytest.raises(CliError) as refused:
        AdminApi(tierlog_session_broker.admin_url).post("/v1/self-test", body)
    assert refused.value.status == 400


def test_a_node_that_is_not_there_is_an_error(tierlog_session_broker: TierlogBroker) -> None:
    ended = self_test("--bootstrap", tierlog_session_broker.bootstrap, "--node", "4711")
    assert ended.code == ExitCode.NOT_FOUND
