"""Checks that runbooks and all other pages name only existing metrics."""

import pytest
from docs_pages import ROOT
from documented_metrics import NAME, known_metrics

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_only_existing_metrics(page) -> None:
    assert set(NAME.findall(page.read_text(encoding="utf-8"))) <= known_metrics()


def test_runbooks_name_the_metrics_to_watch() -> None:
    runbooks = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/runbooks").glob("*.md"))
    assert {"kafka_controller_kafkacontroller_activecontrollercount"} <= set(NAME.findall(runbooks))
