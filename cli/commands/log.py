"""`tierlog log …`: the files of a stopped broker, tierlog's or Kafka's: what they say, and if it is right."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.options import Json

if TYPE_CHECKING:
    from tierlog.broker.storage_tools.offline import PartitionFiles

app = typer.Typer(
    no_args_is_help=True,
    help="The files of a stopped broker, and of Apache Kafka: what they say, and whether it is right.",
)

Paths = Annotated[
    list[Path],
    typer.Argument(exists=True, help="Data directories, partitions' directories, or single files."),
]


@app.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", help="Records too, with keys and values.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Records too, without their values.")] = False,
    start: Annotated[int, typer.Option("--from", min=0, help="The first offset.")] = 0,
    end: Annotated[int | None, typer.Option("--to", min=0, help="The offset to stop before.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per line.")] = False,
) -> None:
    """Print what the files say: batches, records, indexes, producer snapshots, leader epochs, checkpoints."""
    from tierlog.broker.storage_tools.dumping import Wanted, dump

    wanted = Wanted(start, end, records, keys)
    show = _show_json if as_json else _show
    with _refusals():
        _tell_if_in_use(paths)
        for path in paths:
            for document in dump(path, wanted):
                show(document)


@app.command()
def verify(
    paths: Paths,
    records: Annotated[
        bool, typer.Option("--records", help="Decode every record too, not only check the CRC of its batch.")
    ] = False,
    compacted: Annotated[
        bool, typer.Option("--compacted", help="Offsets may be missing, also where no checkpoint says so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check logs against their CRCs and all that stands beside them against the logs; exit code 1 at damage.

    Checked are lengths, CRCs and offsets of all batches, the three indexes, producer snapshots and leader
    epochs. What a broker puts right when it starts is told and is no damage.
    """
    from tierlog.broker.storage_tools.verifying import Problem, Totals, Verification
    from tierlog.cli.output import done, print_json, size

    totals = Totals()
    found: list[Problem] = []
    with _refusals():
        _tell_if_in_use(paths)
        partitions = _partitions(paths)
        with _progress("verified", partitions) as advance:
            for partition in partitions:
                verification = Verification(partition, totals, advance, records=records, compacted=compacted)
                found += verification.problems()
    damaged = sum(problem.damage for problem in found)
    if as_json:
        looked_at = {name: getattr(totals, name) for name in ("segments", "batches", "records")}
        problems = [{**problem._asdict(), "path": str(problem.path)} for problem in found]
        print_json({"damaged": damaged > 0, "problems": problems, **looked_at, "bytes": totals.size})
    else:
        for problem in found:
            typer.echo(f"{'DAMAGE' if problem.damage else 'note'}  {problem.path}: {problem.message}")
        done(
            f"{len(partitions)} partitions, {totals.segments} segments, {totals.batches:,} batches,"
            f" {totals.records:,} records, {size(totals.size)}: {damaged or 'no'} damage"
        )
    if damaged:
        typer.echo("docs/runbooks/damaged-log.md says how to repair a log.", err=True)
        raise typer.Exit(1)


@app.command("rebuild-index")
def rebuild_index(
    paths: Paths,
    interval: Annotated[
        int, typer.Option("--index-interval-bytes", min=0, help="As the topic's index.interval.bytes.")
    ] = 4096,
    as_json: Json = False,
) -> None:
    """Write .index, .timeindex and .txnindex of segments anew from the logs, which are only read.

    Refuses while a broker runs on the directory, and at damage in a log.
    """
    from tierlog.broker.storage_tools.offline import locked, log_directory_of
    from tierlog.broker.storage_tools.reindexing import Rebuilt, rebuild_indexes
    from tierlog.cli.output import done, print_json

    rebuilt: list[Rebuilt] = []
    with _refusals():
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
    done(f"{len(rebuilt)} indexes, of which {len(changed)} were not as they should be and are new")


@contextmanager
def _refusals() -> Iterator[None]:
    from tierlog.broker.storage.segment import CorruptLog
    from tierlog.broker.storage_tools.offline import InUse, NotALog
    from tierlog.cli.errors import CliError, usage

    try:
        yield
    except NotALog as error:
        raise usage(
            str(error), hint="Name a data directory, a partition's directory or a file in one."
        ) from None
    except InUse as error:
        raise CliError(str(error), hint="Stop it first.") from None
    except CorruptLog as error:
        raise CliError(str(error), hint="`tierlog log verify` tells all that is wrong.") from None
    except OSError as error:
        hint = "Check that the path can be read, and written to by `rebuild-index`."
        raise CliError(str(error), hint=hint) from None


def _partitions(paths: list[Path]) -> "list[PartitionFiles]":
    from tierlog.broker.storage_tools.offline import find_partitions

    return [partition for path in paths for partition in find_partitions(path)]


def _tell_if_in_use(paths: list[Path]) -> None:
    """Reading beside a broker is allowed; it may find the ends of logs half written."""
    from tierlog.broker.storage_tools.offline import InUse, locked, log_directory_of
    from tierlog.cli.output import done

    for directory in dict.fromkeys(map(log_directory_of, paths)):
        try:
            with locked(directory):
                pass
        except InUse as error:
            done(f"note: {error}; the ends of its logs are moving")


@contextmanager
def _progress(words: str, partitions: "list[PartitionFiles]") -> Iterator[Callable[[int], None]]:
    """A bar of bytes on stderr, where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from tierlog.cli.output import console

    columns = (TextColumn(words), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task(words, total=sum(partition.size for partition in partitions))
        yield lambda count: progress.advance(task, count)


def _show_json(document: dict[str, Any]) -> None:
    from tierlog.cli.output import print_json

    print_json(_readable(document))


def _show(document: dict[str, Any]) -> None:
    kind = document.pop("kind")
    words = _WORDS.get(kind, _all_fields)(_readable(document))
    typer.echo(words if kind == "file" else f"  {kind}: {words}" if kind != "record" else f"    {words}")


def _readable(document: dict[str, Any]) -> dict[str, Any]:
    from tierlog.cli.output import readable

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
    words = (
        f"offsets {batch['base_offset']} to {batch['last_offset']} at {batch['position']}:"
        f" {batch['records']} records, {batch['bytes']} bytes, epoch {batch['leader_epoch']},"
        f" {batch['codec']}, {batch['timestamp_type']} {_time(batch['max_timestamp'])}"
    )
    if batch["producer_id"] >= 0:
        words += f", producer {batch['producer_id']} epoch {batch['producer_epoch']}"
        words += f" sequence {batch['base_sequence']}"
    words += ", transactional" if batch["transactional"] else ""
    return words + (", control" if batch["control"] else "")


def _record(record: dict[str, Any]) -> str:
    words = f"{record.pop('offset')}  {_time(record.pop('timestamp'))}"
    return words + "".join(f"  {name}={value!r}" for name, value in record.items() if value != [])


def _time_entry(entry: dict[str, Any]) -> str:
    return f"{_time(entry['timestamp'])} ({entry['timestamp']}) at offset {entry['offset']}"


def _time(timestamp_ms: int) -> str:
    from datetime import UTC, datetime, timedelta

    if timestamp_ms < 0:
        return "no time"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "file": _file,
    "batch": _batch,
    "record": _record,
    "time-index": _time_entry,
}
