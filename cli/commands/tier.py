"""`tierlog tier …`: shows which offsets are local or remote, and uploads a topic at once."""

from typing import Annotated, Any

import typer

from tierlog.cli.commands import tier_checks, tier_snapshots
from tierlog.cli.options import INT64_MAX, Admin, Bootstrap, ClientConfig, Json, OnlyTopic, Partition, Topic
from tierlog.cli.output import duration, print_json, print_outcome, print_rows, size

app = typer.Typer(no_args_is_help=True, help="Show, upload and verify the remote part of tiered topics.")

FLUSH_TIMEOUT_S = 300.0
STATUS_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "remote": "remote",
    "local": "local",
    "remote_size": "remote bytes",
    "local_size": "local bytes",
    "pending_size": "to upload",
    "pending_age": "oldest not uploaded",
    "state": "state",
}


@app.command()
def status(
    topic: OnlyTopic = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the local and remote offsets and bytes of each partition.

    It also shows how far its uploads are behind: bytes of rolled segments, and the age of the oldest record
    that is not uploaded.
    """
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap)
    response = _merged(api.of_leaders("/v1/tier/status", topic))
    if topic is not None and not response["partitions"]:
        raise tier_checks.nothing_tiered(api, topic)
    if as_json:
        print_json(response)
        return
    print_rows(
        STATUS_COLUMNS,
        [status_row(row) for row in response["partitions"]],
        title="Offsets per tier (ends exclusive)",
    )


@app.command()
def flush(
    topic: Topic,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Roll the active segments of a topic and upload all segments.

    Returns when all offsets are remote, and fails at once if the brokers know that the object store is
    unavailable.
    """
    from tierlog.cli import flushing
    from tierlog.cli.admin import admin_api

    rows = flushing.flush(admin_api(admin, bootstrap, changes=True), topic, FLUSH_TIMEOUT_S)
    print_outcome(f"topic {topic} is completely uploaded", {"partitions": rows}, as_json=as_json)


@app.command()
def explain(
    topic: Topic,
    partition: Partition,
    offset: Annotated[int, typer.Argument(min=0, max=INT64_MAX, help="The offset.")],
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the file or object that holds an offset, and the byte range in it."""
    from tierlog.cli.admin import admin_api

    [leader] = admin_api(admin, bootstrap).live_leaders(topic, partition)
    response = leader.get("/v1/tier/explain", topic=topic, partition=partition, offset=offset)
    if as_json:
        print_json(response)
        return
    rows = [{"name": name, "value": value} for name, value in response.items()]
    print_rows({"name": "name", "value": "value"}, rows, title=f"{topic}-{partition} @ {offset}")


app.command()(tier_checks.verify)
app.command()(tier_checks.gc)
app.add_typer(tier_snapshots.app, name="snapshots")


def _merged(responses: list[dict[str, Any]]) -> dict[str, Any]:
    """The partitions of several brokers, by name."""
    partitions = [one for response in responses for one in response["partitions"]]
    return {"partitions": sorted(partitions, key=lambda one: (one["topic"], one["partition"]))}


def status_row(partition: dict[str, Any]) -> dict[str, Any]:
    """A partition of /v1/tier/status, with readable ranges and sizes."""
    start, end = partition["remote_start_offset"], partition["remote_end_offset"]
    return {
        "topic": partition["topic"],
        "partition": partition["partition"],
        "remote": f"{start:,} to {end:,}" if end is not None else None,
        "local": f"{partition['local_log_start_offset']:,} to {partition['log_end_offset']:,}",
        "remote_size": size(partition["remote_bytes"]),
        "local_size": size(partition["local_bytes"]),
        "pending_size": size(partition["pending_bytes"]),
        "pending_age": duration(age) if (age := partition.get("pending_age_ms")) else None,
        "state": partition["last_error"]
        or ("behind" if partition.get("is_behind") else "uploading" if partition["uploading"] else "idle"),
    }
