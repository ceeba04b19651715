"""Commands that print a table while most brokers are paused: each ends, and names those that are silent."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import Ended, call, commands

from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.targets import READ_TIMEOUT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAUSED = (1, 2)
DEADLINE_S = len(PAUSED) * READ_TIMEOUT_S
"""One paused broker after the other takes longer. The rest is for a busy machine."""

SEARCH_S = 2.5
"""How long a broker takes to respond to DescribeQuorum without a leader, by which some commands find an admin
API first."""

SEARCH = ("tier ", "cluster logdirs", "cluster versions")

NEED_ALL = [
    "tier status",
    "tier status orders",
    "group list",
    "txn list",
    "txn find-hanging",
    "tier verify",
    "tier gc --dry-run",
    "security check",
    "cluster config get",
    "cluster config export",
    "cluster config diff --brokers 1,2",
]
"""They have no result without the brokers that are paused, and name them."""

SHOW_THE_REST = ["topic list", "topic describe orders", "cluster logdirs", "cluster versions"]
"""They name the paused brokers beside what the others know."""

NEED_ONE = [
    "group describe billing",
    "group export billing",
    "tier explain orders 0 0",
    "txn describe ledger",
    "broker settings 1",
]
"""They need one broker, which may be a paused one."""

OF_ANY = [
    "acl list",
    "broker list",
    "broker settings",
    "cluster health",
    "cluster info",
    "partition list",
    "partition list --under-replicated",
    "quorum status",
    "quota list",
    "tier snapshots list",
    "user list",
]
"""Any broker can respond."""

IN_CI = ("tier status", "group list", "topic list", "partition list")
"""The others wait ten seconds each: they are for the night."""


def each(chosen: list[str]) -> pytest.MarkDecorator:
    nightly = pytest.mark.nightly
    parameters = [pytest.param(one, marks=() if one in IN_CI else nightly) for one in chosen]
    return pytest.mark.parametrize("command", parameters)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("silent")
    with LocalCluster(directory, 3, settings={"offsets.topic.num.partitions": 3}) as cluster:
        at = ("--bootstrap", cluster.bootstrap)
        tiered = ("--config", "remote.storage.enable=true")
        assert call("topic", "create", "orders", "-p", "6", "-r", "3", *tiered, *at).code == 0
        assert call("produce", "orders", *at, stdin=b"one\ntwo\n").code == 0
        read = call("consume", "orders", "--group", "billing", "--from-beginning", "--exit-at-end", *at)
        assert read.code == 0, read.stderr
        paused = [cluster.nodes[node].pid for node in PAUSED]
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        yield cluster
        for pid in paused:
            os.kill(pid, signal.SIGCONT)


def ended_in_time(cluster: LocalCluster, command: str) -> Ended:
    begun = time.monotonic()
    ended = call(*command.split(), "--bootstrap", cluster.bootstrap)
    took_s = time.monotonic() - begun
    assert took_s < DEADLINE_S + (SEARCH_S if command.startswith(SEARCH) else 0), ended
    return ended


@each(NEED_ALL)
def test_command_that_needs_all_brokers_names_the_silent_ones(cluster: LocalCluster, command: str) -> None:
    ended = ended_in_time(cluster, command)
    assert ended.code == 3 and not ended.stdout
    for node in PAUSED:
        broker = cluster.nodes[node]
        assert broker.bootstrap in ended.stderr or broker.admin_url in ended.stderr
    assert "tierlog doctor" in ended.stderr


@each(SHOW_THE_REST)
def test_command_shows_what_the_others_know(cluster: LocalCluster, command: str) -> None:
    ended = ended_in_time(cluster, command)
    assert ended.code == 0
    for node in PAUSED:
        broker = cluster.nodes[node]
        shown = ended.stdout + ended.stderr
        assert f"broker {node}: " in shown or broker.admin_url in shown.replace("\n", "")


@each(NEED_ONE)
def test_command_that_needs_one_broker_ends(cluster: LocalCluster, command: str) -> None:
    ended = ended_in_time(cluster, command)
    assert ended.code == 0 or re.search("`tierlog (doctor|cluster health)`", ended.stderr), ended


@each(OF_ANY)
def test_command_is_answered_by_the_broker_that_responds(cluster: LocalCluster, command: str) -> None:
    ended = ended_in_time(cluster, command)
    assert ended.code in (0, 1, 6), ended
    assert "cannot reach" not in ended.stderr


def test_each_command_that_lists_or_describes_is_tested() -> None:
    tested = {" ".join(words.split()[:depth]) for words in (*NEED_ALL, *SHOW_THE_REST, *NEED_ONE, *OF_ANY)
              for depth in (2, 3)}  # fmt: skip
    tables = {name for name in commands() if name.split()[-1] in ("list", "describe", "status", "info")}
    local = {"profile list", "cluster status"}
    tokens = {"token list", "token describe", "user describe"}  # by the same request as `user list`
    assert tables - local - tokens <= tested
