"""Checks that pages name only modules and functions that exist. Decisions (docs/adr) are history."""

import re
from importlib import import_module
from importlib.util import find_spec

import pytest
from docs_pages import ROOT

from tierlog.broker.log_events.catalogue import EVENTS

PACKAGES = ("tierlog.broker", "tierlog")
ARCHITECTURE = "docs/architecture.md"
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if "adr" not in page.parts
)
FILE = re.compile(r"`([\w./-]+\.py)(?:::\w+)?`")
FOLDERS = ("", "src/tierlog", "broker", "tests/simulation", "tests/simulation/simulator")
NAMES_OF_PYSPARK = ("spark.", "Trigger.")
NAME = re.compile(r"`([A-Za-z]\w*(?:\.\w+)+)`")


def test_named_names_are_found() -> None:
    assert exists("net.connection.Channel._on_readable")
    assert not exists("net.connection.Channel.no_such_function")
    assert not exists("net.no_such_module")


@pytest.mark.parametrize("page", PAGES)
def test_page_names_only_existing_modules(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    files = [name for name in FILE.findall(text) if not any((ROOT / at / name).is_file() for at in FOLDERS)]
    assert files + [name for name in NAME.findall(text) if is_code(name, page) and not exists(name)] == []


def is_code(name: str, page: str) -> bool:
    """Names of settings and log events have dots too, and settings neither capitals nor underscores. A class
    needs its module."""
    if name.startswith(NAMES_OF_PYSPARK) or name in EVENTS:
        return False
    in_package = name[0].isupper() or any(
        find_spec(f"{package}.{name.partition('.')[0]}") for package in PACKAGES
    )
    return in_package and (page == ARCHITECTURE or re.search(r"[A-Z_]", name) is not None)


def exists(name: str) -> bool:
    """Whether it is a module, or a function or class of one. `broker.` may be left out."""
    return any(_resolves(f"{package}.{name}".split(".")) for package in PACKAGES)


def _resolves(path: list[str]) -> bool:
    found, *rest = import_module(path[0]), *path[1:]
    for number, part in enumerate(rest, start=2):
        module = ".".join(path[:number])
        if hasattr(found, "__path__") and find_spec(module) is not None:
            found = import_module(module)
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return False
    return True
