"""`tierlog quorum …`: the voters that hold the metadata, and changing who they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.options import INT32_MAX, Bootstrap, Json
from tierlog.cli.where import AnyAdmin

if TYPE_CHECKING:
    from tierlog.metadata.quorum.recovery import RecoverySummary

app = typer.Typer(no_args_is_help=True, help="The voters of the metadata quorum.")

ADD_TIMEOUT_S = 90.0
"""A minute is left to the node to catch up."""

COLUMNS = {
    "node_id": "node",
    "part": "part",
    "url": "address",
    "match_index": "holds up to",
    "lag": "behind by",
    "directory_id": "directory",
}
NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, max=INT32_MAX, help="Id of the node.")]


@app.command()
def status(as_json: Json = False, admin: AnyAdmin = None, bootstrap: Bootstrap = None) -> None:
    """Show leader, term and members of the quorum, brokers that only follow it, and how far each is."""
    from tierlog.cli.output import print_json

    answer = _of_leader(admin, bootstrap)
    if as_json:
        print_json(answer)
    else:
        _show(answer)


@app.command()
def add(
    node: NodeId,
    url: Annotated[str, typer.Argument(help="Address of its admin HTTP API, as the other nodes reach it.")],
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Take a node in that runs already: it becomes a voter once it has caught up. A voter is moved there."""
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import print_done
    from tierlog.cli.where import admin_api

    api = admin_api(admin, bootstrap, timeout_s=ADD_TIMEOUT_S, changes=True)
    _check_node(node, url, str(api.get("/v1/quorum")["cluster_id"]))
    try:
        answer = api.post("/v1/quorum/voters", {"id": node, "url": url})
    except CliError as failure:
        if failure.status == 503:
            failure.hint = (
                f"Does node {node} run, with the same cluster.id and secret, and is it reached at {url}? "
                f"The same again goes on; `tierlog quorum remove {node}` gives it up."
            )
        raise
    print_done(f"node {node} is a voter", answer, as_json=as_json)


@app.command()
def remove(node: NodeId, as_json: Json = False, admin: AnyAdmin = None, bootstrap: Bootstrap = None) -> None:
    """Let a voter or learner go. A majority of those that stay must run."""
    from tierlog.cli.errors import CliError, ExitCode
    from tierlog.cli.output import done, print_done
    from tierlog.cli.where import admin_api

    api = admin_api(admin, bootstrap, changes=True)
    seen = api.get("/v1/quorum")
    if str(node) not in {**seen["voters"], **seen.get("learners", {})}:
        raise CliError(
            f"node {node} is no member of the quorum",
            hint="`tierlog quorum status` shows the members.",
            code=ExitCode.NOT_FOUND,
        )
    answer = api.delete(f"/v1/quorum/voters/{node}")
    if len(answer["voters"]) == 2:
        done("two voters are left: the quorum stops when either fails. `tierlog quorum add` makes a third.")
    print_done(f"node {node} is no member of the quorum", answer, as_json=as_json)


@app.command()
def recover(
    directory: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="The first of log.dirs of the stopped node.")
    ],
    metadata_dir: Annotated[
        Path | None,
        typer.Option("--metadata-dir", exists=True, file_okay=False, help="metadata.log.dir, if it is set."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Make a stopped node the only voter: when the disks of a majority of the voters are lost for good.

    What the others had committed and this node had not heard of is lost: topics, settings, and who had
    left an in-sync set, so that a replica may lead that lacks acknowledged records. Run it on the voter
    that holds the most, once for the whole cluster. docs/runbooks/lost-majority-for-good.md says
    what to do before and after.
    """
    from dataclasses import asdict

    from tierlog.cli.output import print_done
    from tierlog.cli.recovering import recovering

    with recovering(directory, metadata_dir) as recovery:
        held = recovery.summary
        if not yes:
            _confirm(held)
        recovery.apply()
    print_done(f"node {held.node_id} is the only voter: start it", asdict(held), as_json=as_json)


def _check_node(node: int, url: str, cluster_id: str) -> None:
    """Raises CliError if another node answers there. One that does not answer may be starting, or be out of
    reach from here."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError
    from tierlog.cli.where import PROBE_TIMEOUT_S

    try:
        there = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
    except CliError:
        return
    if (there["node_id"], there["cluster_id"]) != (node, cluster_id):
        raise CliError(
            f"at {url} answers node {there['node_id']} of cluster {there['cluster_id']}",
            hint=f"The address of node {node} is wanted: its admin.listener.",
        )


def _confirm(held: "RecoverySummary") -> None:
    from tierlog.cli.errors import CliError

    voters = ", ".join(map(str, held.voters)) or "those of its settings"
    typer.echo(
        f"Node {held.node_id} of cluster {held.cluster_id} holds {held.topics:,} topics with "
        f"{held.partitions:,} partitions: entries up to {held.last_index:,} of term {held.term}, of which "
        f"those up to {held.committed:,} are known to be committed.\n"
        f"The voters are {voters}. Node {held.node_id} becomes the only one, and what the others had "
        "committed beyond that is lost for good:\n"
        "  - topics, settings and ids that were made, changed or deleted;\n"
        "  - who had left an in-sync set: a replica may lead that lacks acknowledged records.\n"
        "The directories of all other voters must never be used again, and no node may run now.",
        err=True,
    )
    if typer.prompt("Type the id of the cluster to go on", err=True) != held.cluster_id:
        raise CliError("nothing was changed", hint="It was not the id of the cluster; --yes does not ask.")


def _of_leader(admin: str | None, bootstrap: str | None) -> dict[str, Any]:
    """Only the leader knows how far the others are; without one, what the node at hand says."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError
    from tierlog.cli.where import PROBE_TIMEOUT_S, admin_api

    here: dict[str, Any] = admin_api(admin, bootstrap).get("/v1/quorum")
    url = here["voters"].get(str(here["leader"]))
    if here["leader"] == here["node_id"] or not url:
        return here
    try:
        there: dict[str, Any] = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
    except CliError:
        return here
    return there


def _show(answer: dict[str, Any]) -> None:
    """A node that only follows the quorum knows the voters, and nothing of how far they are."""
    from tierlog.cli.output import done, print_rows

    voters = [{"node_id": int(one), "url": url, "voter": True} for one, url in answer["voters"].items()]
    members = answer.get("members", voters)
    rows = [{**member, "part": _part(member, answer["leader"])} for member in members]
    rows += [{**observer, "part": "observer"} for observer in answer.get("observers", ())]
    title = f"Quorum of cluster {answer['cluster_id']}: "
    title += f"led by node {answer['leader']}" if answer["leader"] >= 0 else "without a leader"
    if "term" in answer:
        title += f", term {answer['term']}, committed up to {answer['commit_index']:,}"
    print_rows(COLUMNS, rows, title=title, as_json=False)
    if answer["leader"] < 0:
        done("no changes are possible until a majority of the voters elect a leader")


def _part(member: dict[str, Any], leader: int) -> str:
    if member["node_id"] == leader:
        return "leader"
    return "voter" if member["voter"] else "learner"
