"""Checks docs/explanation/guarantees.md: every guarantee is there once, and every named test exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/guarantees.md").read_text(encoding="utf-8")
GUARANTEES = dict(re.findall(r"^\*\*(\d+)\. (.*?)(?=^\*\*\d+\. |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED = sorted(set(TEST.findall(PAGE)))


def test_every_guarantee_is_on_the_page() -> None:
    numbers = re.findall(r"^\*\*(\d+)\. ", PAGE, re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, 26))


def test_each_guarantee_names_a_test_or_says_not_yet() -> None:
    without = [number for number, text in GUARANTEES.items() if not TEST.search(text)]
    assert [number for number in without if "Not yet:" not in GUARANTEES[number]] == []


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_named_test_exists(file: str, name: str) -> None:
    defined = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined.update(target.id for target in node.targets if isinstance(target, ast.Name))
    assert name in defined


def test_every_test_reference_matches_the_pattern() -> None:
    """A reference that the pattern does not match would not be checked."""
    assert len(re.findall(r"::", PAGE)) == len(TEST.findall(PAGE))
