"""`tierlog cluster …`: how a cluster does, wherever it runs, and one on this machine to try things with."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands import cluster_local
from tierlog.cli.options import Bootstrap, Json, finite
from tierlog.cli.where import AnyAdmin

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

LOOK_EVERY_S = 0.5
SHOWN_MAX = 20
"""Names of partitions in a table; JSON has up to a thousand."""

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
def info(as_json: Json = False, bootstrap: Bootstrap = None, admin: AnyAdmin = None) -> None:
    """Show the brokers as clients see them, what the first node that answers says of the quorum, and which
    partitions are not well. `health` judges, and has exit codes for scripts."""
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.errors import CliError
    from tierlog.cli.output import console, print_json, print_rows
    from tierlog.cli.where import admin_api, bootstrap_behind

    if admin and not bootstrap:
        bootstrap = bootstrap_behind(admin)
    with KafkaClient(bootstrap) as client:
        metadata = client.metadata([])
    node: dict[str, Any] | None = None
    quorum: dict[str, Any] | None = None
    partitions: dict[str, Any] | None = None
    try:
        api = admin_api(admin, bootstrap, timeout_s=10)
        node, quorum, partitions = api.get("/v1/cluster"), api.get("/v1/quorum"), _partitions(api)
        _check_same(metadata.cluster_id, node["cluster_id"], api.url)
    except CliError as failure:
        if as_json:
            raise
        console(stderr=True).print(f"No admin API: {failure.message}. {failure.hint}", style="yellow")
    brokers = [
        {
            "node": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            # what Metadata calls so is any broker, as in Kafka: each takes what the controller does (KIP-590)
            "controller": quorum and broker.node_id == quorum["leader"],
        }
        for broker in metadata.brokers
    ]
    if as_json:
        print_json(
            {
                "cluster_id": metadata.cluster_id,
                "brokers": brokers,
                "node": node,
                "quorum": quorum,
                "partitions": partitions,
            }
        )
        return
    columns = {"node": "node", "address": "address", "rack": "rack", "controller": "controller"}
    print_rows(columns, brokers, title=f"Cluster {metadata.cluster_id}", as_json=False)
    if quorum:
        plain = [
            {"name": name, "value": value}
            for name, value in quorum.items()
            if not isinstance(value, dict | list)
        ]
        print_rows(
            {"name": "what", "value": "value"}, plain, title=f"The quorum, by {api.url}", as_json=False
        )
    if partitions:
        _print_names(partitions["counts"], partitions["names"])


def _check_same(of_brokers: str | None, of_admin: str, url: str) -> None:
    from tierlog.cli.errors import usage

    if of_brokers != of_admin:
        raise usage(
            f"the brokers are of cluster {of_brokers}, and {url} is of cluster {of_admin}",
            hint="Leave --admin (or TIERLOG_ADMIN) out: it is found with the brokers.",
        )


def _partitions(api: "AdminApi") -> dict[str, Any]:
    """How many are in which condition, and the names of those that are not well."""
    from tierlog.cli.observation import NAMED_MAX, names_of

    counts = api.get("/v1/brokers")["partitions"]
    unwell = api.get("/v1/partitions", condition="unwell", limit=NAMED_MAX)["partitions"]
    return {"counts": counts, "names": names_of(unwell)}


@app.command()
def health(
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, callback=finite, metavar="SECONDS", help="Wait so long until all is well."
        ),
    ] = 0.0,
    as_json: Json = False,
    admin: AnyAdmin = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Say whether all is well, and what to do if not. Exit code 5: all is served, but less may fail than
    should; 6: something is not served; 3: no node answers."""
    from tierlog.cli.errors import ExitCode
    from tierlog.cli.health import Status

    document = _healthy(admin, bootstrap, wait)
    _print_health(document, as_json=as_json)
    codes = {Status.DEGRADED: ExitCode.DEGRADED, Status.UNAVAILABLE: ExitCode.UNAVAILABLE}
    if code := codes.get(document["status"]):
        raise typer.Exit(int(code))


def _healthy(admin: str | None, bootstrap: str | None, within_s: float) -> dict[str, Any]:
    """The judgement once all is well, or the last one in time."""
    import time

    from tierlog.cli.errors import CliError

    deadline = time.monotonic() + within_s
    while True:
        is_last = time.monotonic() >= deadline
        try:
            document = _judged(admin, bootstrap)
        except CliError:
            if is_last:
                raise
        else:
            if is_last or not document["problems"]:
                return document
        time.sleep(LOOK_EVERY_S)


def _judged(admin: str | None, bootstrap: str | None) -> dict[str, Any]:
    """Raises CliError if nobody answers."""
    from tierlog.cli import cluster_files, cluster_processes
    from tierlog.cli.errors import unreachable
    from tierlog.cli.health import judge
    from tierlog.cli.observation import names_of, observe
    from tierlog.cli.where import admin_target, urls_of

    directory = None if admin or bootstrap else cluster_files.last_started()
    plan = cluster_files.load(directory) if directory else None
    processes = cluster_processes.states(directory, plan) if directory and plan else {}
    urls = urls_of(admin_target(admin, bootstrap))
    seen = observe(urls)
    if not processes and not any(seen.quorum.values()):
        raise unreachable(", ".join(urls), "no node answers")
    found = judge(seen, processes, plan.roles if plan else None)
    return {
        "status": found.status.value,
        "leader": seen.leader,
        "voters": list(seen.voters),
        "answering": [node for node, answer in seen.quorum.items() if answer],
        "partitions": (seen.brokers or {}).get("partitions"),
        "names": names_of((seen.unwell or {}).get("partitions", ())),
        "problems": [problem._asdict() for problem in found.problems],
    }


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
    _print_names(counts, document["names"])


def _print_names(counts: dict[str, int], names: dict[str, list[str]]) -> None:
    """Of partitions that are not well, or are moved; nothing if there are none."""
    from tierlog.cli.output import print_rows

    rows = [
        {"condition": condition, "count": counts[condition], "names": _shortened(found, counts[condition])}
        for condition, found in names.items()
        if counts.get(condition)
    ]
    if rows:
        columns = {"condition": "condition", "count": "partitions", "names": "which"}
        print_rows(columns, rows, title="Partitions", as_json=False)


def _shortened(names: list[str], count: int) -> str:
    shown = names[:SHOWN_MAX]
    return ", ".join([*shown, "…"] if count > len(shown) else shown)
