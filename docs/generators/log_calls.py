"""Calls of loggers in the source of tierlog: which events it logs, at which level and with which fields.

Read from the syntax trees, for docs/reference/events.md and for the test of the catalogue.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "cli", "metadata", "tiering", "src/tierlog")
LOGGER = "_log"
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
    "log": "any",  # the level is the first argument
}
"""Method of a logger -> level of its lines."""
NOT_FIELDS = {"exc_info", "stack_info"}


@dataclass(frozen=True, slots=True)
class LogCall:
    """`names`: events of the call, two if a condition decides; empty if they are not literals. `fields`: name
    of each field and the expression of its value. `mappings`: expressions of `**mapping`."""

    place: str
    level: str
    names: tuple[str, ...]
    fields: dict[str, ast.expr]
    mappings: tuple[ast.expr, ...]

    @property
    def values(self) -> list[ast.expr]:
        return [*self.fields.values(), *self.mappings]


def log_calls() -> list[LogCall]:
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [
        call
        for path in files
        for call in calls_in(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]


def calls_in(source: str, file: str) -> Iterator[LogCall]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(ast.Attribute(ast.Name(id=name), method), [*arguments], [*keywords]):
                if name == LOGGER and method in LEVELS:
                    event = arguments[1] if method == "log" else arguments[0]
                    fields = {one.arg: one.value for one in keywords if one.arg and one.arg not in NOT_FIELDS}
                    mappings = tuple(one.value for one in keywords if one.arg is None)
                    yield LogCall(f"{file}:{node.lineno}", LEVELS[method], _names(event), fields, mappings)


def _names(event: ast.expr) -> tuple[str, ...]:
    match event:
        case ast.Constant(str(name)):
            return (name,)
        case ast.IfExp(body=body, orelse=orelse):
            return _names(body) + _names(orelse)
    return ()
