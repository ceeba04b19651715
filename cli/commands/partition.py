"""`tierlog partition …`: lists, moves and balances replicas, and elects leaders."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands.directory_move import move_dir
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.moves import any_moves, wait_until_moved
from tierlog.cli.options import (
    INT32_MAX,
    INT64_MAX,
    Admin,
    Bootstrap,
    ClientConfig,
    DryRun,
    Json,
    OnlyTopic,
    Partition,
    Topic,
    finite,
    topic_name,
)
from tierlog.cli.output import counted, print_json, print_outcome, print_rows, print_status
from tierlog.config.balancing import MAX_BYTES_PER_SECOND, MAX_MOVES, MEASUREMENT_S

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

app = typer.Typer(no_args_is_help=True, help="List, move and balance replicas and leaders.")

COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "leader": "leader",
    "leader_epoch": "epoch",
    "replicas": "replicas",
    "in_sync": "in sync",
    "adding": "joining",
    "removing": "leaving",
    "conditions": "state",
}
OUTCOME_COLUMNS = {"topic": "topic", "partition": "partition", "error": "error", "message": "why"}
LOAD_TIMEOUT_S = 60.0  # added to the length of a measurement
NOT_NEEDED = "ELECTION_NOT_NEEDED"
MISSING = "UNKNOWN_TOPIC_OR_PARTITION"
NEXT_STEPS = {
    MISSING: "List partitions with `tierlog partition list`.",
    "INVALID_REPLICA_ASSIGNMENT": "List brokers with `tierlog broker list`; name each broker only once.",
    "NO_REASSIGNMENT_IN_PROGRESS": "List the moves in progress with `tierlog partition list --moving`.",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "Start a broker with an in-sync replica: see `tierlog partition list`.",
    "PREFERRED_LEADER_NOT_AVAILABLE": "Start the broker of the first replica: see `tierlog partition list`.",
}
"""Error code of an outcome -> hint."""


@app.command("list")
def list_(
    topic: OnlyTopic = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica that is not in sync.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only partitions without a leader.")] = False,
    below_min: Annotated[
        bool,
        typer.Option(
            "--below-min", help="Only partitions with fewer in-sync replicas than min.insync.replicas."
        ),
    ] = False,
    moving: Annotated[bool, typer.Option("--moving", help="Only partitions that are being moved.")] = False,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List partitions with their leader, replicas and in-sync replicas."""
    from tierlog.cli.admin import admin_api, warn_without_leader

    named = {
        "under-replicated": under_replicated,
        "offline": offline,
        "below-min-in-sync": below_min,
        "moving": moving,
    }
    chosen = [name for name, wanted in named.items() if wanted]
    if len(chosen) > 1:
        raise usage("only one condition is allowed", hint="To combine conditions, filter the --json output.")
    condition = chosen[0] if chosen else None
    api = admin_api(admin, bootstrap)
    response = api.get("/v1/partitions", topic=topic, condition=condition)
    warn_without_leader(api)
    rows = response["partitions"]
    title = counted(len(rows), "partition") + (f", {condition}" if condition else "")
    print_rows(COLUMNS, rows, title=title, as_json=as_json)


@app.command()
def move(
    topic: Topic,
    partition: Partition,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ID,ID,...", help="The new replicas, preferred leader first."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the current move.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            min=1,
            max=INT64_MAX,
            help="Limit the copy to this many bytes per second for each broker. Waits until the partition "
            "has moved, then removes the throttle.",
        ),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Start to move a partition to other brokers. `partition list --moving` shows the moves in progress."""
    from tierlog.cli.admin import admin_api

    if (to is None) == (not cancel):
        raise usage("give either --to or --cancel", hint="For example: --to 1,2,3")
    replicas, api = None if to is None else _ids(to), admin_api(admin, bootstrap, changes=True)
    request = {
        "moves": [{"topic": topic, "partition": partition, "replicas": replicas}],
        "throttle": None if cancel else throttle,
    }
    response = api.post("/v1/partitions/move", request)
    status = "move cancelled" if cancel else f"moving to {', '.join(map(str, replicas or ()))}"
    refused = any(outcome["error"] for outcome in response["outcomes"])
    waits = throttle is not None and not cancel and not refused
    if waits:
        wait_until_moved(api, {(topic, partition)})
        status = f"moved to {', '.join(map(str, replicas or ()))}"
    # A cancel also removes the throttle of an interrupted command, even if the move is complete.
    if waits or (cancel and not (refused and any_moves(api, {(topic, partition)}))):
        api.post("/v1/partitions/unthrottle", {"partitions": [[topic, partition]]})
    if waits and replicas is not None:
        _check_holders(api, topic, partition, replicas)
    _print_outcomes(response["outcomes"], f"{topic}-{partition}: {status}", as_json=as_json)


def _check_holders(api: "AdminApi", topic: str, partition: int, replicas: list[int]) -> None:
    """Raises CliError if the move ended because it was cancelled or replaced."""
    for row in api.get("/v1/partitions", topic=topic)["partitions"]:
        if row["partition"] == partition and row["replicas"] != replicas:
            raise CliError(
                f"{topic}-{partition} was not moved: its replicas are {', '.join(map(str, row['replicas']))}",
                hint="The move was cancelled or replaced. Its throttle has been removed.",
            )


app.command("move-dir")(move_dir)


@app.command()
def unthrottle(
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove all throttles of moves, for example after `partition move --throttle` was interrupted."""
    from tierlog.cli.admin import admin_api

    altered = admin_api(admin, bootstrap, changes=True).post("/v1/partitions/unthrottle", {})["altered"]
    message = f"throttles removed from {', '.join(altered)}" if altered else "no throttles found"
    print_outcome(message, {"altered": altered}, as_json=as_json)


@app.command()
def elect(
    topic: Annotated[
        str | None, typer.Argument(callback=topic_name, help="Only this topic. Default: all topics.")
    ] = None,
    partition: Annotated[
        int | None, typer.Argument(min=0, max=INT32_MAX, help="Only this partition.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="For partitions without a leader, elect a replica that may lack acknowledged records. "
            "Requires unclean.leader.election.enable=true on the topic.",
        ),
    ] = False,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Elect the preferred leader, which is the first replica of a partition."""
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    chosen: list[list[object]] | None = None
    if topic is not None and partition is not None:
        chosen = [[topic, partition]]
    elif topic is not None:
        rows = api.get("/v1/partitions", topic=topic)["partitions"]
        chosen = [[topic, row["partition"]] for row in rows]
    request = {"partitions": chosen, "kind": "unclean" if unclean else "preferred"}
    outcomes = [
        # not an error: the partition already has the right leader
        {**outcome, "error": None, "elected": False}
        if outcome["error"] == NOT_NEEDED
        else {**outcome, "elected": outcome["error"] is None}
        for outcome in api.post("/v1/partitions/elect", request)["outcomes"]
    ]
    count = sum(outcome["elected"] for outcome in outcomes)
    message = f"{counted(count, 'leader')} elected"
    if not count and not any(outcome["error"] for outcome in outcomes):
        message = "no election was needed: every partition has " + (
            "a leader" if unclean else "its preferred leader"
        )
    _print_outcomes(outcomes, message, as_json=as_json)


Explain = Annotated[
    bool,
    typer.Option("--explain", help="By load: measure, show what would move and why, and change nothing."),
]
Execute = Annotated[
    bool,
    typer.Option("--execute", help="By load: measure, move, wait for the copies, and remove their throttle."),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        min=0.1,
        max=600,
        callback=lambda given: None if given is None else finite(given),
        help=f"By load: length of the measurement in seconds. Default: {MEASUREMENT_S}.",
    ),
]
MaxMoves = Annotated[
    int | None,
    typer.Option(
        "--max-moves", min=1, max=1000, help=f"By load: partitions that move at most. Default: {MAX_MOVES}."
    ),
]
Throttle = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        max=INT64_MAX,
        help=f"By load: bytes per second that each broker copies. Default: {MAX_BYTES_PER_SECOND >> 20} MiB.",
    ),
]


@app.command()
def balance(
    leaders: Annotated[bool, typer.Option("--leaders/--no-leaders", help="Elect preferred leaders.")] = True,
    replicas: Annotated[
        bool, typer.Option("--replicas/--no-replicas", help="Move replicas to brokers that have few.")
    ] = True,
    dry_run: DryRun = False,
    explain: Explain = False,
    execute: Execute = False,
    seconds: Seconds = None,
    max_moves: MaxMoves = None,
    throttle: Throttle = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Balance leaders and replicas among the brokers, for example after a broker was added.

    By their number, or with --explain or --execute by load: bytes on disks and bytes written per second.
    """
    from tierlog.cli.admin import admin_api
    from tierlog.cli.commands.load_balance import balance_by_load

    if explain + execute + dry_run > 1:
        raise usage("give only one of --explain, --execute and --dry-run", hint="--explain changes nothing.")
    if explain or execute:
        seconds = seconds or MEASUREMENT_S
        balance_by_load(
            admin_api(admin, bootstrap, timeout_s=seconds + LOAD_TIMEOUT_S, changes=execute),
            executes=execute,
            leaders=leaders,
            replicas=replicas,
            seconds=seconds,
            max_moves=max_moves or MAX_MOVES,
            throttle=throttle or MAX_BYTES_PER_SECOND,
            as_json=as_json,
        )
        return
    if seconds or max_moves or throttle:
        raise usage(
            "--seconds, --max-moves and --throttle are of a balance by load",
            hint="Add --explain or --execute. The moves of a balance by number are not throttled.",
        )

    request = {"leaders": leaders, "replicas": replicas, "dry_run": dry_run}
    api = admin_api(admin, bootstrap, changes=not dry_run)
    response = api.post("/v1/partitions/balance", request)
    elections, moves = counted(len(response["elections"]), "leader"), counted(len(response["moves"]), "move")
    message = f"{elections} elected, {moves} started"
    if dry_run:
        message = f"{elections} to elect, {moves} to start"
    if not as_json and response["moves"]:
        columns = {"topic": "topic", "partition": "partition", "replicas": "new replicas"}
        print_rows(columns, response["moves"], title="Moves")
    if not as_json and not dry_run and leaders and response["moves"]:
        print_status(
            "run the command again once the moves are complete (`tierlog partition list --moving`): it then "
            "elects the preferred leaders"
        )
    if not as_json and response["more"]:
        print_status("more moves are left: run the command again when these are complete")
    _print_outcomes(response["outcomes"], message, as_json=as_json, document=response)


def _ids(text: str) -> list[int]:
    try:
        ids = [int(one) for one in text.split(",")]
        if any(not 0 <= one <= INT32_MAX for one in ids):
            raise ValueError(text)
    except ValueError:
        raise usage(f"invalid --to {text!r}: expected broker ids", hint="For example: --to 1,2,3") from None
    return ids


def _print_outcomes(
    outcomes: list[dict[str, Any]], message: str, *, as_json: bool, document: dict[str, Any] | None = None
) -> None:
    """Print outcomes. Exit with NOT_FOUND if a partition does not exist, with FAILED after other errors."""
    from tierlog.cli.admin import HEALTH_HINT

    refused = [outcome for outcome in outcomes if outcome["error"]]
    if as_json:
        print_json(document or {"outcomes": outcomes})
    else:
        if refused:
            print_rows(OUTCOME_COLUMNS, refused, title="Refused")
        if len(refused) < len(outcomes) or not outcomes:
            print_status(message)
    if refused:
        print_status(NEXT_STEPS.get(refused[0]["error"], HEALTH_HINT))
        is_missing = all(outcome["error"] == MISSING for outcome in refused)
        raise typer.Exit(int(ExitCode.NOT_FOUND if is_missing else ExitCode.FAILED))
