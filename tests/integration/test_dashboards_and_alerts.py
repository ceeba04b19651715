"""Dashboards and alerts on a real Prometheus server that scrapes a loaded cluster of three nodes.

Every query of every panel has data. Then one fault after another raises its alerts, and they end with it.
Times of the rules are divided by FASTER, so that a fault shows within seconds.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import prometheus
import pytest
import s3_servers
import watched_cluster
from docs_pages import ROOT
from prometheus import Prometheus, shortened
from waiting import until
from watched_cluster import WatchedCluster
from watched_faults import FAULTS, NIGHTLY, Fault

from tierlog.monitoring.alerts import ALERTS
from tierlog.monitoring.dashboards import DASHBOARDS
from tierlog.monitoring.grafana import Dashboard
from tierlog.monitoring.kafka_names import recording_rules
from tierlog.monitoring.rules import rules_yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FASTER = 300
WINDOW_S = 5
"""Seconds of the shortest range: five scrapes."""

COUNT_S = 60
"""Seconds in which events are counted."""

SHORTER = {"> 3600 ": "> 20 ", "> 604800 ": "> 20 ", "for: 72s": "for: 20s"}
"""Seconds of overdue deletions and old snapshots, and how long balancing is held, and what they are here."""

RATE_INTERVAL = "20s"


@pytest.fixture(scope="module")
def watched(
    tmp_path_factory: pytest.TempPathFactory, s3: s3_servers.S3Server
) -> Iterator[tuple[WatchedCluster, Prometheus]]:
    directory = tmp_path_factory.mktemp("watched")
    rules = shortened(rules_yaml(ALERTS), FASTER, WINDOW_S, COUNT_S)
    for time, here in SHORTER.items():
        assert rules.count(time) == 1
        rules = rules.replace(time, here)
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
    alerts, missing = FAULTS[fault], set(FAULTS[fault])
    until(lambda: not alerts & server.firing(), f"no alert before the fault: {alerts}")

    def all_have_fired() -> bool:
        """Not all at once: an increase ends by itself."""
        missing.difference_update(server.firing())
        return not missing

    with ExitStack() as undo:
        fault(cluster, undo)
        try:
            until(all_have_fired, "alerts fire", ALERT_TIMEOUT_S)
        except AssertionError:
            pytest.fail(f"did not fire: {missing}")
    until(lambda: not alerts & server.firing(), f"alerts end: {alerts}")
