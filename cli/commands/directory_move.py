"""`tierlog partition move-dir`: a replica goes to another log directory of its broker (KIP-113)."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.options import INT32_MAX, Bootstrap, Json
from tierlog.cli.where import AnyAdmin

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

LOOK_EVERY_S = 0.2
"""At a copy that is waited for: nothing announces how far it is."""

REASONS = {
    "LOG_DIR_NOT_FOUND": "this is no log directory of that broker, as `log.dirs` has them (an absolute path)",
    "KAFKA_STORAGE_ERROR": "a log directory of that broker is offline, or the partition is",
    "UNKNOWN_TOPIC_OR_PARTITION": "there is no such partition; if it is made here, it will be there",
    "REPLICA_NOT_AVAILABLE": "that broker has no replica of it; if it gets one, it will be there",
    "INVALID_TOPIC_EXCEPTION": "the topic's name is too long: it leaves no room for that of a copy",
}


def move_dir(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, max=INT32_MAX, help="The partition.")],
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="A log directory of the broker, as an absolute path.")
    ],
    broker: Annotated[
        int | None, typer.Option("--broker", metavar="ID", help="Whose replica; needed if there are several.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is there.")] = True,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Move a replica to another log directory of its broker, while it serves.

    Its present directory ends a move that is under way, another one replaces it.
    """
    from tierlog.cli.admin import ASK_HEALTH
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import print_done
    from tierlog.cli.where import admin_api

    api = _broker_api(admin_api(admin, bootstrap, changes=True), topic, partition, broker)
    asked = {"topic": topic, "partition": partition, "directory": to}
    outcome = api.post("/v1/directories/move", asked)
    if error := outcome["error"]:
        raise CliError(
            f"{topic}-{partition} does not move to {to}: {error}", hint=REASONS.get(error, ASK_HEALTH)
        )
    words = f"{topic}-{partition}: moves to {to}"
    if wait:
        _wait(api, topic, partition)
        at = _place(api, topic, partition)
        if at != to:
            raise CliError(
                f"{topic}-{partition} has not moved: it is in {at}",
                hint="The move failed, or was cancelled or replaced; the log of the broker says why.",
            )
        words = f"{topic}-{partition}: is in {to}"
    print_done(words, {**outcome, "moved": wait}, as_json=as_json)


def _broker_api(api: "AdminApi", topic: str, partition: int, broker: int | None) -> "AdminApi":
    """Of the broker whose replica is meant; raises CliError."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError, ExitCode, usage

    if broker is None:
        rows = api.get("/v1/partitions", topic=topic)["partitions"]
        holders = [row["replicas"] for row in rows if row["partition"] == partition]
        if not holders:
            raise CliError(
                f"{topic} has no partition {partition}",
                hint=f"`tierlog topic describe {topic}` shows them.",
                code=ExitCode.NOT_FOUND,
            )
        if len(holders[0]) != 1:
            held = ", ".join(map(str, holders[0]))
            raise usage(
                "which of its replicas?", hint=f"They are on brokers {held}: --broker {holders[0][0]}"
            )
        broker = holders[0][0]
    for one in api.get("/v1/cluster")["brokers"]:
        if one["id"] == broker:
            return AdminApi(one["admin_url"]) if one["admin_url"] else api
    raise CliError(
        f"broker {broker} is not registered",
        hint="`tierlog broker list` shows those that are.",
        code=ExitCode.NOT_FOUND,
    )


def _wait(api: "AdminApi", topic: str, partition: int) -> None:
    """A bar of bytes on stderr, where that is a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from tierlog.cli.output import console

    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("copying", total=None)
        while (move := _under_way(api, topic, partition)) is not None:
            progress.update(task, total=move["bytes"], completed=move["copied_bytes"])
            time.sleep(LOOK_EVERY_S)


def _under_way(api: "AdminApi", topic: str, partition: int) -> dict[str, Any] | None:
    for move in api.get("/v1/directories", topic=topic)["moves"]:
        if move["partition"] == partition:
            return dict(move)
    return None


def _place(api: "AdminApi", topic: str, partition: int) -> str | None:
    """None: it is here no more."""
    for one in api.get("/v1/directories", topic=topic)["partitions"]:
        if one["partition"] == partition:
            return str(one["directory"])
    return None
