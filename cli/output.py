"""Output of commands: a rich table, or JSON or YAML for scripts.

Results go to stdout, status messages to stderr.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tierlog.base.text import counted as counted
from tierlog.base.text import duration as duration
from tierlog.base.text import listed as listed
from tierlog.base.text import printable as printable
from tierlog.base.text import size as size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

FORMS = TABLE, JSON, YAML, WIDE = ("table", "json", "yaml", "wide")
"""Values of --output. `wide`: a table with all that JSON has, and no narrower than its content."""

WIDE_COLUMNS = 1000


@dataclass(slots=True)
class _Chosen:
    """For the command that runs."""

    form: str = TABLE


_chosen = _Chosen()


def use_form(form: str) -> bool:
    """Print results in one of FORMS. Returns whether that is a form for scripts."""
    _chosen.form = form
    return form in (JSON, YAML)


def console(*, stderr: bool = False) -> "Console":
    """A console as wide as the terminal, or wide enough for the content if the stream is not a terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if _chosen.form == WIDE:
        made.width = WIDE_COLUMNS
    elif not made.is_terminal:
        made.width = 200  # do not wrap piped output at 80 columns
    return made


def print_json(document: Any) -> None:
    """Print a document on one line, so that several can be streamed; or as a document of YAML."""
    if _chosen.form == YAML:
        from tierlog.cli.yaml_text import yaml_text

        sys.stdout.write("---\n" + yaml_text(json.loads(json.dumps(document, default=str))))
        sys.stdout.flush()
        return
    text = json.dumps(document, default=str, ensure_ascii=False)
    if not text.isprintable():  # JSON escapes some control characters, and terminals obey others
        text = "".join(_in_json(one) for one in text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rows(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool = False
) -> None:
    """Print rows as a table or a JSON array. `columns` maps keys to headings; JSON has all keys."""
    if as_json:
        print_json(list(rows))
        return
    if _chosen.form == WIDE:
        more = dict.fromkeys(key for row in rows for key in row if key not in columns)
        columns = {**columns, **{key: key.replace("_", " ") for key in more}}
    console().print(table(columns, rows, title=title))


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, title: str) -> "Table":
    """The table that `print_rows` prints."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=escape(printable(title)), title_justify="left", header_style="bold")
    for key, heading in columns.items():
        numeric = bool(rows) and all(isinstance(row.get(key), int | float | None) for row in rows)
        made.add_column(heading, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(_cell(row.get(key)) for key in columns))
    return made


def progress_bar(label: str) -> "Progress":
    """A progress bar of bytes on stderr, if that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


def print_text(text: str) -> None:
    """Print a result of several lines that is not a table."""
    sys.stdout.write(printable(text, "\n") + "\n")


def print_status(message: str) -> None:
    """Print a message to stderr, because it is not part of the result."""
    sys.stderr.write(printable(message, "\n") + "\n")


def print_outcome(message: str, document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what a command did: a message, or one JSON document."""
    if as_json:
        print_json(document)
    else:
        print_status(message)


def alternatives(words: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(words[:-1])} or {words[-1]}"


def readable(data: bytes | None) -> Any:
    """Text if the bytes are UTF-8, else `{"base64": …}`. None stays None."""
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
        return escape(", ".join(printable(str(item)) for item in value)) or "-"
    return escape(printable(str(value)))


def _in_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
