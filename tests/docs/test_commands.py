"""Runs every command in the docs: the blocks of a page in order, against a broker of its own.

Blocks for kcat and Java run with the other client tests (tests/clients/test_documented_commands.py);
those for clusters with test_runbooks.py.
"""

import re

import pytest
from docs_pages import ROOT, run_page

from tierlog.testing import TierlogBroker

PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if re.search(r"^```console$", page.read_text(encoding="utf-8"), re.MULTILINE)
)
LINKED = sorted(
    page.relative_to(ROOT).as_posix() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.slow
def test_commands_of_a_page_work(page: str, tierlog_broker: TierlogBroker) -> None:
    assert run_page(page, tierlog_broker) > 0


@pytest.mark.parametrize("page", LINKED)
def test_links_between_pages_resolve(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []
