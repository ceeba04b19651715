"""What commands print: a rich table for people, or one JSON document for scripts.

Results go to stdout, words about them to stderr.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def console(*, stderr: bool = False) -> "Console":
    """A console of the given stream; as wide as the terminal, or as the content where there is none."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = 200  # piped output is not folded at 80 columns
    return made


def print_json(document: Any) -> None:
    """One line per document, so that several can be streamed and each parsed by itself."""
    sys.stdout.write(json.dumps(document, default=str, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_rows(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool
) -> None:
    """A list of like things. `columns` maps keys of a row to headings; JSON has all keys, headed or not."""
    if as_json:
        print_json(list(rows))
    else:
        console().print(table(columns, rows, title=title))


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, title: str) -> "Table":
    """As `print_rows` prints it."""
    from rich.table import Table

    drawn = Table(title=title, title_justify="left", header_style="bold")
    for key, heading in columns.items():
        numeric = bool(rows) and all(isinstance(row.get(key), int | float | None) for row in rows)
        drawn.add_column(heading, justify="right" if numeric else "left")
    for row in rows:
        drawn.add_row(*(_cell(row.get(key)) for key in columns))
    return drawn


def done(message: str) -> None:
    """Tells a person what was done; not part of the result, so it goes to stderr."""
    sys.stderr.write(message + "\n")


def print_done(message: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """What a command did: a word to a person, or one JSON document."""
    if as_json:
        print_json(document)
    else:
        done(message)


def size(count: float) -> str:
    """Bytes in the unit that leaves one to four digits: 17.3 MiB."""
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def readable(data: bytes | None) -> Any:
    """Text where the bytes are UTF-8, else `{"base64": …}`; None stays None."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return escape(", ".join(str(item) for item in value)) or "-"
    return escape(str(value))
