"""`tierlog broker …`: lists, configures, drains and decommissions brokers."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands import broker_settings
from tierlog.cli.errors import CliError, unknown_broker
from tierlog.cli.options import INT32_MAX, Admin, Bootstrap, ClientConfig, DryRun, Json, finite
from tierlog.cli.output import counted, listed, print_json, print_outcome, print_rows, print_status

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

app = typer.Typer(no_args_is_help=True, help="List, configure, drain and decommission brokers.")

POLL_INTERVAL_S = 0.5
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
    typer.Option("--timeout", min=1, callback=finite, help="Stop waiting after this many seconds."),
]


@app.command("list")
def list_(
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List the registered brokers, with the number of leaders and replicas of each."""
    from tierlog.cli.admin import admin_api, warn_without_leader

    api = admin_api(admin, bootstrap)
    response = api.get("/v1/brokers")
    warn_without_leader(api)
    rows = [{**broker, "address": f"{broker['host']}:{broker['port']}"} for broker in response["brokers"]]
    print_rows(COLUMNS, rows, title=f"Cluster {response['cluster_id']}", as_json=as_json)


app.command("settings")(broker_settings.settings)
app.command("alter")(broker_settings.alter)


@app.command()
def drain(
    broker: BrokerId,
    dry_run: DryRun = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Start the first moves and return; more moves may be left.")
    ] = False,
    timeout: Timeout = 3600.0,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Move all replicas of a broker to other brokers, and wait until it has none. It stays in the cluster."""
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap, changes=not dry_run)
    if dry_run or no_wait:
        response = api.post(f"/v1/brokers/{broker}/drain", {"dry_run": dry_run})
        if as_json:
            print_json(response)
        else:
            _show_moves(response, broker)
        _check_outcomes(response)
        if dry_run:
            _require_moves(response, broker)
        return
    moved = _drain(api, broker, timeout)
    message = f"broker {broker} has no replicas; {counted(moved, 'replica')} moved"
    print_outcome(message, {"broker": broker, "moved": moved}, as_json=as_json)


@app.command()
def decommission(
    broker: BrokerId,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Remove a broker that is lost for good: do not wait until its replicas have moved, and "
            "remove it even if some cannot move. Records that only it had are lost.",
        ),
    ] = False,
    timeout: Timeout = 3600.0,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove a broker from the cluster: drain it, then unregister it once its process has stopped."""
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    if force:
        _force_decommission(api, broker, as_json=as_json)
        return
    moved = _drain(api, broker, timeout)
    if not _row(api, broker)["fenced"]:
        api.post(f"/v1/brokers/{broker}/stop", {})  # no new replicas are placed on it
        is_voter = str(broker) in api.get("/v1/quorum")["voters"]
        first = f"Run `tierlog quorum remove {broker}`, stop" if is_voter else "Stop"
        raise CliError(
            f"broker {broker} has no replicas left, but is still running",
            hint=f"{first} its process (`tierlog cluster stop {broker}` in a local cluster), and run this "
            "command again.",
        )
    api.delete(f"/v1/brokers/{broker}")
    document = {"broker": broker, "moved": moved, "decommissioned": True}
    print_outcome(f"broker {broker} decommissioned", document, as_json=as_json)


def _force_decommission(api: "AdminApi", broker: int, *, as_json: bool) -> None:
    """Start to move the replicas that can move, then unregister the broker."""
    if not _row(api, broker)["fenced"]:
        raise CliError(
            f"broker {broker} is still running",
            hint="Stop its process first, or drain it: run the command without --force.",
        )
    moving, more = 0, True
    while more:  # each plan holds some of the moves, and none that have already started
        response = api.post(f"/v1/brokers/{broker}/drain", {})
        refused = [one for one in response["outcomes"] if one["error"]]
        begun = len(response["outcomes"]) - len(refused)
        moving, more = moving + begun, response["more"] and begun > 0
    api.delete(f"/v1/brokers/{broker}")
    left = _names([*response["stuck"], *refused])
    message = f"broker {broker} decommissioned; {counted(moving, 'move')} started"
    if left:
        lack = "lacks" if len(left) == 1 else "lack"
        message += (
            f"; {counted(len(left), 'partition')} {lack} a replica: {listed(left)}\n"
            "Add a broker, then run `tierlog partition move` for each of them."
        )
    document = {"broker": broker, "moving": moving, "left": left, "decommissioned": True}
    print_outcome(message, document, as_json=as_json)


def _drain(api: "AdminApi", broker: int, timeout_s: float) -> int:
    """Number of moved replicas. Raises CliError if a replica cannot move, or after the timeout."""
    deadline, moved = time.monotonic() + timeout_s, 0
    while held := _row(api, broker)["replicas"]:
        response = api.post(f"/v1/brokers/{broker}/drain", {})
        _check_outcomes(response)
        moved += len(response["moves"])
        _require_moves(response, broker)
        if time.monotonic() > deadline:
            raise CliError(
                f"broker {broker} still has {counted(held, 'replica')} after {timeout_s:g} s",
                hint="The moves continue: see `tierlog partition list --moving`.",
            )
        time.sleep(POLL_INTERVAL_S)
    return moved


def _require_moves(response: dict[str, Any], broker: int) -> None:
    """Raises CliError if partitions of the broker cannot move, and no others do."""
    if response["stuck"] and not response["moves"]:
        stuck = _names(response["stuck"])
        raise CliError(
            f"{counted(len(stuck), 'partition')} of broker {broker} cannot move: {listed(stuck)}",
            hint="No other running broker is without a replica of them: start or add a broker.",
        )


def _names(partitions: list[dict[str, Any]]) -> list[str]:
    return [f"{one['topic']}-{one['partition']}" for one in partitions]


def _row(api: "AdminApi", broker: int) -> dict[str, Any]:
    for row in api.get("/v1/brokers")["brokers"]:
        if row["id"] == broker:
            return dict(row)
    raise unknown_broker(broker)


def _show_moves(response: dict[str, Any], broker: int) -> None:
    columns = {"topic": "topic", "partition": "partition", "replicas": "new replicas"}
    print_rows(
        columns, response["moves"], title=f"{counted(len(response['moves']), 'move')} from broker {broker}"
    )
    if stuck := _names(response["stuck"]):
        print_status(f"no other broker can take {counted(len(stuck), 'partition')}: {listed(stuck)}")
    if response["more"]:
        print_status("more partitions are left: run the command again when these moves are complete")


def _check_outcomes(response: dict[str, Any]) -> None:
    """Raises CliError for the first partition whose move was refused."""
    from tierlog.cli.admin import HEALTH_HINT

    for outcome in response["outcomes"]:
        if outcome["error"]:
            name = f"{outcome['topic']}-{outcome['partition']}"
            raise CliError(f"{name}: {outcome['message'] or outcome['error']}", hint=HEALTH_HINT)
