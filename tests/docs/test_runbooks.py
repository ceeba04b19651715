"""Runs the cluster runbooks on three real processes: causes each failure, then runs the commands in order.

`systemctl` starts a process here, and host names stand for the addresses of the processes.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from docs_pages import ROOT

from tierlog.cli.local_cluster import START_TIMEOUT_S, LocalCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BLOCK = re.compile(r"^ *```console cluster\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DEGRADED, UNAVAILABLE = UNWELL = (5, 6)
"""Exit codes of `cluster health` while something is wrong."""


class Operator:
    """Follows the steps of a page."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.starting: list[Future[object]] = []
        self._pool = ThreadPoolExecutor(3)
        urls = ",".join(node.admin_url for node in cluster)
        self._environment = {
            **os.environ,
            "TIERLOG_ADMIN": urls,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def follow(self, page: str) -> list[int]:
        """Run the page's commands; return the exit codes of those of tierlog."""
        codes = []
        text = (ROOT / page).read_text(encoding="utf-8")
        commands = [line for block in BLOCK.findall(text) for line in re.findall(r"^ *\$ (.*)$", block, re.M)]
        assert commands
        for command in commands:
            if command.startswith("systemctl start "):
                self._start(command)
            else:
                codes.append(self._run(command))
        for started in self.starting:
            started.result(START_TIMEOUT_S)
        self.starting.clear()
        return codes

    def health(self) -> int:
        return self._run("tierlog cluster health")

    def _start(self, command: str) -> None:
        nodes = [self.cluster.nodes[int(number)] for number in re.findall(r"tierlog@(\d)", command)]
        begun = [self._pool.submit(node.start, START_TIMEOUT_S) for node in nodes]
        if "--no-block" in command:
            self.starting += begun
        else:
            for started in begun:
                started.result()

    def _run(self, command: str) -> int:
        words = re.sub(
            r"/var/lib/tierlog/(\d)/data",
            lambda found: str(self.cluster.nodes[int(found[1])].data_dir),
            command,
        )
        words = re.sub(
            r"http://node-(\d)\.example:9644",
            lambda found: self.cluster.nodes[int(found[1])].admin_url,
            words,
        )
        ended = subprocess.run(
            words.split(), env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        may_be_unwell = command == "tierlog cluster health"
        assert ended.returncode == 0 or (may_be_unwell and ended.returncode in UNWELL), (
            f"{command}\n{ended.stdout}\n{ended.stderr}"
        )
        return ended.returncode


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(60)
        yield running


def test_runbooks_restore_a_cluster(cluster: LocalCluster) -> None:
    operator = Operator(cluster)

    cluster.nodes[3].kill()
    codes = operator.follow("docs/runbooks/lost-broker.md")
    assert codes[0] in UNWELL and not any(codes[1:])

    for lost in (2, 3):
        cluster.nodes[lost].kill()
    while operator.health() != UNAVAILABLE:
        pass  # the remaining nodes may not have noticed yet
    assert operator.follow("docs/runbooks/lost-majority.md") == [UNAVAILABLE, 0]

    cluster.nodes[3].kill()
    shutil.rmtree(cluster.nodes[3].data_dir)
    assert not any(operator.follow("docs/runbooks/replace-node.md"))
    assert len(list(cluster.nodes[3].data_dir.glob("orders-*"))) == 3

    for node in cluster:
        node.kill()
    for lost in (2, 3):
        shutil.rmtree(cluster.nodes[lost].data_dir)
    assert not any(operator.follow("docs/runbooks/lost-majority-for-good.md"))
    assert len(list(cluster.nodes[3].data_dir.glob("orders-*"))) == 3
