"""The house rules that no linter knows: sizes, docstrings, words that must not appear, numbered decisions."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("broker", "metadata", "tiering", "spark", "cli", "src")
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
GENERATED = ("src/tierlog/protocol/messages/",)
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".lock",
    ".txt",
    ".yml",
    ".yaml",
    ".xml",
    ".sh",
    ".java",
    ".json",
    ".cfg",
    "",
}
FOREIGN_WORDS = re.compile(
    r"(?:/root/|/home/\w+/|/tmp/w/|/work/\w+)|pypi\.(?:org|python)|files\.pythonhosted|index[-_]url=|repo1?\.maven|proxy\.golang"
)
"""Paths of one machine and addresses of registries: they belong to the machine's own configuration."""


def tracked() -> list[Path]:
    """Files that git tracks or would: not links, not what is ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    files = [ROOT / name for name in listing.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


FILES = tracked()
PYTHON = [
    file
    for file in FILES
    if file.suffix == ".py" and not relative(file).startswith(GENERATED) and "golden" not in file.parts
]
PRODUCT = [file for file in PYTHON if relative(file).split("/")[0] in PACKAGES]
TESTS = [file for file in PYTHON if relative(file).startswith("tests/")]


def offenders(files: list[Path], rule: Callable[[str], Iterable[object]]) -> list[str]:
    """`file:what` for everything that the rule finds in the files' text."""
    return [f"{relative(file)}:{found}" for file in files for found in rule(file.read_text(encoding="utf-8"))]


def test_files_are_short() -> None:
    def rule(text: str) -> list[int]:
        lines = text.count("\n")
        return [lines] if lines > FILE_LINES_MAX else []

    assert offenders(PYTHON, rule) == []


def test_functions_are_short() -> None:
    def rule(text: str) -> list[str]:
        return [
            f"{node.lineno} {node.name}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
        ]

    assert offenders(PYTHON, rule) == []


def test_every_module_says_its_duty() -> None:
    def rule(text: str) -> list[str]:
        return [] if ast.get_docstring(ast.parse(text)) else ["no module docstring"]

    assert offenders(PYTHON, rule) == []


def test_a_core_does_not_import_its_drivers() -> None:
    """In import-linter this would be a list of all drivers."""
    cores = [file for file in PRODUCT if file.parent.name == "core"]
    assert cores
    for file in cores:
        room = ".".join(file.parents[1].relative_to(ROOT).parts)
        imported = re.findall(rf"^ *from tierlog\.{room}(?!\.core\b).*", file.read_text(), re.M)
        assert imported == [], relative(file)


def test_packages_hold_no_assert_and_no_unfinished_business() -> None:
    """`python -O` strips assert; a promise to finish later belongs into an issue."""

    def rule(text: str) -> list[str]:
        asserts = [
            f"{node.lineno} assert" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)
        ]
        return asserts + [f"{word}" for word in re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text)]

    assert offenders(PRODUCT, rule) == []


def test_tests_wait_for_events_and_fake_nothing() -> None:
    """Sleeping hides races, a mock tests itself. (Another program's start, in tests/support, is no event; and
    in the simulator nothing sleeps: its time is virtual.)
    """
    forbidden = re.compile(r"time\.sleep\(|unittest\.mock|\bMagicMock\b|asyncio\.sleep\((?!0\))")
    files = [
        file
        for file in TESTS
        if file != Path(__file__)
        and not relative(file).startswith(
            ("tests/bench/", "tests/soak/", "tests/support/", "tests/simulation/", "tests/chaos/havoc/")
        )
    ]
    assert offenders(files, forbidden.findall) == []


def test_no_test_is_skipped_silently() -> None:
    """Only tests of missing clients and of mounts that are not allowed are left out, and they say so."""
    forbidden = re.compile(r"pytest\.mark\.(?:skip|xfail)\b|pytest\.skip\(")
    files = [
        file
        for file in TESTS
        if file != Path(__file__)
        and not relative(file).startswith(("tests/clients/", "tests/docs/", "tests/support/mounts.py"))
    ]
    assert offenders(files, forbidden.findall) == []


def test_no_path_of_a_machine_and_no_registry() -> None:
    files = [file for file in FILES if file.suffix in TEXT_SUFFIXES and file != Path(__file__)]
    assert offenders(files, FOREIGN_WORDS.findall) == []


def test_decisions_are_numbered_without_gap() -> None:
    numbers = sorted(int(file.name[:4]) for file in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("heading", ["Status: ", "## Context", "## Decision", "## Rejected"])
def test_decisions_have_their_sections(heading: str) -> None:
    assert [
        file.name for file in (ROOT / "docs/adr").glob("[0-9]*.md") if heading not in file.read_text()
    ] == []


def test_test_files_have_names_of_their_own() -> None:
    """pytest's importlib mode needs no packages, but reports by file name are ambiguous otherwise."""
    names = [file.name for file in TESTS if file.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
