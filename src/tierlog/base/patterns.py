"""Regular expressions of clients: RE2 syntax, as in Kafka, matched in time linear in the text.

Python's `re` may take exponential time for a short expression. Called by handlers whose requests have one.
"""

from collections.abc import Callable

MEMORY_MAX = 128 * 1024
"""Bytes that a compiled expression may take. `re2` keeps 128 of them. An expression that is built against the
matcher takes up to 10 µs for each character of the text, and a usual one 0.1 µs."""

UNICODE_CLASSES_MAX = 50
"""Classes such as `\\pL` in one expression. RE2 spends up to a millisecond on each before it finds that the
compiled expression is too large: 3,000 would stop the event loop for seconds. More hardly ever fit."""


class InvalidPattern(ValueError):
    """The expression is not valid in RE2's syntax, or too large."""


def compile_pattern(text: str) -> Callable[[str], bool]:
    """A function that says whether a whole string matches. Raises InvalidPattern."""
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES_MAX:
        raise InvalidPattern(f"more than {UNICODE_CLASSES_MAX} Unicode classes")
    import re2  # most brokers never need these 2 MB

    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(text, options)
    except re2.error as fault:
        raise InvalidPattern(str(fault)) from None
    return lambda tested: compiled.fullmatch(tested) is not None
