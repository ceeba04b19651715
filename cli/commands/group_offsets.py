"""`tierlog group seek|reset|offset-delete|export|import`: sets, deletes and copies committed offsets."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.commands.consume import parse_time
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.options import (
    INT64_MAX,
    Bootstrap,
    ClientConfig,
    DryRun,
    Group,
    Json,
    Partition,
    Topic,
    Yes,
    confirm,
    group_id,
)
from tierlog.cli.output import counted, print_json, print_outcome, print_rows, print_status
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierlog.base.types import TopicPartition
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.group_offsets import Reset
    from tierlog.cli.groups import Committed, Row


class Format(StrEnum):
    """How offsets are written."""

    JSON = "json"
    CSV = "csv"


Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITION,...]",
        help="Only this topic, or only these partitions of it. May be repeated.",
    ),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All partitions with a committed offset of the group.")
]
Execute = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", "--execute", help="Set the offsets without a question. --execute is Kafka's name."
    ),
]
STDIN = Path("-")
PLAN_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "committed_offset": "committed",
    "new_offset": "new",
    "lag": "new lag",
    "note": "note",
}
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the log start offset.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the log end offset.")]
ToOffset = Annotated[int | None, typer.Option("--to-offset", min=0, max=INT64_MAX, help="To this offset.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        "--to-timestamp",
        metavar="WHEN",
        help="To the first record with this timestamp or a later one: milliseconds since 1970, or ISO 8601.",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        "--by-duration",
        metavar="DURATION",
        help="To the first record of the last DURATION: 90m, 36h, 7d, or ISO 8601 such as P1DT12H.",
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(
        "--shift-by", min=-INT64_MAX, max=INT64_MAX, help="By this many offsets; negative: into the past."
    ),
]
ToCurrent = Annotated[
    bool, typer.Option("--to-current", help="To the committed offset, or to the log end if there is none.")
]
FromFile = Annotated[
    Path | None,
    typer.Option("--from-file", dir_okay=False, exists=True, help="To the offsets of this JSON or CSV file."),
]


def seek(
    group: Group,
    topic: Topic,
    partition: Partition,
    offset: Annotated[int, typer.Argument(min=0, max=INT64_MAX, help="The new committed offset.")],
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Set the committed offset of one partition, for a group without members."""
    from tierlog.base.types import TopicPartition
    from tierlog.cli import group_offsets, groups
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, changes=True) as client:
        _require_no_members(client, group)
        target = TopicPartition(topic, partition)
        ends = group_offsets.find_ends(client, [target])
        start, end = ends.start[target], ends.end[target]
        if not start <= offset <= end:
            raise CliError(
                f"offset {offset:,} of {target} is out of range",
                hint=f"Its range is {start:,} to {end:,}.",
                code=ExitCode.NOT_FOUND,
            )
        before = groups.committed(client, group).get(target)
        groups.commit(client, group, {target: groups.Committed(offset)})
    document = {
        "group": group,
        "topic": topic,
        "partition": partition,
        "committed_offset": None if before is None else before.offset,
        "new_offset": offset,
        "lag": end - offset,
    }
    print_outcome(f"group {group} continues at offset {offset:,} of {target}", document, as_json=as_json)


def reset(
    group: Group,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    to_current: ToCurrent = False,
    from_file: FromFile = None,
    dry_run: DryRun = False,
    yes: Execute = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Set committed offsets of a group without members.

    It shows the new offsets and asks before it sets them. Offsets below the log start or above the log end
    are moved into that range.
    """
    from tierlog.cli import group_offsets
    from tierlog.cli.client import KafkaClient

    wanted = _target(
        {
            "to-earliest": to_earliest,
            "to-latest": to_latest,
            "to-offset": to_offset,
            "to-datetime": to_datetime,
            "by-duration": by_duration,
            "shift-by": shift_by,
            "to-current": to_current,
            "from-file": from_file,
        }
    )
    if bool(topic) + all_topics + (wanted.offsets is not None) != 1:
        hint = "Give --topic TOPIC, --topic TOPIC:0,1, --all-topics, or a file that names the partitions."
        raise usage("choose the partitions in one way", hint=hint)
    with KafkaClient(bootstrap, changes=not dry_run) as client:
        _require_no_members(client, group, is_warning=dry_run)
        rows = group_offsets.reset_rows(client, group, wanted, topic or ())
        _set(client, rows, {}, dry_run=dry_run, yes=yes, as_json=as_json)


def offset_delete(
    group: Group,
    topic: Topics = None,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete committed offsets of topics that no member of the group subscribes to."""
    from tierlog.cli import group_offsets, groups
    from tierlog.cli.client import KafkaClient

    if not topic:
        raise usage("no topic given", hint="For example: --topic orders, or --topic orders:0,1")
    with KafkaClient(bootstrap, changes=True) as client:
        groups.describe(client, group)
        chosen = group_offsets.selected(client, topic)
        committed = groups.committed(client, group)
        partitions = [one for one in chosen if one in committed]
        if not partitions:
            raise CliError(
                f"group {group} has no committed offsets there",
                hint=f"See its offsets with `tierlog group describe {group}`.",
                code=ExitCode.NOT_FOUND,
            )
        if not yes:
            confirm(f"Delete {counted(len(partitions), 'committed offset')} of group {group}?")
        groups.delete_offsets(client, group, partitions)
    document = {"group": group, "deleted": [str(one) for one in partitions]}
    message = f"{counted(len(partitions), 'committed offset')} of group {group} deleted"
    print_outcome(message, document, as_json=as_json)


def export(
    names: Annotated[
        list[str], typer.Argument(metavar="GROUP...", callback=group_id, help="Ids of the groups.")
    ],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", dir_okay=False, help="Write to this file. Default: print.")
    ] = None,
    format: Annotated[
        Format, typer.Option("--format", "-F", help="json, or the CSV of Kafka's kafka-consumer-groups.")
    ] = Format.JSON,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Print the committed offsets of groups, for `tierlog group import`."""
    from tierlog.cli import group_files, groups
    from tierlog.cli.client import KafkaClient

    offsets = {}
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        for name in dict.fromkeys(names):
            offsets[name] = groups.committed(client, name)
            if not offsets[name]:
                groups.describe(client, name)  # raises if there is no such group
    if format == Format.CSV and not as_json:
        text = group_files.csv_text(offsets)
    else:
        text = group_files.json_text(offsets)
    if file is None:
        sys.stdout.write(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise CliError(f"cannot write {file}: {failure.strerror}", hint="Choose another --file.") from None
    print_status(f"{counted(sum(map(len, offsets.values())), 'offset')} written to {file}")


def import_(
    file: Annotated[
        Path, typer.Argument(help="File of `tierlog group export` or of Kafka's tool; -: stdin.")
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", callback=group_id, help="Set the offsets of this group instead of the file's."
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Execute = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Set the committed offsets of groups without members to those of a file.

    It shows the new offsets and asks before it sets them. Offsets below the log start or above the log end
    are moved into that range.
    """
    from tierlog.cli import group_offsets, groups
    from tierlog.cli.client import KafkaClient

    stored = _stored(file, group)
    with KafkaClient(bootstrap, changes=not dry_run) as client:
        rows: list[Row] = []
        for name, offsets in stored.items():
            _require_no_members(client, name, is_warning=dry_run)
            committed = groups.committed(client, name)
            new = {partition: found.offset for partition, found in offsets.items()}
            ends = group_offsets.find_ends(client, offsets)
            rows += group_offsets.plan(name, new, committed, ends)
        _set(client, rows, stored, dry_run=dry_run, yes=yes, as_json=as_json)


def _stored(file: Path, group: str | None) -> "dict[str, dict[TopicPartition, Committed]]":
    """Group -> the offsets that a file has for it."""
    from tierlog.cli import group_files

    stored = group_files.parse(_read(file), str(file))
    if group is not None:
        if len(stored) > 1:
            raise usage(f"{file} has the offsets of {len(stored)} groups", hint="Leave --group out.")
        return {group: next(iter(stored.values()))}
    if None in stored:
        raise usage(f"{file} names no group", hint="Name it with --group.")
    return {name: offsets for name, offsets in stored.items() if name is not None}


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
        raise CliError(f"cannot read {file}: {reason}", hint="Check the path.") from None


def _target(options: "Mapping[str, object]") -> "Reset":
    """The one option that says where to. Raises CliError if there are none or several."""
    from tierlog.base.clock import SystemClock
    from tierlog.cli import group_files
    from tierlog.cli.group_offsets import Reset, To, parse_duration

    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if len(given) != 1:
        raise usage("choose the new offsets in one way", hint=f"Use one of --{', --'.join(To)}.")
    [(name, value)] = given.items()
    to = To(name)
    if to is To.DATETIME:
        return Reset(to, parse_time(str(value)))
    if to is To.DURATION:
        return Reset(to, max(SystemClock().now_ms() - parse_duration(str(value)), 0))
    if to is To.FILE:
        found = group_files.parse(_read(Path(str(value))), str(value))
        if len(found) > 1:
            hint = "Set the offsets of several groups with `tierlog group import`."
            raise usage(f"{value} has the offsets of {len(found)} groups", hint=hint)
        offsets = {partition: one.offset for partition, one in next(iter(found.values())).items()}
        return Reset(to, offsets=offsets)
    return Reset(to, value if isinstance(value, int) else 0)


def _require_no_members(client: "KafkaClient", group: str, *, is_warning: bool = False) -> None:
    """Raises CliError if the group has members: they would overwrite the offsets. `is_warning`: print it."""
    from tierlog.cli import groups

    found = groups.find(client, group)
    if found is not None and found["members"]:
        refusal = groups.has_members(group, "its offsets can only be set without", found["members"])
        if not is_warning:
            raise refusal
        print_status(f"{refusal.message}\n{refusal.hint}")


def _set(
    client: "KafkaClient",
    rows: "list[Row]",
    stored: "Mapping[str, Mapping[TopicPartition, Committed]]",
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the plan, ask, and commit the offsets. `stored`: where their metadata is, if they have any."""
    from tierlog.base.types import TopicPartition
    from tierlog.cli import groups
    from tierlog.cli.groups import Committed

    names = list(dict.fromkeys(row["group"] for row in rows))
    what = f"{counted(len(rows), 'offset')} of {counted(len(names), 'group')}"
    columns = PLAN_COLUMNS if len(names) == 1 else {"group": "group", **PLAN_COLUMNS}
    if not as_json:
        print_rows(
            columns, rows, title=f"New offsets of group {names[0]}" if len(names) == 1 else "New offsets"
        )
    if not dry_run and not yes:
        confirm(f"Set {what}?")
    for name in () if dry_run else names:
        metadata = stored.get(name, {})
        offsets = {}
        for row in rows:
            if row["group"] == name:
                partition = TopicPartition(row["topic"], row["partition"])
                text = metadata[partition].metadata if partition in metadata else ""
                offsets[partition] = Committed(row["new_offset"], metadata=text)
        groups.commit(client, name, offsets)
    if as_json:
        print_json([{**row, "set": not dry_run} for row in rows])
    else:
        print_status("nothing was changed" if dry_run else f"{what} set")
