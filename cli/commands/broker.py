"""`tierlog broker …`: the registered brokers, and taking one out of the cluster."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands import broker_settings
from tierlog.cli.options import INT32_MAX, Bootstrap, Json, finite
from tierlog.cli.where import AnyAdmin

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

app = typer.Typer(no_args_is_help=True, help="The brokers: see them, set them, empty them, let them go.")
app.command("settings")(broker_settings.settings)
app.command("alter")(broker_settings.alter)

LOOK_EVERY_S = 0.5
COLUMNS = {
    "id": "id",
    "address": "address",
    "rack": "rack",
    "epoch": "epoch",
    "fenced": "fenced",
    "stopping": "stopping",
    "leads": "leads",
    "replicas": "replicas",
    "out_of_sync": "out of sync",
}
BrokerId = Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32_MAX, help="Id of the broker.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=1, callback=finite, help="Give up waiting after so many seconds."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


@app.command("list")
def list_(as_json: Json = False, admin: AnyAdmin = None, bootstrap: Bootstrap = None) -> None:
    """List the registered brokers, with what each leads and holds."""
    from tierlog.cli.output import print_rows
    from tierlog.cli.where import admin_api

    answer = admin_api(admin, bootstrap).get("/v1/brokers")
    rows = [{**broker, "address": f"{broker['host']}:{broker['port']}"} for broker in answer["brokers"]]
    print_rows(COLUMNS, rows, title=f"Cluster {answer['cluster_id']}", as_json=as_json)


@app.command()
def drain(
    broker: BrokerId,
    dry_run: DryRun = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the moves have begun; there may be more to do.")
    ] = False,
    timeout: Timeout = 3600.0,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Move all replicas of a broker to others, and wait until it holds none. It stays in the cluster."""
    from tierlog.cli.output import print_done, print_json
    from tierlog.cli.where import admin_api

    api = admin_api(admin, bootstrap, changes=not dry_run)
    if dry_run or no_wait:
        answer = api.post(f"/v1/brokers/{broker}/drain", {"dry_run": dry_run})
        if as_json:
            print_json(answer)
        else:
            _show_moves(answer, broker)
        _check_outcomes(answer)
        return
    moved = _emptied(api, broker, timeout)
    print_done(f"broker {broker} holds nothing", {"broker": broker, "moved": moved}, as_json=as_json)


@app.command()
def decommission(
    broker: BrokerId,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="For one that is lost for good: do not wait for its replicas to move, and forget it "
            "although some cannot. What it alone held is lost.",
        ),
    ] = False,
    timeout: Timeout = 3600.0,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Take a broker out of the cluster for good: empty it, and forget it once its process has stopped."""
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import print_done
    from tierlog.cli.where import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    if force:
        _forget(api, broker, as_json=as_json)
        return
    moved = _emptied(api, broker, timeout)
    if not _row(api, broker)["fenced"]:
        api.post(f"/v1/brokers/{broker}/stop", {})  # nothing new is placed on it
        raise CliError(
            f"broker {broker} holds nothing any more, but it serves",
            hint="Stop its process, and run this again. If it is a voter: `tierlog quorum remove` first.",
        )
    api.delete(f"/v1/brokers/{broker}")
    document = {"broker": broker, "moved": moved, "decommissioned": True}
    print_done(f"broker {broker} is no more of this cluster", document, as_json=as_json)


def _forget(api: "AdminApi", broker: int, *, as_json: bool) -> None:
    """Its replicas begin to move where they can; the others stay without it."""
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import print_done

    if not _row(api, broker)["fenced"]:
        raise CliError(
            f"broker {broker} serves",
            hint="Stop its process first, or empty it: the same command without --force.",
        )
    moving, more = 0, True
    while more:  # a plan holds some of the moves; those that have begun are not planned again
        answer = api.post(f"/v1/brokers/{broker}/drain", {})
        refused = [one for one in answer["outcomes"] if one["error"]]
        begun = len(answer["outcomes"]) - len(refused)
        moving, more = moving + begun, answer["more"] and begun > 0
    api.delete(f"/v1/brokers/{broker}")
    left = [f"{one['topic']}-{one['partition']}" for one in (*answer["stuck"], *refused)]
    words = f"broker {broker} is no more of this cluster; {moving} replicas begin to move"
    if left:
        words += f"; {len(left)} partitions lack one: add a broker, then `tierlog partition move`"
    document = {"broker": broker, "moving": moving, "left": left, "decommissioned": True}
    print_done(words, document, as_json=as_json)


def _emptied(api: "AdminApi", broker: int, timeout_s: float) -> int:
    """Returns how many replicas were moved; raises CliError if some have nowhere to go, or in time."""
    from tierlog.cli.errors import CliError

    deadline, moved = time.monotonic() + timeout_s, 0
    while held := _row(api, broker)["replicas"]:
        answer = api.post(f"/v1/brokers/{broker}/drain", {})
        _check_outcomes(answer)
        moved += len(answer["moves"])
        if answer["stuck"] and not answer["moves"]:
            stuck = ", ".join(f"{one['topic']}-{one['partition']}" for one in answer["stuck"][:5])
            raise CliError(
                f"{len(answer['stuck'])} partitions of broker {broker} have nowhere to go: {stuck}",
                hint="Each needs another broker that serves and does not hold it: start or add one.",
            )
        if time.monotonic() > deadline:
            raise CliError(
                f"broker {broker} still holds {held} replicas after {timeout_s:g} s",
                hint="The moves go on: `tierlog partition list --moving`.",
            )
        time.sleep(LOOK_EVERY_S)
    return moved


def _row(api: "AdminApi", broker: int) -> dict[str, Any]:
    from tierlog.cli.errors import CliError, ExitCode

    for row in api.get("/v1/brokers")["brokers"]:
        if row["id"] == broker:
            return dict(row)
    raise CliError(
        f"broker {broker} is not registered",
        hint="`tierlog broker list` shows those that are.",
        code=ExitCode.NOT_FOUND,
    )


def _show_moves(answer: dict[str, Any], broker: int) -> None:
    from tierlog.cli.output import done, print_rows

    columns = {"topic": "topic", "partition": "partition", "replicas": "new replicas"}
    print_rows(
        columns, answer["moves"], title=f"{len(answer['moves'])} moves off broker {broker}", as_json=False
    )
    if answer["stuck"]:
        done(f"{len(answer['stuck'])} partitions have nowhere to go")
    if answer["more"]:
        done("there is more to move once these are done")


def _check_outcomes(answer: dict[str, Any]) -> None:
    from tierlog.cli.errors import CliError

    for outcome in answer["outcomes"]:
        if outcome["error"]:
            name = f"{outcome['topic']}-{outcome['partition']}"
            raise CliError(f"{name}: {outcome['message'] or outcome['error']}")
