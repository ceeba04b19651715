"""Grafana dashboards: their parts, and the JSON that Grafana imports.

A query names metrics without the filters of the dashboard's variables. `filtered` adds a matcher for each
variable whose label the metric has, so that a description reads like the question that it asks. Used by the
modules that describe dashboards, and by `tierlog generate dashboards`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tierlog.broker.gateway.catalogue import METRICS
from tierlog.broker.gateway.metric_kinds import Kind, Metric

COLUMNS = 24
"""Width of Grafana's grid."""

PANEL_WIDTH, PANEL_HEIGHT = 8, 8
STAT_WIDTH, STAT_HEIGHT = 4, 4
ALL = ".+"
"""Value of a variable that selects everything. It leaves out the totals that have no such label. Jobs and
nodes are listed instead, because other programs have these labels too."""

TARGET_LABELS = ("job", "instance")
"""Labels that Prometheus adds to each sample of a node."""

_METRIC = re.compile(r"\b((?:kafka|tierlog|process)_[a-z0-9_]+|up)\b(?!\()(?:\{([^}]*)\})?")
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """`unit`: by Grafana's name. `look`: what an operator should look for. `queries`: (PromQL, legend) of
    each line. `bad_from`: a single number is shown, which is red from this value on."""

    title: str
    unit: str
    look: str
    queries: tuple[tuple[str, str], ...]
    bad_from: float | None = None
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`variables`: labels by which the viewer can filter, besides the job. `source`: metric whose labels give
    their values."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ("instance",)
    source: str = "tierlog_build_info"

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)

    def query(self, expression: str) -> str:
        """The query with the filters of the dashboard's variables."""
        return filtered(expression, ("job", *self.variables))


def panel(title: str, unit: str, look: str, *queries: tuple[str, str]) -> Panel:
    """Lines over time."""
    return Panel(title, unit, look, queries)


def number(title: str, look: str, query: str, *, bad_from: float | None = None, unit: str = "short") -> Panel:
    """One number: the query's current value."""
    return Panel(title, unit, look, ((query, ""),), bad_from, is_number=True)


def row(title: str, *panels: Panel) -> Row:
    return Row(title, panels)


def filtered(expression: str, variables: tuple[str, ...]) -> str:
    """Add a matcher for each variable to the metrics that have its label and do not select by it already."""

    def selector(found: re.Match[str]) -> str:
        name, given = found.group(1), found.group(2) or ""
        labels = _labels(name)
        added = [
            f'{one}=~"${one}"'
            for one in variables
            if one in labels and not re.search(rf"\b{one}\s*(?:=|!)", given)
        ]
        return f"{name}{{{', '.join([*added, *([given] if given else [])])}}}"

    return _METRIC.sub(selector, expression)


def _labels(name: str) -> tuple[str, ...]:
    if name == "up":
        return TARGET_LABELS
    metric: Metric | None = METRICS.get(name)
    if metric is None:  # a part of a histogram
        metric = METRICS[name.rpartition("_")[0]]
        if metric.kind is not Kind.HISTOGRAM:
            raise KeyError(name)
    return (*metric.labels, *TARGET_LABELS)


# ---- JSON -------------------------------------------------------------------------------------------


def dashboard_json(dashboard: Dashboard) -> str:
    """The file that Grafana imports. The same description gives the same bytes."""
    document = {
        "title": f"tierlog: {dashboard.title}",
        "uid": f"tierlog-{dashboard.name}",
        "description": dashboard.description,
        "tags": ["tierlog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["tierlog"], "title": "tierlog", "asDropdown": True}],
        "templating": {"list": [*_variables(dashboard)]},
        "panels": [*_placed(dashboard)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _variables(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    before: list[str] = []
    for label in ("job", *dashboard.variables):
        matchers = ", ".join(f'{one}=~"${one}"' for one in before)
        filters = f"{{{matchers}}}" if matchers else ""
        source = "tierlog_build_info" if label in TARGET_LABELS else dashboard.source
        yield {
            "name": label,
            "type": "query",
            "label": {"job": "Cluster (job)", "instance": "Node"}.get(label, label.capitalize()),
            "datasource": _DATASOURCE,
            "query": f"label_values({source}{filters}, {label})",
            "includeAll": True,
            **({} if label in TARGET_LABELS else {"allValue": ALL}),
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
            "sort": 1,
        }
        before.append(label)


def _placed(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    """Rows from top to bottom, and their panels from left to right."""
    number_of, y = 0, 0
    for row_ in dashboard.rows:
        number_of += 1
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"id": number_of, "type": "row", "title": row_.title, "collapsed": False, "panels": [],
               "gridPos": place}  # fmt: skip
        y += 1
        x = height = 0
        for panel_ in row_.panels:
            number_of += 1
            wide, high = (STAT_WIDTH, STAT_HEIGHT) if panel_.is_number else (PANEL_WIDTH, PANEL_HEIGHT)
            if x + wide > COLUMNS or (height and high != height):
                x, y = 0, y + height
            height = high
            yield _panel(dashboard, panel_, number_of, {"h": high, "w": wide, "x": x, "y": y})
            x += wide
        y += height


def _panel(dashboard: Dashboard, shown: Panel, number_of: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": shown.unit}
    if shown.is_number:
        steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
        if shown.bad_from is not None:
            steps.append({"color": "red", "value": shown.bad_from})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    else:
        defaults["min"] = 0
    document: dict[str, Any] = {
        "id": number_of,
        "type": "stat" if shown.is_number else "timeseries",
        "title": shown.title,
        "description": shown.look,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": dashboard.query(query), "legendFormat": legend}
            for index, (query, legend) in enumerate(shown.queries)
        ],
    }
    if shown.is_number:
        document["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
    return document
