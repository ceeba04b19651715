"""`tierlog cluster …`: how a cluster does, wherever it runs, and one on this machine to try things with."""

from typing import Any

import typer

from tierlog.cli.commands import cluster_local
from tierlog.cli.options import DEFAULT_ADMIN, DEFAULT_BOOTSTRAP, Admin, Bootstrap, Json
from tierlog.cli.where import AnyAdmin

app = typer.Typer(no_args_is_help=True, help="How a cluster does; a cluster on this machine.")

for command in (
    cluster_local.up,
    cluster_local.down,
    cluster_local.status,
    cluster_local.start,
    cluster_local.stop,
    cluster_local.kill,
    cluster_local.pause,
    cluster_local.resume,
):
    app.command()(command)


@app.command()
def info(
    as_json: Json = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, admin: Admin = DEFAULT_ADMIN
) -> None:
    """Show the brokers as clients see them, and what the node at --admin says of the quorum."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import console, print_json, print_rows

    with KafkaClient(bootstrap) as client:
        metadata = client.metadata([])
    brokers = [
        {
            "node": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "controller": broker.node_id == metadata.controller_id,
        }
        for broker in metadata.brokers
    ]
    quorum: dict[str, Any] | None
    try:
        quorum = AdminApi(admin, timeout_s=10).get("/v1/cluster")
    except CliError as failure:
        if as_json:
            raise
        quorum = None
        console(stderr=True).print(f"No admin API: {failure.message}. {failure.hint}", style="yellow")
    if as_json:
        print_json({"cluster_id": metadata.cluster_id, "brokers": brokers, "node": quorum})
        return
    columns = {"node": "node", "address": "address", "rack": "rack", "controller": "controller"}
    print_rows(columns, brokers, title=f"Cluster {metadata.cluster_id}", as_json=False)
    if quorum:
        plain = [
            {"name": name, "value": value}
            for name, value in quorum.items()
            if not isinstance(value, dict | list)
        ]
        print_rows({"name": "what", "value": "value"}, plain, title=f"Node at {admin}", as_json=False)


@app.command()
def health(as_json: Json = False, admin: AnyAdmin = None) -> None:
    """Say whether all is well, and what to do if not; exit code 1 then."""
    from tierlog.cli import cluster_files, cluster_processes
    from tierlog.cli.errors import ExitCode, unreachable
    from tierlog.cli.health import judge
    from tierlog.cli.observation import observe
    from tierlog.cli.where import admin_urls

    directory = None if admin else cluster_files.last_started()
    plan = cluster_files.load(directory) if directory else None
    processes = cluster_processes.states(directory, plan) if directory and plan else {}
    seen = observe(admin_urls(admin))
    if not processes and not any(seen.quorum.values()):
        raise unreachable(", ".join(admin_urls(admin)), "no node answers")
    found = judge(seen, processes)
    document = {
        "status": found.status.value,
        "leader": seen.leader,
        "voters": list(seen.voters),
        "answering": [node for node, answer in seen.quorum.items() if answer],
        "partitions": (seen.brokers or {}).get("partitions"),
        "problems": [problem._asdict() for problem in found.problems],
    }
    _print_health(document, as_json=as_json)
    if found.problems:
        raise typer.Exit(int(ExitCode.FAILED))


def _print_health(document: dict[str, Any], *, as_json: bool) -> None:
    from tierlog.cli.output import console, print_json, print_rows

    if as_json:
        print_json(document)
        return
    counts = document["partitions"] or {}
    facts = [f"node {document['leader']} leads the quorum"] if document["leader"] is not None else []
    facts += [f"{len(document['answering'])} nodes answer"]
    facts += [f"{counts['total']:,} partitions"] if counts else []
    style = "green" if not document["problems"] else "bold red"
    console().print(f"{document['status']}: {', '.join(facts)}", style=style)
    if document["problems"]:
        columns = {"status": "state", "what": "what is wrong", "next": "what to do"}
        print_rows(columns, document["problems"], title="Problems", as_json=False)
