"""`tierlog group …`: lists, describes and deletes groups. The commands that set offsets are in
group_offsets.py."""

from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.commands import group_offsets
from tierlog.cli.errors import usage
from tierlog.cli.options import Bootstrap, ClientConfig, Group, Json, Yes, confirm, group_id, known_words
from tierlog.cli.output import alternatives, counted, listed, print_json, print_outcome, print_rows
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.groups import Row

app = typer.Typer(no_args_is_help=True, help="Show consumer groups and their lag, and set their offsets.")
STATES = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)
TYPES = ("classic", "consumer", "share", "streams")


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only in this state: {alternatives(STATES)}. May be repeated.",
        ),
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help=f"Only of this type: {alternatives(TYPES)}. May be repeated."
        ),
    ] = None,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """List groups with their type, state and coordinator."""
    from tierlog.cli import groups
    from tierlog.cli.client import KafkaClient

    states, types = known_words(state, STATES, "--state"), known_words(type_, TYPES, "--type")
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = groups.rows(client, states=states, types=types)
    columns = {
        "group": "group",
        "type": "type",
        "state": "state",
        "protocol_type": "protocol type",
        "coordinator": "coordinator",
    }
    print_rows(columns, found, title=counted(len(found), "group"), as_json=as_json)


@app.command()
def describe(
    group: Group,
    members: Annotated[
        bool, typer.Option("--members", help="Only the members, with their partitions.")
    ] = False,
    state: Annotated[bool, typer.Option("--state", help="Only the state of the group.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the lag until Ctrl-C, each second.")
    ] = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show a group's committed offsets, and its lag in records and in time.

    The lag in time is the age of the first record that the group has not read.
    """
    from tierlog.cli import group_lag, group_watch, groups
    from tierlog.cli.client import KafkaClient

    if members + state + watch > 1:
        raise usage("more than one view given", hint="Use one of --members, --state and --watch.")
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        if watch:
            group_watch.watch(client, group, as_json=as_json)
            return
        found = (groups if members or state else group_lag).describe(client, group)
    if as_json:
        print_json(group_watch.document(found) if not state else _state(found))
    elif members:
        _print_members(found)
    elif state:
        print_rows(STATE_COLUMNS, [_state(found)], title=group)
    else:
        rows = found["partitions"]
        title = group_watch.summary(found)
        print_rows(group_watch.lag_columns(rows), group_watch.shown(rows), title=title)


STATE_COLUMNS = {
    "type": "type",
    "state": "state",
    "members": "members",
    "assignor": "assignor",
    "epoch": "epoch",
    "assignment_epoch": "assignment epoch",
    "coordinator": "coordinator",
}


def _state(found: "Row") -> "Row":
    return {**found, "members": len(found["members"])}


def _print_members(found: "Row") -> None:
    columns = {
        "client_id": "client",
        "host": "host",
        "member_id": "member",
        "instance_id": "instance",
        "epoch": "epoch",
        "count": "partitions",
        "partitions": "assigned",
    }
    if any(one["target_partitions"] not in (None, one["partitions"]) for one in found["members"]):
        columns["target_partitions"] = "target"
    rows = [{**one, "count": len(one["partitions"])} for one in found["members"]]
    print_rows(columns, rows, title=f"{found['group']}: {counted(len(rows), 'member')}")


@app.command()
def delete(
    names: Annotated[
        list[str], typer.Argument(metavar="GROUP...", callback=group_id, help="Ids of the groups.")
    ],
    yes: Yes = False,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Delete groups without members, with their committed offsets."""
    from tierlog.cli import groups
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.targets import bootstrap_target

    if not yes:
        what = f"group {names[0]}" if len(names) == 1 else f"groups {listed(names)}"
        confirm(f"Delete {what} with all committed offsets in {bootstrap_target(bootstrap)}?")
    with KafkaClient(bootstrap, changes=yes) as client:
        for name in names:
            groups.delete(client, name)
            print_outcome(f"group {name} deleted", {"group": name, "deleted": True}, as_json=as_json)


for command in (
    group_offsets.seek,
    group_offsets.reset,
    group_offsets.offset_delete,
    group_offsets.export,
    group_offsets.import_,
):
    app.command(command.__name__.rstrip("_").replace("_", "-"))(command)
