"""Switches: replace one safeguard of the product at a time.

The product names its safeguards (`tierlog.base.safeguards`). `without` registers what runs in place of one,
and the module `safeguards` does so for all. This tests the simulator: if it does not notice the loss of a
safeguard, a fault or an invariant is missing.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import tierlog.broker.app  # noqa: F401 (all parts of a node name their safeguards)
from tierlog.base import safeguards as product

Function = Callable[..., Any]


class Safeguard(NamedTuple):
    """`breaks`: what could happen without the safeguard. `of_quorum`: only quorum runs notice it. `of_tier`:
    only runs with tiered topics do. `of_transactions`: only runs with transactions do. `of_consumers`: only
    runs with consumers of KIP-848 do.
    `replacements`: by the names of the product. Each gets the original function and its arguments. There are
    more than one if another safeguard backs up this one.
    """

    name: str
    breaks: str
    of_quorum: bool
    of_tier: bool
    of_transactions: bool
    of_consumers: bool
    replacements: dict[str, Function]


SAFEGUARDS: dict[str, Safeguard] = {}


def without(
    name: str,
    breaks: str,
    *,
    of_quorum: bool = False,
    of_tier: bool = False,
    of_transactions: bool = False,
    of_consumers: bool = False,
) -> Callable[[Function], None]:
    def register(replacement: Function) -> None:
        kinds = of_quorum, of_tier, of_transactions, of_consumers
        SAFEGUARDS[name] = Safeguard(name, breaks, *kinds, {name: replacement})

    return register


def and_without(name: str, *, row: str) -> Callable[[Function], None]:
    """Replace another safeguard together with the one that has this row in the table."""

    def register(replacement: Function) -> None:
        SAFEGUARDS[row].replacements[name] = replacement

    return register


@contextmanager
def switched_off(name: str | None) -> Iterator[None]:
    """Replace the functions of a safeguard wherever the product refers to them."""
    with ExitStack() as restored:
        for point, replacement in SAFEGUARDS[name].replacements.items() if name is not None else ():
            original = product.SAFEGUARDS[point]
            for owner, attribute in references(original):
                setattr(owner, attribute, _stand_in(replacement, original))
                restored.callback(setattr, owner, attribute, original)
        yield


def _stand_in(replacement: Function, original: Function) -> Function:
    """A plain function, which binds to an object as a method does."""
    return lambda *args, **kwargs: replacement(original, *args, **kwargs)


def references(function: Function) -> list[tuple[Any, str]]:
    """The modules and classes of the product that have the function as an attribute, and its name there."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "tierlog"]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return [
        (owner, attribute)
        for owner in (*modules, *classes)
        for attribute, value in vars(owner).items()
        if value is function
    ]
