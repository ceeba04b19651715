"""Dashboards and alerts on a real Prometheus server that scrapes a loaded cluster of three nodes.

Every query of every panel has data. Then one fault after another raises its alerts, and they end with it.
Times of the rules are divided by FASTER, so that a fault shows within seconds.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import prometheus
import pytest
import s3_servers
import watched_cluster
from cli_inline import call
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from docs_pages import ROOT
from prometheus import Prometheus, shortened
from waiting import until
from watched_cluster import WatchedCluster

from tierlog.monitoring.alerts import ALERTS
from tierlog.monitoring.dashboards import DASHBOARDS
from tierlog.monitoring.grafana import Dashboard
from tierlog.monitoring.kafka_names import recording_rules
from tierlog.monitoring.rules import rules_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FASTER = 300
WINDOW_S = 5
"""Seconds of the shortest range: five scrapes."""

RATE_INTERVAL = "20s"
MIB = 1 << 20
RESTART_TIMEOUT_S = 180.0


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, s3: s3_servers.S3Server
) -> Iterator[tuple[WatchedCluster, Prometheus]]:
    directory = tmp_path_factory.mktemp("watched")
    rules = shortened(rules_yaml(ALERTS), FASTER, WINDOW_S)
    rules += recording_rules().removeprefix("groups:\n")
    with watched_cluster.running(directory, s3) as cluster:
        urls = [node.admin_url for node in cluster.cluster]
        with prometheus.running(directory / "p", urls, rules=rules, login=cluster.login) as server:
            yield cluster, server


def with_values(query: str) -> str:
    """The query as Grafana sends it while all variables are at All."""
    return re.sub(r'=~"\$\w+"', '=~".+"', query.replace("$__rate_interval", RATE_INTERVAL))


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_no_panel_is_empty(watched: tuple[WatchedCluster, Prometheus], dashboard: Dashboard) -> None:
    _, server = watched
    empty = {
        f"{panel.title}: {query}": with_values(dashboard.query(query))
        for panel in dashboard.panels
        for query, _ in panel.queries
    }

    def all_have_data() -> bool:
        for name, query in list(empty.items()):
            if server.query(query):
                del empty[name]
        return not empty

    try:
        until(all_have_data, "there is data")
    except AssertionError:
        pytest.fail("no data:\n" + "\n".join(empty))


def test_series_of_kafka_dashboards_have_data_as_the_page_says(
    watched: tuple[WatchedCluster, Prometheus],
) -> None:
    _, server = watched
    page = (ROOT / "docs/reference/kafka-dashboards.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.M))
    names = {name for name, state in rows.items() if state in ("exported", "recorded")}
    assert names

    def empty() -> set[str]:
        return {name for name in names if not server.query(name)}

    until(lambda: not empty(), "each series has data")
    assert [name for name in rows.keys() - names if server.query(name)] == []


@contextmanager
def group_stands_still(watched: WatchedCluster) -> Iterator[None]:
    watched.load.consumes.clear()
    yield
    watched.load.consumes.set()


@contextmanager
def bucket_is_down(watched: WatchedCluster) -> Iterator[None]:
    watched.store.kill()
    yield
    watched.store.start()


@contextmanager
def clock_is_wrong(watched: WatchedCluster) -> Iterator[None]:
    watched.clock.set(clock_s=30)
    yield
    watched.clock.set()


@contextmanager
def disk_is_full(watched: WatchedCluster) -> Iterator[None]:
    ballast = watched.disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    yield
    ballast.unlink()


@contextmanager
def broker_is_dead(watched: WatchedCluster) -> Iterator[None]:
    broker = watched.cluster.nodes[2]
    broker.kill()
    yield
    broker.start(RESTART_TIMEOUT_S)


@contextmanager
def majority_is_dead(watched: WatchedCluster) -> Iterator[None]:
    lost = [watched.cluster.nodes[node] for node in (1, 2)]
    for broker in lost:
        broker.kill()
    yield
    watched.cluster.start([1, 2])


@contextmanager
def move_is_stuck(watched: WatchedCluster) -> Iterator[None]:
    """A throttle of 1 kB/s, at which the copy of 2 MB takes half an hour. The remedy is the alert's."""
    assert watched.cluster.security is not None
    settings = watched.cluster.security.librdkafka_settings(watched.cluster.bootstrap)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("archive", 1, replica_assignment=[[3]])])["archive"].result(60)
    producer = Producer(settings)
    for _ in range(20):
        producer.produce("archive", bytes(100_000))
    assert producer.flush(60) == 0
    move = ("partition", "move", "archive", "0", "--to", "2", "--throttle", "1000")
    command = [sys.executable, "-m", "tierlog.cli.main", *move, *watched.options]
    moving = subprocess.Popen(command)
    yield
    ended = call("partition", "unthrottle", *watched.options)
    assert ended.code == 0, ended.stderr
    assert moving.wait(60) == 0


Fault = Callable[[WatchedCluster], AbstractContextManager[None]]
FAULTS: dict[Fault, set[str]] = {
    group_stands_still: {"TierlogGroupLag"},
    clock_is_wrong: {"TierlogClockSkew"},
    disk_is_full: {"TierlogDiskFull", "TierlogUnderReplicated"},
    bucket_is_down: {"TierlogObjectStoreUnavailable"},
    broker_is_dead: {"TierlogNodeDown", "TierlogBrokerFenced", "TierlogUnderReplicated"},
    majority_is_dead: {"TierlogNoController"},
    move_is_stuck: {"TierlogMoveStuck"},
}
NIGHTLY = {move_is_stuck}
"""Faults whose alert waits for hours, which are minutes here."""

ALERT_TIMEOUT_S = 200.0


def test_certificate_that_expires_raises_its_alert(watched: tuple[WatchedCluster, Prometheus]) -> None:
    _, server = watched
    until(lambda: "TierlogCertificateExpires" in server.firing(), "the alert fires")
    assert "TierlogCertificateExpiresSoon" not in server.firing()


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=pytest.mark.nightly if fault in NIGHTLY else ()) for fault in FAULTS],
    ids=lambda fault: fault.__name__,
)
def test_fault_raises_its_alerts(watched: tuple[WatchedCluster, Prometheus], fault: Fault) -> None:
    cluster, server = watched
    alerts = FAULTS[fault]
    until(lambda: not alerts & server.firing(), f"no alert before the fault: {alerts}")
    with fault(cluster):
        until(lambda: alerts <= server.firing(), f"alerts fire: {alerts}", ALERT_TIMEOUT_S)
    until(lambda: not alerts & server.firing(), f"alerts end: {alerts}")
