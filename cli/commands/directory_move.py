"""`tierlog partition move-dir`: moves a replica to another log directory of its broker (KIP-113)."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, no_partition, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, Partition, Topic
from tierlog.cli.output import print_outcome, progress_bar

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

POLL_INTERVAL_S = 0.2
"""Time between two requests for the progress of the move, which no event reports."""

REASONS = {
    "LOG_DIR_NOT_FOUND": "The directory is not in the broker's log.dirs: see `tierlog cluster logdirs`.",
    "KAFKA_STORAGE_ERROR": "The partition or a log directory of the broker is offline; see the broker's log.",
    "UNKNOWN_TOPIC_OR_PARTITION": "The partition does not exist. If it is created on this broker, it will "
    "be in the directory.",
    "REPLICA_NOT_AVAILABLE": "The broker has no replica of the partition. If it gets one, it will be in the "
    "directory.",
    "INVALID_TOPIC_EXCEPTION": "The topic's name is too long for the name of the copy's directory.",
}


def move_dir(
    topic: Topic,
    partition: Partition,
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Target log directory, as an absolute path.")
    ],
    broker: Annotated[
        int | None,
        typer.Option("--broker", metavar="ID", help="Broker of the replica. Required if there are several."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the move is complete.")] = True,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Move a replica to another log directory of its broker, while it serves.

    During a move, naming the current directory cancels the move, and naming another one replaces it.
    """
    from tierlog.cli.admin import HEALTH_HINT, admin_api

    api = _broker_api(admin_api(admin, bootstrap, changes=True), topic, partition, broker)
    request = {"topic": topic, "partition": partition, "directory": to}
    outcome = api.post("/v1/directories/move", request)
    if error := outcome["error"]:
        raise CliError(
            f"cannot move {topic}-{partition} to {to}: {error}", hint=REASONS.get(error, HEALTH_HINT)
        )
    message = f"{topic}-{partition} is moving to {to}"
    if wait:
        _wait(api, topic, partition)
        at = _place(api, topic, partition)
        if at != to:
            raise CliError(
                f"{topic}-{partition} was not moved: it is in {at}",
                hint="The move failed, was cancelled or was replaced; see the broker's log.",
            )
        message = f"{topic}-{partition} moved to {to}"
    print_outcome(message, {**outcome, "moved": wait}, as_json=as_json)


def _broker_api(api: "AdminApi", topic: str, partition: int, broker: int | None) -> "AdminApi":
    """Admin API of the replica's broker. Raises CliError."""
    if broker is None:
        rows = api.get("/v1/partitions", topic=topic)["partitions"]
        holders = [row["replicas"] for row in rows if row["partition"] == partition]
        if not holders:
            raise no_partition(topic, partition, len(rows))
        if len(holders[0]) != 1:
            held = ", ".join(map(str, holders[0]))
            raise usage(
                f"{topic}-{partition} has several replicas",
                hint=f"Choose one of the brokers {held}: --broker {holders[0][0]}",
            )
        broker = holders[0][0]
    return api.of_broker(broker, api.get("/v1/cluster"))


def _wait(api: "AdminApi", topic: str, partition: int) -> None:
    """Wait for the end of the move."""
    with progress_bar("copying") as progress:
        task = progress.add_task("copying", total=None)
        while (move := _current_move(api, topic, partition)) is not None:
            progress.update(task, total=move["bytes"], completed=move["copied_bytes"])
            time.sleep(POLL_INTERVAL_S)


def _current_move(api: "AdminApi", topic: str, partition: int) -> dict[str, Any] | None:
    for move in api.get("/v1/directories", topic=topic)["moves"]:
        if move["partition"] == partition:
            return dict(move)
    return None


def _place(api: "AdminApi", topic: str, partition: int) -> str | None:
    """Log directory of the replica; None if the broker no longer has it."""
    for one in api.get("/v1/directories", topic=topic)["partitions"]:
        if one["partition"] == partition:
            return str(one["directory"])
    return None
