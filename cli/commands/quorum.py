"""`tierlog quorum …`: shows and changes the voters of the metadata quorum."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.options import INT32_MAX, Admin, Bootstrap, ClientConfig, Json, Yes
from tierlog.cli.output import counted, print_json, print_outcome, print_rows, print_status
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.metadata.quorum.recovery import Recovery, RecoverySummary

app = typer.Typer(no_args_is_help=True, help="Show and change the voters of the metadata quorum.")

METADATA_DIRECTORY = "__cluster_metadata"
ADD_TIMEOUT_S = 90.0
"""The leader waits up to a minute for the node to catch up."""

COLUMNS = {
    "node_id": "node",
    "role": "role",
    "url": "address",
    "match_index": "match index",
    "lag": "lag",
    "directory_id": "directory id",
}
NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, max=INT32_MAX, help="Id of the node.")]


@app.command()
def status(
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show leader and term of the quorum, and its voters, learners and observers with their lag."""
    response = _of_leader(admin, bootstrap)
    if as_json:
        print_json(response)
    else:
        _show(response)


@app.command()
def add(
    node: NodeId,
    url: Annotated[str, typer.Argument(help="URL of its admin HTTP API, as the other nodes reach it.")],
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Add a running node as a voter, once it has caught up. For an existing voter, change its address."""
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap, timeout_s=ADD_TIMEOUT_S, changes=True)
    _check_node(node, url, str(api.get("/v1/quorum")["cluster_id"]))
    try:
        response = api.post("/v1/quorum/voters", {"id": node, "url": url})
    except CliError as failure:
        if failure.status == 400:
            failure.hint = f"For example: tierlog quorum add {node} http://node-{node}.example:9644"
        if failure.status == 503:
            failure.hint = (
                f"Check that node {node} runs with the same cluster.id and secret, and is reachable at "
                f"{url}. Run the command again to continue, or `tierlog quorum remove {node}` to undo."
            )
        raise
    print_outcome(f"node {node} is a voter", response, as_json=as_json)


@app.command()
def remove(
    node: NodeId,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Remove a voter or learner. A majority of the remaining voters must be running."""
    from tierlog.cli.admin import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    seen = api.get("/v1/quorum")
    if str(node) not in {**seen["voters"], **seen.get("learners", {})}:
        raise CliError(
            f"node {node} is not a member of the quorum",
            hint="List the members with `tierlog quorum status`.",
            code=ExitCode.NOT_FOUND,
        )
    response = api.delete(f"/v1/quorum/voters/{node}")
    if len(response["voters"]) == 2:
        print_status(
            "Two voters are left, so the quorum stops when one of them fails: add a third with `tierlog "
            "quorum add`."
        )
    print_outcome(f"node {node} removed from the quorum", response, as_json=as_json)


@app.command()
def recover(
    directory: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="First of the stopped node's log.dirs.")
    ],
    metadata_dir: Annotated[
        Path | None,
        typer.Option("--metadata-dir", exists=True, file_okay=False, help="metadata.log.dir, if it is set."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a stopped node the only voter, after the disks of a majority of the voters are lost for good.

    Committed metadata that this node has not received is lost: topics, settings, and changes of in-sync sets.
    A replica that lacks acknowledged records may therefore become leader. Run this once per cluster, on the
    voter with the most metadata. docs/runbooks/lost-majority-for-good.md describes the steps before and
    after.
    """
    from dataclasses import asdict

    with _recovering(directory, metadata_dir) as recovery:
        held = recovery.summary
        if not yes:
            _confirm(held)
        recovery.apply()
    print_outcome(f"node {held.node_id} is now the only voter; start it", asdict(held), as_json=as_json)


@contextmanager
def _recovering(directory: Path, metadata_directory: Path | None) -> Iterator["Recovery"]:
    """The metadata log of a stopped node, with its directory locked. Raises CliError if a node runs in
    the directory, or its metadata cannot be recovered."""
    import random

    from tierlog.base.files import OsFiles
    from tierlog.broker.storage_tools.offline import LOCK_FILE, InUse, locked
    from tierlog.metadata.quorum.recovery import NotRecoverable, Recovery
    from tierlog.metadata.quorum.storage import ForeignDirectory
    from tierlog.metadata.quorum.wal import DamagedLog
    from tierlog.metadata.versions import UnreadableMetadata

    if not (directory / LOCK_FILE).exists():
        raise usage(f"{directory} is not a node's data directory", hint="Give the first of its log.dirs.")
    try:
        with locked(directory):
            metadata = metadata_directory or directory / METADATA_DIRECTORY
            recovery = Recovery(OsFiles(), metadata, random.SystemRandom())
            try:
                yield recovery
            finally:
                recovery.close()
    except InUse as running:
        raise CliError(str(running), hint="Stop the node first: `systemctl stop tierlog@…`.") from None
    except NotRecoverable as refused:
        hint = "docs/runbooks/lost-majority-for-good.md describes which voter to choose."
        raise CliError(f"nothing was changed: {refused}", hint=hint) from None
    except UnreadableMetadata as newer:
        hint = "Run this command with the version of tierlog that the node runs."
        raise CliError(f"nothing was changed: {newer}", hint=hint) from None
    except (DamagedLog, ForeignDirectory) as damage:
        hint = "Try the next remaining voter."
        raise CliError(f"nothing was changed: the metadata log is damaged: {damage}", hint=hint) from None
    except OSError as failure:
        raise CliError(f"{directory}: {failure}", hint="It is safe to run the command again.") from None


def _check_node(node: int, url: str, cluster_id: str) -> None:
    """Raises CliError if another node responds at the URL. No response is accepted: the node may be starting,
    or unreachable from this machine."""
    from tierlog.cli.admin import PROBE_TIMEOUT_S, AdminApi

    try:
        there = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
    except CliError:
        return
    if (there["node_id"], there["cluster_id"]) != (node, cluster_id):
        raise CliError(
            f"{url} is node {there['node_id']} of cluster {there['cluster_id']}",
            hint=f"Give the admin.listener address of node {node}.",
        )


def _confirm(held: "RecoverySummary") -> None:
    voters = ", ".join(map(str, held.voters)) or "those of its settings"
    typer.echo(
        f"Node {held.node_id} of cluster {held.cluster_id} has {counted(held.topics, 'topic')} with "
        f"{counted(held.partitions, 'partition')}. Its log ends at index {held.last_index:,} of term "
        f"{held.term}; entries up to {held.committed:,} are known to be committed.\n"
        f"The voters are {voters}. Node {held.node_id} becomes the only voter. Metadata that the others "
        "committed after its last entry is lost:\n"
        "  - topics, settings and ids that were created, changed or deleted;\n"
        "  - changes of in-sync sets: a replica that lacks acknowledged records may become leader.\n"
        "Never use the directories of the other voters again. All nodes must be stopped now.",
        err=True,
    )
    if typer.prompt("Type the cluster id to continue", err=True) != held.cluster_id:
        raise CliError("nothing was changed", hint="The id does not match. Skip the question with --yes.")


def _of_leader(admin: str | None, bootstrap: str | None) -> dict[str, Any]:
    """The leader's view, because only the leader knows the others' lag; or else the view of the contacted
    node."""
    from tierlog.cli.admin import PROBE_TIMEOUT_S, AdminApi, admin_api

    here: dict[str, Any] = admin_api(admin, bootstrap, timeout_s=READ_TIMEOUT_S).get("/v1/quorum")
    url = here["voters"].get(str(here["leader"]))
    if here["leader"] == here["node_id"] or not url:
        return here
    try:
        there: dict[str, Any] = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
    except CliError:
        return here
    return there


def _show(response: dict[str, Any]) -> None:
    """Print members. An observer reports the voters without their match index and lag."""
    voters = [{"node_id": int(one), "url": url, "voter": True} for one, url in response["voters"].items()]
    members = response.get("members", voters)
    rows = [{**member, "role": _role(member, response["leader"])} for member in members]
    rows += [{**observer, "role": "observer"} for observer in response.get("observers", ())]
    title = f"Quorum of cluster {response['cluster_id']}: "
    title += f"leader is node {response['leader']}" if response["leader"] >= 0 else "no leader"
    if "term" in response:
        title += f", term {response['term']}, committed up to {response['commit_index']:,}"
    print_rows(COLUMNS, rows, title=title)
    if response["leader"] < 0:
        print_status("Changes are not possible until a majority of the voters elects a leader.")


def _role(member: dict[str, Any], leader: int) -> str:
    if member["node_id"] == leader:
        return "leader"
    return "voter" if member["voter"] else "learner"
