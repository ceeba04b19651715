"""Alert rules: their parts, and the file that Prometheus loads.

Every rule names the page that says what to do. Used by the modules that describe rules, and by `tierlog
generate alerts`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CRITICAL, WARNING, INFO = "critical", "warning", "info"
"""Severities: at once, also at night; today; some day."""

DEFAULT_DOCS = "docs"
"""Address of the pages if the user names none: the directory of the repository."""


@dataclass(frozen=True, slots=True)
class Alert:
    """`lasting`: how long the condition must hold, as a Prometheus duration. `page`: below docs/."""

    name: str
    expression: str
    severity: str
    summary: str
    description: str
    page: str
    lasting: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    alerts: tuple[Alert, ...]


def rules_yaml(groups: Iterable[Group], docs: str = DEFAULT_DOCS) -> str:
    """The rule file. `docs`: address of the directory of pages, for the alerts' links."""
    lines = [
        "# Prometheus alert rules of tierlog, written by `tierlog generate alerts`. Load them with",
        "# rule_files. The name of the scrape job must begin with tierlog. Each alert links to the page that",
        "# says what to do.",
        "groups:",
    ]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        lines += [line for alert in group.alerts for line in _rule(alert, docs.rstrip("/"))]
    return "\n".join([*lines, ""])


def _rule(alert: Alert, docs: str) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield f"        expr: {_single_quoted(alert.expression)}"
    if alert.lasting:
        yield f"        for: {alert.lasting}"
    yield "        labels:"
    yield f"          severity: {alert.severity}"
    yield "        annotations:"
    yield f"          summary: {_double_quoted(alert.summary)}"
    yield f"          description: {_double_quoted(alert.description)}"
    yield f"          runbook_url: {_double_quoted(f'{docs}/{alert.page}')}"


def _single_quoted(text: str) -> str:
    """YAML's literal style, which leaves the double quotes of PromQL as they are."""
    return "'" + text.replace("'", "''") + "'"


def _double_quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
