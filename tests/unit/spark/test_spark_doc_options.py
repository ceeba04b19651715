"""The options in the documentation's snippets are accepted."""

import re
from pathlib import Path

import pytest

from tierlog.spark.options.table import Given, Use

DOCS = Path(__file__).parents[3] / "docs"
SNIPPET = re.compile(r"```python spark\n(.*?)```", re.DOTALL)
CHAIN = re.compile(r"spark\s*\.(read|readStream)\s*\.format\(\"tierlog\"\)(.*?)\.load\(\)", re.DOTALL)
OPTION = re.compile(r"\.option\(\"([^\"]+)\", \"([^\"]*)\"\)")
CHAINS = [
    (page.name, use, dict(OPTION.findall(options)))
    for page in sorted(DOCS.glob("howto/*.md"))
    for snippet in SNIPPET.findall(page.read_text(encoding="utf-8"))
    for use, options in CHAIN.findall(snippet)
]


def test_the_snippets_are_found() -> None:
    assert {page for page, _, _ in CHAINS} >= {"spark.md", "exactly-once-spark.md"}


@pytest.mark.parametrize(("page", "use", "options"), CHAINS)
def test_options_of_a_snippet_are_accepted(page: str, use: str, options: dict[str, str]) -> None:
    assert options
    Given(options, Use.READ if use == "read" else Use.STREAM)
