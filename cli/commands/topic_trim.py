"""`tierlog topic trim`: deletes the oldest records of a topic, in both tiers (DeleteRecords)."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands.consume import parse_time
from tierlog.cli.errors import no_partition, usage
from tierlog.cli.options import (
    INT32_MAX,
    INT64_MAX,
    Bootstrap,
    ClientConfig,
    DryRun,
    Json,
    Topic,
    Yes,
    confirm,
)
from tierlog.cli.output import counted, print_rows, print_status

if TYPE_CHECKING:
    from tierlog.cli.client import KafkaClient

COLUMNS = {"partition": "partition", "before": "log start", "after": "new log start", "records": "offsets"}
TIMEOUT_MS = 30_000


def trim(
    topic: Topic,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", min=0, max=INT64_MAX, help="New log start of each partition."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(
            "--timestamp",
            "-t",
            metavar="WHEN",
            help="Delete records before the first one with this timestamp or a later one: milliseconds since "
            "1970, or ISO 8601.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Only this one. May be repeated."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete the oldest records of a topic for good, local and remote.

    A record with a timestamp that is out of order may be deleted with those before it.
    """
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.targets import bootstrap_target

    if (offset is None) == (timestamp is None):
        raise usage("no new start given", hint="Give one of --offset and --timestamp.")
    when = None if timestamp is None else parse_time(timestamp)
    with KafkaClient(bootstrap, changes=yes and not dry_run) as client:
        rows = _rows(client, topic, offset, when, partition or [])
        count = sum(row["records"] for row in rows)
        if rows and not dry_run:
            if not yes:
                print_rows(COLUMNS, rows, title=topic)
                confirm(f"Delete {counted(count, 'offset')} of {topic} in {bootstrap_target(bootstrap)}?")
            _delete(client, topic, rows)
    print_rows(COLUMNS, rows, title=topic, as_json=as_json)
    if not rows:
        print_status("nothing to delete: the log starts there already, or later")


def _rows(
    client: "KafkaClient", topic: str, offset: int | None, when: int | None, only: list[int]
) -> list[dict[str, Any]]:
    """Partitions that begin before the new start. Raises CliError for a partition that does not exist."""
    from tierlog.cli import topics

    count = len(client.topic(topic).partitions)
    for one in only:
        if one >= count:
            raise no_partition(topic, one, count)
    wanted = sorted(set(only) or range(count))
    starts = topics.offsets(client, topic, wanted, topics.EARLIEST)
    ends = topics.offsets(client, topic, wanted, topics.LATEST)
    found = {} if when is None else topics.offsets(client, topic, wanted, when)
    rows = []
    for one in wanted:
        target = offset if offset is not None else found[one] if found[one] >= 0 else ends[one]
        new = min(target, ends[one])
        if new > starts[one]:
            rows.append({"partition": one, "before": starts[one], "after": new, "records": new - starts[one]})
    return rows


def _delete(client: "KafkaClient", topic: str, rows: list[dict[str, Any]]) -> None:
    from tierlog.cli.client import raise_for
    from tierlog.protocol.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    by_leader: dict[int, list[DeleteRecordsPartition]] = {}
    for row in rows:
        wanted = DeleteRecordsPartition(partition_index=row["partition"], offset=row["after"])
        by_leader.setdefault(client.leader(topic, row["partition"]), []).append(wanted)
    for leader, partitions in by_leader.items():
        named = DeleteRecordsTopic(name=topic, partitions=partitions)
        response = client.call(DeleteRecordsRequest(topics=[named], timeout_ms=TIMEOUT_MS), leader)
        for one in response.topics[0].partitions:
            raise_for(one.error_code, None, f"records of {topic}-{one.partition_index}")
