"""`tierlog tier snapshots …`: lists, creates and ends snapshots, which hold remote data for readers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import quote

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json
from tierlog.cli.output import counted, duration, listed, print_json, print_outcome, print_rows, size

app = typer.Typer(no_args_is_help=True, help="List, create and end snapshots, which hold remote data.")

LIST_HINT = "`tierlog tier snapshots list` shows all snapshots."
NOT_FOUND, CONFLICT = 404, 409

COLUMNS = {
    "name": "name",
    "id": "id",
    "topics": "topics",
    "partitions": "partitions",
    "age": "age",
    "lease": "lease",
    "left": "left of it",
    "held": "held back",
}


@app.command("list")
def list_(
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List the snapshots, and the bytes that they hold back from deletion.

    The lease begins again whenever a job renews it, and ends only while a broker watches it.
    """
    from tierlog.cli.admin import admin_api

    response = admin_api(admin, bootstrap).get("/v1/tier/snapshots")
    if as_json:
        print_json(response)
        return
    rows = [_row(one) for one in response["snapshots"]]
    print_rows(COLUMNS, rows, title=counted(len(rows), "snapshot"))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The name: letters, digits, underscores and hyphens.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")],
    lease: Annotated[
        str,
        typer.Option(
            "--lease",
            metavar="DURATION",
            help="How long to hold the data while no job reads the snapshot: 90m, 36h, 7d. At most 30d.",
        ),
    ] = "24h",
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Hold what the topics have in the bucket now.

    Spark reads it with `option("snapshot", NAME)`, as often as it likes, and gets the same rows each time.
    Records that are only on brokers are not part of it: `tierlog tier flush` uploads them first.
    """
    from tierlog.cli.admin import admin_api
    from tierlog.cli.group_offsets import parse_duration

    body = {"name": name, "topics": topics, "lease_ms": parse_duration(lease)}
    with _hints(of_snapshot=False):
        found = admin_api(admin, bootstrap, changes=True).post("/v1/tier/snapshots", body)
    partitions = counted(found["partitions"], "partition")
    print_outcome(f"snapshot {name} holds {partitions} for {lease}", found, as_json=as_json)


@app.command()
def end(
    snapshot: Annotated[str, typer.Argument(help="Name or id of the snapshot.")],
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """End a snapshot: jobs that read it fail, and what it holds may be deleted."""
    from tierlog.cli.admin import admin_api

    path = f"/v1/tier/snapshots/{quote(snapshot, safe='')}"
    with _hints(of_snapshot=True):
        found = admin_api(admin, bootstrap, changes=True).delete(path)
    print_outcome(f"snapshot {snapshot} has ended", found, as_json=as_json)


@contextmanager
def _hints(*, of_snapshot: bool) -> Iterator[None]:
    """`of_snapshot`: the request names a snapshot, and no topic, that may not exist."""
    try:
        yield
    except CliError as refused:
        if refused.status == CONFLICT or (refused.status == NOT_FOUND and of_snapshot):
            raise CliError(str(refused), hint=LIST_HINT, code=refused.code, status=refused.status) from None
        raise


def _row(snapshot: dict[str, Any]) -> dict[str, Any]:
    left_ms = max(0, snapshot["lease_ms"] - snapshot["watched_ms"])
    return {
        "name": snapshot["name"] or "-",
        "id": snapshot["id"],
        "topics": listed(snapshot["topics"]),
        "partitions": snapshot["partitions"],
        "age": duration(snapshot["age_ms"]),
        "lease": duration(snapshot["lease_ms"]),
        "left": duration(left_ms),
        "held": size(snapshot["held_bytes"]),
    }
