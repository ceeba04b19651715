"""Regular expressions of clients: RE2 syntax, as in Kafka, matched in time linear in the text.

Python's `re` may take exponential time for a short expression. Called by handlers whose requests have one.
"""

import re
from collections.abc import Callable

MEMORY_MAX = 128 * 1024
"""Bytes that a compiled expression may take. `re2` keeps 128 of them. An expression that is built against the
matcher takes up to 10 µs for each character of the text, and a usual one 0.1 µs."""

UNICODE_CLASSES_MAX = 20
"""Classes such as `\\pL` in one expression. RE2 spends up to a millisecond on each before it finds that the
compiled expression is too large: 3,000 would stop the event loop for seconds. More hardly ever fit."""

COUNTED_REPEATS_MAX = 1_000
"""Sum of the counts of repeats such as `a{3,50}` in one expression. RE2 writes each repeat out before it
looks at the size, and keeps the interpreter's lock: a hundred times `a{0,1000}` take 80 ms. This many take
3 ms, twice as many 10 ms."""

_COUNTS = re.compile(r"\{(\d{1,4})(?:,(\d{0,4}))?\}")  # RE2 accepts counts up to 1000


class InvalidPattern(ValueError):
    """The expression is not valid in RE2's syntax, or too large."""


def compile_pattern(text: str) -> Callable[[str], bool]:
    """A function that says whether a whole string matches. Raises InvalidPattern."""
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES_MAX:
        raise InvalidPattern(f"more than {UNICODE_CLASSES_MAX} Unicode classes")
    counts = sum(max(int(low), int(high or 0)) for low, high in _COUNTS.findall(text))
    if counts > COUNTED_REPEATS_MAX:
        raise InvalidPattern(f"its counted repeats amount to more than {COUNTED_REPEATS_MAX}")
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
