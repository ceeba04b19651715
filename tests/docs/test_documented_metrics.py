"""Checks that runbooks and all other pages name only existing metrics."""

import re

import pytest
from docs_pages import ROOT

from tierlog.broker.gateway.catalogue import METRICS, Kind

NAME = re.compile(r"(?<![./\w])(?:kafka|tierlog|process)_[a-z0-9_]+\b")
PARTS = ("_bucket", "_count", "_sum")
OTHERS = {"tierlog_broker", "tierlog_session_broker", "tierlog_broker_factory"}
"""Fixtures of the pytest plugin."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def known_metrics() -> set[str]:
    parts = {m.name + part for m in METRICS.values() if m.kind is Kind.HISTOGRAM for part in PARTS}
    return METRICS.keys() | parts | OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_only_existing_metrics(page) -> None:
    assert set(NAME.findall(page.read_text(encoding="utf-8"))) <= known_metrics()


def test_runbooks_name_the_metrics_to_watch() -> None:
    runbooks = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/runbooks").glob("*.md"))
    assert {"kafka_controller_kafkacontroller_activecontrollercount"} <= set(NAME.findall(runbooks))
