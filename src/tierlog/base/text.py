"""Texts for people: counts, sizes, times, lists of names, and names that clients chose."""

from collections.abc import Sequence

LISTED_MAX = 20
"""Names that a message lists; JSON has all of them."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Bytes in a readable unit: 17.3 MiB."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def duration(ms: float) -> str:
    """A time in a readable unit: 4.2 min."""
    value = ms / 1000
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if value < length:
            return f"{value:.1f} {unit}"
        value /= length
    return f"{value:.1f} d"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 record, 2 records."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = LISTED_MAX) -> str:
    """The names, or the first of them and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def printable(text: str, keep: str = "") -> str:
    """The text with escape sequences instead of characters that a terminal would obey or hide.

    Clients choose the names of groups, transactions and themselves. Without this, a client could write to the
    terminal of an administrator, or make two names look alike. `keep`: characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else repr(one)[1:-1] for one in text)
