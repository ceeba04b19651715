"""Safeguards: names for the functions that a guarantee depends on.

The simulator (tests/simulation) switches off one safeguard at a time and proves that a run notices the loss.
A test fails if a safeguard has no such proof, or a proof no safeguard. Nothing else reads the names: the
decorator returns the function itself.

Compiled modules (.ci/compile_hot.py) use it below the function or its class, as in
`safeguard("name")(Class.method)`: a decorated function is called through Python there, which takes 60 ns
more.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from tierlog.base.types import require

F = TypeVar("F", bound=Callable[..., Any])

SAFEGUARDS: dict[str, Callable[..., Any]] = {}
"""The functions of all imported modules, by the name of their safeguard."""


def safeguard(name: str) -> Callable[[F], F]:
    """Name a function by the rule that it enforces. A function may enforce several rules."""

    def record(function: F) -> F:
        require(name not in SAFEGUARDS, f"two functions are the safeguard {name!r}")
        SAFEGUARDS[name] = function
        return function

    return record
