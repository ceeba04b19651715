"""Registry of safeguards: checks of production code that are switched off, one at a time.

This tests the simulator: if it does not notice the loss of a safeguard, a fault or an invariant is missing.
Each safeguard is a patch of a production class. Production code has no switches. `breaks` says what could
happen without the safeguard.
`safeguards` and the modules that it imports define them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

Patches = Iterator[tuple[Any, str, object]]


class Safeguard(NamedTuple):
    """`patches` yields (owner, attribute, replacement). `of_quorum`: only quorum runs notice it."""

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
    def register(patches: Callable[[], Patches]) -> None:
        SAFEGUARDS[name] = Safeguard(name, breaks, patches, of_quorum)

    return register
