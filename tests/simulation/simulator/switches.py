"""Safeguards of production code that can be switched off one at a time: the test of the simulator itself.

Each is a patch of a production class from outside; production code has no switches. What a safeguard is for
is said by `breaks`: what could happen without it. A simulator that does not notice its loss lacks a fault or
an invariant. They are in `safeguards` and the modules that it names.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

Patches = Iterator[tuple[Any, str, object]]


class Safeguard(NamedTuple):
    """`patches`: (owner, attribute, what takes its place). `of_quorum`: runs of the quorum alone show it."""

    name: str
    breaks: str
    patches: Callable[[], Patches]
    of_quorum: bool


SAFEGUARDS: dict[str, Safeguard] = {}


@contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, attribute, replacement in SAFEGUARDS[name].patches() if name is not None else ():
            stack.enter_context(patch.object(owner, attribute, replacement))
        yield


def safeguard(name: str, breaks: str, *, of_quorum: bool = False) -> Callable[[Callable[[], Patches]], None]:
    def note(patches: Callable[[], Patches]) -> None:
        SAFEGUARDS[name] = Safeguard(name, breaks, patches, of_quorum)

    return note
