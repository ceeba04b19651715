"""`tierlog log …`: dumps, verifies and re-indexes the log files of a stopped tierlog or Kafka broker."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, usage
from tierlog.cli.options import Json
from tierlog.cli.output import counted, print_json, print_status, progress_bar, readable, size

if TYPE_CHECKING:
    from tierlog.broker.storage_tools.offline import PartitionFiles

app = typer.Typer(
    no_args_is_help=True,
    help="Dump and verify the log files of a stopped tierlog or Apache Kafka broker.",
)

Paths = Annotated[
    list[Path],
    typer.Argument(exists=True, help="Log directories, partition directories, or files."),
]


@app.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", help="Print records, with keys and values.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Print records, without their values.")] = False,
    start: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    end: Annotated[int | None, typer.Option("--to", min=0, help="End offset, exclusive.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")] = False,
) -> None:
    """Print the contents of log files.

    The files hold batches with records, indexes, producer snapshots, leader epochs, or checkpoints."""
    from tierlog.broker.storage_tools.dumping import Wanted, dump

    wanted = Wanted(start, end, records, keys)
    show = _show_json if as_json else _show
    with _translate_errors():
        _warn_if_in_use(paths)
        for path in paths:
            for document in dump(path, wanted):
                show(document)


@app.command()
def verify(
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records", help="Decode every record, in addition to the CRC of each batch.")
    ] = False,
    compacted: Annotated[
        bool,
        typer.Option("--compacted", help="Allow gaps in the offsets even without a cleaner checkpoint."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Verify log files. Fails (exit code 1) if there is damage.

    Checks lengths, CRCs and offsets of all batches, and compares indexes, producer snapshots and leader
    epochs with the log. Differences that a broker repairs when it starts are reported as notes, not as
    damage.
    """
    from tierlog.broker.storage_tools.verifying import Problem, Totals, Verification

    totals = Totals()
    problems: list[Problem] = []
    with _translate_errors():
        _warn_if_in_use(paths)
        partitions = _partitions(paths)
        with _progress("verified", partitions) as advance:
            for partition in partitions:
                verification = Verification(partition, totals, advance, records=records, compacted=compacted)
                problems += verification.problems()
    damaged = sum(problem.damage for problem in problems)
    if as_json:
        counts = {name: getattr(totals, name) for name in ("segments", "batches", "records")}
        fields = [{**problem._asdict(), "path": str(problem.path)} for problem in problems]
        print_json({"damaged": damaged > 0, "problems": fields, **counts, "bytes": totals.size})
    else:
        for problem in problems:
            typer.echo(f"{'DAMAGE' if problem.damage else 'note'}  {problem.path}: {problem.message}")
        print_status(
            f"{counted(len(partitions), 'partition')}, {counted(totals.segments, 'segment')},"
            f" {counted(totals.batches, 'batch', 'batches')}, {counted(totals.records, 'record')},"
            f" {size(totals.size)}: {damaged or 'no'} damage"
        )
    if damaged:
        typer.echo("docs/runbooks/damaged-log.md describes how to repair a log.", err=True)
        raise typer.Exit(1)


@app.command("rebuild-index")
def rebuild_index(
    paths: Paths,
    interval: Annotated[
        int, typer.Option("--index-interval-bytes", min=0, help="The topic's index.interval.bytes.")
    ] = 4096,
    as_json: Json = False,
) -> None:
    """Rebuild .index, .timeindex and .txnindex files from the logs, which are not changed.

    Fails if a broker is running on the directory, or if a log is damaged.
    """
    from tierlog.broker.storage_tools.offline import locked, log_directory_of
    from tierlog.broker.storage_tools.reindexing import Rebuilt, rebuild_indexes

    rebuilt: list[Rebuilt] = []
    with _translate_errors():
        for path in paths:
            with locked(log_directory_of(path)):
                partitions = _partitions([path])
                with _progress("rebuilt", partitions) as advance:
                    for partition in partitions:
                        rebuilt += rebuild_indexes(partition, interval, advance)
    changed = [str(index.path) for index in rebuilt if index.changed]
    if as_json:
        print_json({"checked": len(rebuilt), "changed": changed})
        return
    for name in changed:
        typer.echo(name)
    print_status(f"{counted(len(rebuilt), 'index', 'indexes')} checked, {len(changed)} replaced")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise the errors of the storage tools as CliError with a hint."""
    from tierlog.broker.storage.segment import CorruptLog
    from tierlog.broker.storage_tools.offline import InUse, NotALog

    try:
        yield
    except NotALog as error:
        raise usage(
            str(error), hint="Give a log directory, a partition directory, or a file in one."
        ) from None
    except InUse as error:
        raise CliError(str(error), hint="Stop the broker first.") from None
    except CorruptLog as error:
        raise CliError(str(error), hint="List all damage with `tierlog log verify`.") from None
    except OSError as error:
        hint = "Check that the path is readable, and writable for `rebuild-index`."
        raise CliError(str(error), hint=hint) from None


def _partitions(paths: list[Path]) -> "list[PartitionFiles]":
    from tierlog.broker.storage_tools.offline import find_partitions

    return [partition for path in paths for partition in find_partitions(path)]


def _warn_if_in_use(paths: list[Path]) -> None:
    """Print a note if a broker is running on one of the directories.

    Its logs may be read, but their ends may be incomplete.
    """
    from tierlog.broker.storage_tools.offline import InUse, locked, log_directory_of

    for directory in dict.fromkeys(map(log_directory_of, paths)):
        try:
            with locked(directory):
                pass
        except InUse as error:
            print_status(f"note: {error}; the ends of its logs may be incomplete")


@contextmanager
def _progress(label: str, partitions: "list[PartitionFiles]") -> Iterator[Callable[[int], None]]:
    """Show a progress bar. Yields a function that advances it by a number of bytes."""
    with progress_bar(label) as progress:
        task = progress.add_task(label, total=sum(partition.size for partition in partitions))
        yield lambda count: progress.advance(task, count)


def _show_json(document: dict[str, Any]) -> None:
    print_json(_readable(document))


def _show(document: dict[str, Any]) -> None:
    kind = document.pop("kind")
    text = _FORMATS.get(kind, _all_fields)(_readable(document))
    typer.echo(text if kind == "file" else f"  {kind}: {text}" if kind != "record" else f"    {text}")


def _readable(document: dict[str, Any]) -> dict[str, Any]:
    """The document with all bytes as text, also those in record headers."""
    return {
        name: [[key, readable(value)] for key, value in field]
        if name == "headers"
        else readable(field)
        if isinstance(field, bytes)
        else field
        for name, field in document.items()
    }


def _all_fields(document: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in document.items())


def _file(document: dict[str, Any]) -> str:
    return f"{document['path']} ({document['bytes']:,} bytes)"


def _batch(batch: dict[str, Any]) -> str:
    text = (
        f"offsets {batch['base_offset']} to {batch['last_offset']} at {batch['position']}:"
        f" {counted(batch['records'], 'record')}, {batch['bytes']} bytes, epoch {batch['leader_epoch']},"
        f" {batch['codec']}, {batch['timestamp_type']} {_time(batch['max_timestamp'])}"
    )
    if batch["producer_id"] >= 0:
        text += f", producer {batch['producer_id']} epoch {batch['producer_epoch']}"
        text += f" sequence {batch['base_sequence']}"
    text += ", transactional" if batch["transactional"] else ""
    return text + (", control" if batch["control"] else "")


def _record(record: dict[str, Any]) -> str:
    text = f"{record.pop('offset')}  {_time(record.pop('timestamp'))}"
    return text + "".join(f"  {name}={_quoted(value)}" for name, value in record.items() if value != [])


def _quoted(value: object) -> str:
    """A field of a record; null as in JSON."""
    return "null" if value is None else repr(value)


def _time_entry(entry: dict[str, Any]) -> str:
    return f"{_time(entry['timestamp'])} ({entry['timestamp']}) at offset {entry['offset']}"


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number itself if it is after the year 9999."""
    from datetime import UTC, datetime, timedelta

    if timestamp_ms < 0:
        return "no timestamp"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {
    "file": _file,
    "batch": _batch,
    "record": _record,
    "time-index": _time_entry,
}
