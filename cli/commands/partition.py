"""`tierlog partition …`: who leads and holds what, and changing it."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands.directory_move import move_dir
from tierlog.cli.options import INT32_MAX, INT64_MAX, Bootstrap, Json
from tierlog.cli.where import AnyAdmin

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

app = typer.Typer(no_args_is_help=True, help="Leaders and replicas: see them, move them, even them out.")
app.command("move-dir")(move_dir)

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
NOT_NEEDED = "ELECTION_NOT_NEEDED"
NEXT_STEPS = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`tierlog partition list` shows the partitions.",
    "INVALID_REPLICA_ASSIGNMENT": "`tierlog broker list` shows the brokers; name each of them once.",
    "NO_REASSIGNMENT_IN_PROGRESS": "`tierlog partition list --moving` shows what is being moved.",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "Start a broker that has an in-sync replica: `tierlog partition list`.",
    "PREFERRED_LEADER_NOT_AVAILABLE": "Start the first broker of its replicas: `tierlog partition list`.",
}
"""By the error of an outcome."""

Topic = Annotated[str, typer.Argument(help="The topic.")]
Number = Annotated[int, typer.Argument(min=0, max=INT32_MAX, help="The partition.")]


@app.command("list")
def list_(
    topic: Annotated[str | None, typer.Argument(help="Only this topic.")] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only those with a replica that is not in sync.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only those that nobody leads.")] = False,
    below_min: Annotated[
        bool, typer.Option("--below-min", help="Only those with fewer in sync than min.insync.replicas.")
    ] = False,
    moving: Annotated[bool, typer.Option("--moving", help="Only those that are being moved.")] = False,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """List partitions with leader, replicas and those in sync."""
    from tierlog.cli.errors import usage
    from tierlog.cli.output import print_rows
    from tierlog.cli.where import admin_api

    named = {
        "under-replicated": under_replicated,
        "offline": offline,
        "below-min-in-sync": below_min,
        "moving": moving,
    }
    chosen = [name for name, wanted in named.items() if wanted]
    if len(chosen) > 1:
        raise usage("one condition at a time", hint="Or list all, with --json, and choose from that.")
    condition = chosen[0] if chosen else None
    answer = admin_api(admin, bootstrap).get("/v1/partitions", topic=topic, condition=condition)
    rows = answer["partitions"]
    words = f"{len(rows):,} partitions" + (f", {condition}" if condition else "")
    print_rows(COLUMNS, rows, title=words, as_json=as_json)


@app.command()
def move(
    topic: Topic,
    partition: Number,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ID,ID,...", help="The new replicas, preferred leader first."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Back to where it was before.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option(
            "--throttle",
            metavar="BYTES",
            min=1,
            max=INT64_MAX,
            help="No more bytes per second than this, from or to any broker. Waits until the partition has "
            "moved, and takes the throttle away again.",
        ),
    ] = None,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Begin to move a partition to other brokers; `partition list --moving` shows when it is done."""
    from tierlog.cli.errors import usage
    from tierlog.cli.where import admin_api

    if (to is None) == (not cancel):
        raise usage("where to?", hint="Either --to 1,2,3 or --cancel.")
    replicas, api = None if to is None else _ids(to), admin_api(admin, bootstrap, changes=True)
    asked = {
        "moves": [{"topic": topic, "partition": partition, "replicas": replicas}],
        "throttle": None if cancel else throttle,
    }
    answer = api.post("/v1/partitions/move", asked)
    words = "the move is cancelled" if cancel else f"moves to {', '.join(map(str, replicas or ()))}"
    refused = any(outcome["error"] for outcome in answer["outcomes"])
    waits = throttle is not None and not cancel and not refused
    if waits:
        _wait_until_moved(api, topic, partition)
        words = f"has moved to {', '.join(map(str, replicas or ()))}"
    # A throttle that was interrupted goes with a cancel that finds nothing under way, too.
    if waits or (cancel and not (refused and _is_moving(api, topic, partition))):
        api.post("/v1/partitions/unthrottle", {"partitions": [[topic, partition]]})
    if waits and replicas is not None:
        _check_holders(api, topic, partition, replicas)
    _tell(answer["outcomes"], f"{topic}-{partition}: {words}", as_json=as_json)


def _wait_until_moved(api: "AdminApi", topic: str, partition: int) -> None:
    """Looks again at each change of the metadata. Whoever interrupts it leaves the throttle in place."""
    while True:
        with suppress(TimeoutError):  # a slow move: nothing has changed for minutes
            for _ in api.events():
                if not _is_moving(api, topic, partition):
                    return


def _is_moving(api: "AdminApi", topic: str, partition: int) -> bool:
    """Not one of a topic that is not there."""
    rows = api.get("/v1/partitions", condition="moving")["partitions"]
    return any((row["topic"], row["partition"]) == (topic, partition) for row in rows)


def _check_holders(api: "AdminApi", topic: str, partition: int, replicas: list[int]) -> None:
    """A move that is cancelled, or replaced by another, ends too; raises CliError."""
    from tierlog.cli.errors import CliError

    for row in api.get("/v1/partitions", topic=topic)["partitions"]:
        if row["partition"] == partition and row["replicas"] != replicas:
            raise CliError(
                f"{topic}-{partition} has not moved: its replicas are {', '.join(map(str, row['replicas']))}",
                hint="The move was cancelled or replaced meanwhile; its throttle is gone.",
            )


@app.command()
def unthrottle(as_json: Json = False, admin: AnyAdmin = None, bootstrap: Bootstrap = None) -> None:
    """Take all throttles of moves away, as after `partition move --throttle` was interrupted."""
    from tierlog.cli.output import done, print_json
    from tierlog.cli.where import admin_api

    altered = admin_api(admin, bootstrap, changes=True).post("/v1/partitions/unthrottle", {})["altered"]
    if as_json:
        print_json({"altered": altered})
    else:
        done(f"throttles are gone from {', '.join(altered)}" if altered else "there were no throttles")


@app.command()
def elect(
    topic: Annotated[str | None, typer.Argument(help="Only of this topic; without it: all.")] = None,
    partition: Annotated[
        int | None, typer.Argument(min=0, max=INT32_MAX, help="Only this partition.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Of those that nobody leads, let a replica lead that may lack acknowledged records. "
            "Needs unclean.leader.election.enable of the topic.",
        ),
    ] = False,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Have the preferred leader lead again: the first of a partition's replicas."""
    from tierlog.cli.where import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    chosen: list[list[object]] | None = None
    if topic is not None and partition is not None:
        chosen = [[topic, partition]]
    elif topic is not None:
        rows = api.get("/v1/partitions", topic=topic)["partitions"]
        chosen = [[topic, row["partition"]] for row in rows]
    asked = {"partitions": chosen, "kind": "unclean" if unclean else "preferred"}
    outcomes = [
        # there is nothing wrong with a partition that is led as it should be
        {**outcome, "error": None, "elected": False}
        if outcome["error"] == NOT_NEEDED
        else {**outcome, "elected": outcome["error"] is None}
        for outcome in api.post("/v1/partitions/elect", asked)["outcomes"]
    ]
    count = sum(outcome["elected"] for outcome in outcomes)
    _tell(outcomes, f"{count} leaders elected", as_json=as_json)


@app.command()
def balance(
    leaders: Annotated[
        bool, typer.Option("--leaders/--no-leaders", help="Have preferred leaders lead again.")
    ] = True,
    replicas: Annotated[
        bool, typer.Option("--replicas/--no-replicas", help="Move replicas to brokers that hold few.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Even out what brokers lead and hold, as after one was added."""
    from tierlog.cli.output import done, print_rows
    from tierlog.cli.where import admin_api

    asked = {"leaders": leaders, "replicas": replicas, "dry_run": dry_run}
    api = admin_api(admin, bootstrap, changes=not dry_run)
    answer = api.post("/v1/partitions/balance", asked)
    words = f"{len(answer['elections'])} leaders elected, {len(answer['moves'])} partitions begin to move"
    if dry_run:
        words = f"{len(answer['elections'])} leaders to elect, {len(answer['moves'])} partitions to move"
    if not as_json and answer["moves"]:
        columns = {"topic": "topic", "partition": "partition", "replicas": "new replicas"}
        print_rows(columns, answer["moves"], title="Moves", as_json=False)
    if not as_json and answer["more"]:
        done("there is more to do once these are done: ask again")
    _tell(answer["outcomes"], words, as_json=as_json, document=answer)


def _ids(text: str) -> list[int]:
    from tierlog.cli.errors import usage

    try:
        ids = [int(one) for one in text.split(",")]
        if any(not 0 <= one <= INT32_MAX for one in ids):
            raise ValueError(text)
    except ValueError:
        raise usage(f"--to {text!r} is not a list of broker ids", hint="For example: --to 1,2,3") from None
    return ids


def _tell(
    outcomes: list[dict[str, Any]], words: str, *, as_json: bool, document: dict[str, Any] | None = None
) -> None:
    """Exit code 1 if one of them was refused."""
    from tierlog.cli.admin import ASK_HEALTH
    from tierlog.cli.errors import ExitCode
    from tierlog.cli.output import done, print_json, print_rows

    refused = [outcome for outcome in outcomes if outcome["error"]]
    if as_json:
        print_json(document or {"outcomes": outcomes})
    else:
        if refused:
            print_rows(OUTCOME_COLUMNS, refused, title="Refused", as_json=False)
        if len(refused) < len(outcomes) or not outcomes:
            done(words)
    if refused:
        done(NEXT_STEPS.get(refused[0]["error"], ASK_HEALTH))
        raise typer.Exit(int(ExitCode.FAILED))
