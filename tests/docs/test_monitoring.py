"""The alert rules and the Grafana dashboard of docs/monitoring: their metrics exist, and the alerts fire."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml
from docs_pages import ROOT
from documented_metrics import NAME, known_metrics

from tierlog.broker.gateway.catalogue import METRICS

MONITORING = ROOT / "docs/monitoring"
ALERTS, TESTS = MONITORING / "alerts.yml", MONITORING / "alerts.test.yml"
DASHBOARD = MONITORING / "dashboard.json"
SELECTED = re.compile(r"\b((?:kafka|tierlog)_[a-z0-9_]+)\{([^}]*)\}")
PROMETHEUS_LABELS = {"instance", "le"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


@pytest.mark.parametrize("file", [ALERTS, TESTS, DASHBOARD], ids=lambda file: file.name)
def test_all_metrics_exist(file) -> None:
    names = set(NAME.findall(file.read_text(encoding="utf-8")))
    assert names and names <= known_metrics()


def test_queries_select_by_labels_that_the_metrics_have() -> None:
    selected = [
        one for query in [*queries(), *(rule["expr"] for rule in rules())] for one in SELECTED.findall(query)
    ]
    assert selected
    for name, matchers in selected:
        metric = METRICS.get(name) or METRICS[name.rpartition("_")[0]]
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)) <= {*metric.labels, *PROMETHEUS_LABELS}


def test_each_alert_is_tested_and_has_a_runbook() -> None:
    tested = TESTS.read_text(encoding="utf-8")
    for rule in rules():
        assert f'alertname="{rule["alert"]}"' in tested
        assert (ROOT / rule["annotations"]["runbook"]).is_file()


def test_alerts_and_dashboard_show_what_an_operator_must_see() -> None:
    seen = (
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
    shown = " ".join(queries())
    alerts = " ".join(rule["expr"] for rule in rules())
    assert [name for name in seen if name not in shown] == []
    assert [name for name in seen if name not in alerts] == []
    assert "tierlog_remote_merges_total" in shown and "tierlog_remote_compactions_total" in shown


def test_panels_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


@pytest.mark.slow
def test_alerts_fire_in_prometheus() -> None:
    promtool = subprocess.check_output([ROOT / ".ci/get-promtool.sh"], text=True).strip()
    for command in (["check", "rules", ALERTS], ["test", "rules", TESTS]):
        subprocess.run([promtool, *command], check=True)
