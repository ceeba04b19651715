"""The generated pages under docs/reference are up to date."""

from pathlib import Path

import pytest
from reference_pages import EXIT_CODES, pages

from tierlog.cli.errors import ExitCode

DIRECTORY = Path(__file__).parents[3] / "docs" / "reference"


PAGES = pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_up_to_date(name: str) -> None:
    assert (DIRECTORY / name).read_text(encoding="utf-8") == PAGES[name], "run `make docs`"


def test_every_exit_code_is_documented() -> None:
    assert set(EXIT_CODES) == set(ExitCode)
