"""The alert rules and Grafana dashboards are generated, their metrics exist, and the alerts fire."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml
from docs_pages import ROOT
from documented_metrics import NAME, known_metrics
from watched_faults import FAULTS

from tierlog.broker.gateway.catalogue import METRICS
from tierlog.broker.log_events.catalogue import EVENTS
from tierlog.config.node import NODE_SETTINGS
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.monitoring import kafka_names
from tierlog.monitoring.alerts import ALERTS, FILE
from tierlog.monitoring.dashboards import DASHBOARDS, dashboard_files
from tierlog.monitoring.grafana import filtered
from tierlog.monitoring.rules import rules_yaml

MONITORING = ROOT / "docs/monitoring"
TESTS = MONITORING / "alerts.test.yml"
SELECTED = re.compile(r"\b((?:kafka|tierlog)_[a-z0-9_]+)\{([^}]*)\}")
PROMETHEUS_LABELS = {"instance", "job", "le"}
SETTING = re.compile(r"(?<![/\w.])[a-z]+(?:\.[a-z]+){2,}(?![\w/])")
CLIENT_SETTINGS = {"fetch.max.wait.ms"}
RULES = [alert for group in ALERTS for alert in group.alerts]
ELSEWHERE = {"TierlogCertificateExpires", "TierlogManifestsUnread"}
"""Alerts of faults that other tests cause: test_certificate_that_expires… and test_tiered_quorum_recovery."""

PANELS = [panel for dashboard in DASHBOARDS for panel in dashboard.panels]
QUERIES = [dashboard.query(query) for dashboard in DASHBOARDS for panel in dashboard.panels
           for query, _ in panel.queries]  # fmt: skip


def test_files_are_generated_from_the_code() -> None:
    """`tierlog generate` renews them: see docs/monitoring/README.md."""
    found = {path.name: path.read_text(encoding="utf-8") for path in (MONITORING / "dashboards").iterdir()}
    assert found == dashboard_files()
    assert (MONITORING / FILE).read_text(encoding="utf-8") == rules_yaml(ALERTS)
    assert (MONITORING / kafka_names.RULE_FILE).read_text(encoding="utf-8") == kafka_names.recording_rules()


def test_four_fifths_of_the_series_of_kafka_dashboards_are_shown() -> None:
    """Without those that make no sense here."""
    shown = len(set(kafka_names.shown()) - kafka_names.BESIDE_DASHBOARDS)
    assert shown / (shown + len(kafka_names.MISSING)) >= 0.8
    assert set(kafka_names.NATIVE) <= METRICS.keys()


def test_rule_file_says_the_same_as_the_code() -> None:
    groups = yaml.safe_load(rules_yaml(ALERTS, "https://example.com/docs/"))["groups"]
    read = [rule for group in groups for rule in group["rules"]]
    assert [(one["alert"], one["expr"], one.get("for", "")) for one in read] == [
        (one.name, one.expression, one.lasting) for one in RULES
    ]
    assert [one["annotations"] for one in read] == [
        {
            "summary": one.summary,
            "description": one.description,
            "runbook_url": f"https://example.com/docs/{one.page}",
        }
        for one in RULES
    ]


def test_filters_of_variables_are_added_to_metrics_with_their_labels() -> None:
    assert filtered("sum(kafka_log_log_size)", ("job", "topic", "user")) == (
        'sum(kafka_log_log_size{job=~"$job", topic=~"$topic"})'
    )
    assert filtered('up{job="a"} + rate(kafka_consumergroup_lag{topic!=""}[5m])', ("job", "topic")) == (
        'up{job="a"} + rate(kafka_consumergroup_lag{job=~"$job", topic!=""}[5m])'
    )
    with pytest.raises(KeyError):
        filtered("sum(tierlog_no_such_metric)", ("job",))


def test_all_metrics_exist() -> None:
    for text in (TESTS.read_text(encoding="utf-8"), rules_yaml(ALERTS), *dashboard_files().values()):
        names = set(NAME.findall(text))
        assert names and names <= known_metrics()


def test_all_settings_exist() -> None:
    texts = [*(panel.look for panel in PANELS), *(alert.description for alert in RULES)]
    settings = {name for text in texts for name in SETTING.findall(text)}
    assert settings - NODE_SETTINGS.keys() - TOPIC_SETTINGS.keys() - CLIENT_SETTINGS - EVENTS.keys() == set()


def test_queries_select_by_labels_that_the_metrics_have() -> None:
    selected = [
        one for query in [*QUERIES, *(rule.expression for rule in RULES)] for one in SELECTED.findall(query)
    ]
    assert selected
    for name, matchers in selected:
        metric = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)) <= {*metric.labels, *PROMETHEUS_LABELS}


def test_each_alert_is_tested_and_has_a_page() -> None:
    tested = TESTS.read_text(encoding="utf-8")
    for rule in RULES:
        assert f'alertname="{rule.name}"' in tested
        assert (ROOT / "docs" / rule.page).is_file()
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_page_names_the_alerts_that_no_real_fault_raises() -> None:
    page = (MONITORING / "README.md").read_text(encoding="utf-8")
    said = re.search(r"raise (\d+) of the (\d+) alerts.*?No real fault raises ([^:]*):", page, re.S)
    assert said is not None
    names = {rule.name for rule in RULES}
    missing = names - ELSEWHERE.union(*FAULTS.values())
    assert set(re.findall(r"`(Tierlog\w+)`", said[3])) == missing
    assert (int(said[1]), int(said[2])) == (len(names - missing), len(names))


def test_pages_that_panels_and_alerts_name_exist() -> None:
    texts = [*(panel.look for panel in PANELS), *(alert.description for alert in RULES)]
    pages = {page for text in texts for page in re.findall(r"docs/[\w/-]+\.md", text)}
    assert pages and [page for page in pages if not (ROOT / page).is_file()] == []


def test_each_panel_says_what_to_look_for() -> None:
    assert [panel.title for panel in PANELS if not panel.look.endswith((".", ".md"))] == []
    for dashboard in DASHBOARDS:
        titles = [panel.title for panel in dashboard.panels]
        assert len(set(titles)) == len(titles)


def test_alerts_and_dashboards_show_what_an_operator_must_see() -> None:
    seen = (
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka_controller_kafkacontroller_fencedbrokercount",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "kafka_server_replicamanager_underminisrpartitioncount",
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_consumergroup_lag_sum",
        "tierlog_certificate_expiry_timestamp_seconds",
        "tierlog_clock_timestamp_seconds",
        "tierlog_loop_lag_seconds",
        "tierlog_object_store_available",
        "tierlog_object_store_outages_total",
        "tierlog_remote_copy_behind_partitions",
        "tierlog_remote_copy_stalls_total",
        "tierlog_remote_readers_refused_total",
        "tierlog_remote_merge_errors_total",
        "tierlog_remote_quarantined_objects",
        "tierlog_remote_manifest_faults_total",
        "tierlog_remote_manifest_memory_bytes",
        "tierlog_log_directory_low",
        "tierlog_log_directory_full",
    )
    shown = " ".join(QUERIES)
    alerts = " ".join(rule.expression for rule in RULES)
    assert [name for name in seen if name not in shown] == []
    assert [name for name in seen if name not in alerts] == []
    assert "tierlog_remote_merges_total" in shown and "tierlog_remote_compactions_total" in shown


@pytest.mark.parametrize("content", dashboard_files().values(), ids=dashboard_files().keys())
def test_panels_do_not_overlap(content: str) -> None:
    document: dict[str, Any] = json.loads(content)
    cells = [
        (x, y)
        for panel in document["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_alerts_fire_in_prometheus() -> None:
    promtool = subprocess.check_output([ROOT / ".ci/get-promtool.sh"], text=True).strip()
    for command in (
        ["check", "rules", MONITORING / FILE, MONITORING / kafka_names.RULE_FILE],
        ["test", "rules", TESTS],
    ):
        subprocess.run([promtool, *command], check=True)
