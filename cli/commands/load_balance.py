"""`tierlog partition balance --explain` and `--execute`: balances by load, and says why partitions move."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.moves import wait_until_moved
from tierlog.cli.output import counted, print_json, print_rows, print_status, size

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

BROKER_COLUMNS = {
    "id": "broker",
    "rack": "rack",
    "stored": "stored",
    "free": "free on disks",
    "written": "written",
    "led": "led",
    "then_stored": "then: stored",
    "then_written": "written",
    "then_led": "led",
}
ACTION_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "before": "replicas",
    "after": "new replicas",
    "copied": "copied",
    "reason": "why",
}
HOT_COLUMNS = {"topic": "topic", "partition": "partition", "leader": "leader", "rate": "written"}


def balance_by_load(
    api: "AdminApi",
    *,
    executes: bool,
    leaders: bool,
    replicas: bool,
    seconds: float,
    max_moves: int,
    throttle: int,
    as_json: bool,
) -> None:
    """Measure and plan on a broker, and print the result. `executes`: move, wait for the copies, and remove
    their throttle. Raises CliError if a fault prevents it, or a move is refused."""
    request = {
        "dry_run": not executes,
        "leaders": leaders,
        "replicas": replicas,
        "seconds": seconds,
        "max_moves": max_moves,
        "throttle": throttle,
    }
    api = _of_broker(api)  # for all requests: another node may learn of the moves later
    response = api.post("/v1/partitions/balance/load", request)
    refused = [one for one in response["outcomes"] if one["error"]]
    accepted = {(one["topic"], one["partition"]) for one in response["outcomes"] if not one["error"]}
    copied = accepted & {
        (one["topic"], one["partition"]) for one in response["actions"] if one["copied_bytes"]
    }
    if as_json:
        print_json(response)
    else:
        _print(response)
    if copied:
        print_status(
            f"waiting until {counted(len(copied), 'partition')} have moved, then removes the throttle"
        )
        wait_until_moved(api, copied)
        api.post("/v1/partitions/unthrottle", {"partitions": sorted(copied)})
    if executes and response["faults"]:
        raise CliError("nothing was moved", hint="Repeat it once the cluster is healthy: tierlog doctor")
    if refused:
        what = f"{refused[0]['topic']}-{refused[0]['partition']} was refused: {refused[0]['error']}"
        raise CliError(what, hint=refused[0]["message"] or "Repeat the command: the cluster has changed.")
    if executes:
        _print_changed(api, accepted, response["actions"])


def _print_changed(
    api: "AdminApi", accepted: set[tuple[str, int]], actions: Sequence[dict[str, Any]]
) -> None:
    """A move that was accepted may have been cancelled since, or its topic deleted."""
    wanted = {(one["topic"], one["partition"]): one["after"] for one in actions}
    rows = [row for topic in sorted({topic for topic, _ in accepted}) for row in _partitions(api, topic)]
    found = {(row["topic"], row["partition"]): row["replicas"] for row in rows}
    changed = {one for one in accepted if found.get(one) == wanted[one]}
    message = f"{counted(len(changed), 'partition')} changed"
    if other := len(accepted - changed):
        message += f", and {other} not: deleted, or moved by another command since"
    print_status(message)


def _partitions(api: "AdminApi", topic: str) -> list[dict[str, Any]]:
    """The topic's partitions; none if it does not exist."""
    try:
        return list(api.get("/v1/partitions", topic=topic)["partitions"])
    except CliError as failure:
        if failure.code is not ExitCode.NOT_FOUND:
            raise
        return []


def _of_broker(api: "AdminApi") -> "AdminApi":
    """The API of an active broker, this one if it is: a controller measures no load."""
    cluster = api.get("/v1/cluster")
    active = [one["id"] for one in cluster["brokers"] if not one["fenced"]]
    return api if not active or cluster["node_id"] in active else api.of_broker(active[0], cluster)


def _print(response: dict[str, Any]) -> None:
    for fault in response["faults"]:
        print_status(f"not now: {fault}")
    if response["faults"]:
        return
    rows = [
        one
        | {
            "stored": size(one["now"]["stored_bytes"]),
            "free": f"{size(one['free_bytes'])} of {size(one['disk_bytes'])}",
            "written": f"{size(one['now']['written_bytes_per_s'])}/s",
            "led": f"{size(one['now']['led_bytes_per_s'])}/s",
            "then_stored": size(one["then"]["stored_bytes"]),
            "then_written": f"{size(one['then']['written_bytes_per_s'])}/s",
            "then_led": f"{size(one['then']['led_bytes_per_s'])}/s",
        }
        for one in response["brokers"]
    ]
    print_rows(BROKER_COLUMNS, rows, title=f"Load in {response['seconds']:.1f} s")
    if response["hot"]:
        hot = [one | {"rate": f"{size(one['bytes_per_s'])}/s"} for one in response["hot"]]
        print_rows(HOT_COLUMNS, hot, title="Hot partitions")
        print_status(f"`tierlog topic analyze {response['hot'][0]['topic']} --keys` names what heats them")
    if not response["actions"]:
        print_status("no move makes the load more even")
        return
    actions = [
        one | {"copied": size(one["copied_bytes"]) if one["copied_bytes"] else "-"}
        for one in response["actions"]
    ]
    print_rows(ACTION_COLUMNS, actions, title="Moves")
