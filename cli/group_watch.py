"""Live view of a group: a refreshed table in a terminal, else one line (or JSON document) per change."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tierlog.cli import group_lag
from tierlog.cli.client import KafkaClient
from tierlog.cli.groups import Row
from tierlog.cli.output import console, counted, duration, listed, print_json, printable, table

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_INTERVAL_S = 1.0

LAG_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "committed_offset": "committed",
    "log_end_offset": "log end",
    "lag": "lag",
    "time_lag": "lag in time",
    "client_id": "client",
    "host": "host",
    "member_id": "member",
}
STABLE_COLUMN = {"last_stable_offset": "last stable"}
ERROR_COLUMN = {"error": "error"}


def watch(client: KafkaClient, group: str, *, as_json: bool) -> None:
    """Show the group until it is interrupted or the group is deleted."""
    polls = _polls(client, group)
    if as_json:
        _print_documents(polls)
    elif console().is_terminal:
        _show_live(polls)
    else:
        _print_changes(polls)


def summary(found: Row) -> str:
    """One line: state, members and total lag. More lines say what to do about partitions without a lag."""
    members = counted(len(found["members"]), "member")
    words = [f"{found['group']}: {found['type']} group", found["state"], members]
    if found["assignor"]:
        words.append(f"assignor {found['assignor']}")
    lags = [row["lag"] for row in found.get("partitions", ()) if row["lag"] is not None]
    if lags:
        times = [row["lag_ms"] for row in found["partitions"] if row["lag_ms"]]
        behind = f", up to {duration(max(times))}" if times else ""
        words.append(f"lag {counted(sum(lags), 'record')}{behind}")
    failed = [row for row in found.get("partitions", ()) if row["error"] and row["lag"] is None]
    if not failed:
        return ", ".join(words)
    names = listed([f"{row['topic']}-{row['partition']}" for row in failed])
    remedies = dict.fromkeys(row["remedy"] for row in failed)
    return "\n".join([", ".join([*words, f"lag unknown of {names}"]), *remedies])


def lag_columns(rows: list[Row]) -> dict[str, str]:
    """The last stable offset has a column only while open transactions hold it back, and the error only if
    there is one."""
    is_held_back = any(row["last_stable_offset"] != row["log_end_offset"] for row in rows)
    columns = list(LAG_COLUMNS.items())
    errors = ERROR_COLUMN.items() if any(row["error"] for row in rows) else ()
    return dict([*columns[:4], *(STABLE_COLUMN.items() if is_held_back else ()), *errors, *columns[4:]])


def shown(rows: list[Row]) -> list[Row]:
    """The rows with their lag in time in a readable unit."""
    return [{**row, "time_lag": None if row["lag_ms"] is None else duration(row["lag_ms"])} for row in rows]


def _polls(client: KafkaClient, group: str) -> Iterator[Row]:
    while True:
        started = time.monotonic()
        yield group_lag.describe(client, group)
        time.sleep(max(0.0, REFRESH_INTERVAL_S - (time.monotonic() - started)))


def _show_live(polls: Iterator[Row]) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for found in polls:
            live.update(_render(found), refresh=True)


def _render(found: Row) -> "RenderableType":
    rows = found["partitions"]
    return table(lag_columns(rows), shown(rows), title=summary(found))


def _print_changes(polls: Iterator[Row]) -> None:
    """One line for each partition whose offset or owner has changed, and for each change of the group."""
    before: dict[str, str] = {}
    for found in polls:
        now = {"": f"{found['group']}: {found['state']}, {counted(len(found['members']), 'member')}"}
        for row in found["partitions"]:
            offset, lag = (_number(row[key]) for key in ("committed_offset", "lag"))
            name = f"{row['topic']}-{row['partition']}"
            owner = row["client_id"] or "no member"
            why = f", {row['error']}: {row['remedy']}" if row["error"] else ""
            now[name] = f"{name}: committed {offset}, lag {lag}, {owner}{why}"
        for name, line in now.items():
            if before.get(name) != line:
                console().print(printable(line), markup=False)
        before = now


def _print_documents(polls: Iterator[Row]) -> None:
    before: Any = None
    for found in polls:
        # the lag in time changes with every look
        now = {**found, "partitions": [{**row, "lag_ms": None} for row in found["partitions"]]}
        if now != before:
            print_json(document(found))
        before = now


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def document(found: Row) -> Row:
    """The JSON document of a group: partitions of members as `topic-partition`."""
    lists = ("partitions", "target_partitions")
    members = [
        {
            key: [str(one) for one in value] if key in lists and value is not None else value
            for key, value in member.items()
        }
        for member in found["members"]
    ]
    return {**found, "members": members}
