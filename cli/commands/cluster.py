"""`tierlog cluster …`: health of any cluster, and commands for a local cluster."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.commands import (
    cluster_config,
    cluster_local,
    cluster_rollout,
    cluster_self_test,
    cluster_versions,
)
from tierlog.cli.errors import CliError, ExitCode, unreachable, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, OnlyTopic, finite
from tierlog.cli.output import console, counted, print_json, print_rows, size
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

POLL_INTERVAL_S = 0.5
REFUSED = (401, 403, 421)
"""HTTP statuses: no login, too few rights, a name that the node does not know."""

SHOWN_MAX = 20
"""Maximum number of partition names in a row of the table; JSON has up to 1,000."""

DIRECTORY_COLUMNS = {
    "broker": "broker",
    "directory": "directory",
    "partitions": "partitions",
    "local_bytes": "local bytes",
    "remote_bytes": "remote bytes",
    "usable_bytes": "free",
    "state": "state",
}
REPLICA_COLUMNS = {
    "broker": "broker",
    "partition": "partition",
    "leads": "leader",
    "directory": "directory",
    "local_bytes": "local bytes",
    "remote_bytes": "remote bytes",
    "state": "state",
}

app = typer.Typer(no_args_is_help=True, help="Check the health of a cluster; run a local cluster.")


@app.command()
def health(
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            callback=finite,
            metavar="SECONDS",
            help="Wait up to this long for a healthy cluster.",
        ),
    ] = 0.0,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Check the health of the cluster, and show what to do about problems.

    Exit codes: 5 if all requests are served, but with less redundancy than configured; 6 if some requests are
    not served; 3 if no node responds.
    """
    from tierlog.broker.diagnosis.health import Status

    document = _wait_until_healthy(admin, bootstrap, wait)
    _print_health(document, as_json=as_json)
    codes = {Status.DEGRADED: ExitCode.DEGRADED, Status.UNAVAILABLE: ExitCode.UNAVAILABLE}
    if not document["answering"]:
        raise typer.Exit(int(ExitCode.UNREACHABLE))
    if code := codes.get(document["status"]):
        raise typer.Exit(int(code))


@app.command()
def info(
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
    admin: Admin = None,
) -> None:
    """Show the brokers, the metadata quorum and the unhealthy partitions.

    In scripts, use `health`, which reports problems by its exit code.
    """
    from tierlog.cli.admin import admin_api, bootstrap_of
    from tierlog.cli.client import KafkaClient

    if admin and not bootstrap:
        bootstrap = bootstrap_of(admin)
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        metadata = client.metadata([])
    node: dict[str, Any] | None = None
    quorum: dict[str, Any] | None = None
    partitions: dict[str, Any] | None = None
    try:
        api = admin_api(admin, bootstrap, timeout_s=READ_TIMEOUT_S)
        node, quorum, partitions = api.get("/v1/cluster"), api.get("/v1/quorum"), _partitions(api)
    except CliError as failure:
        if as_json:
            raise
        console(stderr=True).print(f"No admin API: {failure.message}. {failure.hint}", style="yellow")
    if node is not None:
        _check_same_cluster(metadata.cluster_id, node["cluster_id"], api.url)
    brokers = [
        {
            "node": broker.node_id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            # Metadata's controller_id is any broker, because brokers forward to the controller (KIP-590)
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
    print_rows(columns, brokers, title=f"Cluster {metadata.cluster_id}")
    if quorum:
        scalars = [
            {"name": name.replace("_", " "), "value": value}
            for name, value in quorum.items()
            if not isinstance(value, dict | list)
        ]
        print_rows({"name": "name", "value": "value"}, scalars, title=f"Metadata quorum, from {api.url}")
    if partitions:
        _print_names(partitions["counts"], partitions["names"])


def _check_same_cluster(broker_cluster: str | None, admin_cluster: str, url: str) -> None:
    """Raises CliError if the bootstrap servers and the admin API belong to different clusters."""
    if broker_cluster != admin_cluster:
        raise usage(
            f"the brokers belong to cluster {broker_cluster}, but {url} belongs to cluster {admin_cluster}",
            hint="Omit --admin (or TIERLOG_ADMIN): the admin API is found through the brokers.",
        )


def _partitions(api: "AdminApi") -> dict[str, Any]:
    """`counts`: number of partitions in each condition. `names`: the unhealthy partitions by condition."""
    from tierlog.cli.observation import PARTITIONS_MAX, partition_names

    counts = api.get("/v1/brokers")["partitions"]
    unhealthy = api.get("/v1/partitions", condition="unhealthy", limit=PARTITIONS_MAX)["partitions"]
    return {"counts": counts, "names": partition_names(unhealthy)}


@app.command()
def logdirs(
    topic: OnlyTopic = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the local and remote bytes of log directories, or of each replica of a topic.

    A directory's remote bytes are those of the partitions that its broker leads.
    """
    from tierlog.cli.admin import admin_api, no_topic, side_by_side

    api = admin_api(admin, bootstrap, timeout_s=READ_TIMEOUT_S)
    view = api.get("/v1/cluster")
    if topic is not None and topic not in {one["name"] for one in view["topics"]}:
        raise no_topic(topic)
    kind = "directories" if topic is None else "partitions"

    def ask(broker: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            found = api.of_broker(broker["id"], view).get("/v1/directories", topic=topic)
        except CliError as failure:
            return [{"broker": broker["id"], "error": failure.message}]
        return [{"broker": broker["id"], **one, "error": one.get("failure")} for one in found[kind]]

    rows = [row for each in side_by_side(ask, view["brokers"]) for row in each]
    if as_json:
        print_json(rows)
        return
    columns = DIRECTORY_COLUMNS if topic is None else REPLICA_COLUMNS
    print_rows(columns, [_sizes_shown(row) for row in rows], title="Log directories")


def _sizes_shown(row: dict[str, Any]) -> dict[str, Any]:
    sizes = {
        name: size(count) for name, count in row.items() if name.endswith("_bytes") and count is not None
    }
    state = row["error"] or ("full" if row.get("full") else "ok")
    return {**row, **sizes, "state": state}


def _wait_until_healthy(admin: str | None, bootstrap: str | None, within_s: float) -> dict[str, Any]:
    """Check until the cluster has no problems, for at most `within_s` seconds. Returns the last result.

    Raises CliError if no node responds to the last check, and at once for what waiting does not change: a
    wrong address, or a login that is refused.
    """
    deadline = time.monotonic() + within_s
    while True:
        is_last_check = time.monotonic() >= deadline
        try:
            document = _check(admin, bootstrap)
        except CliError as failure:
            if is_last_check or failure.code is ExitCode.USAGE or failure.status in REFUSED:
                raise
        else:
            if is_last_check or not document["problems"]:
                return document
        time.sleep(POLL_INTERVAL_S)


def _check(admin: str | None, bootstrap: str | None) -> dict[str, Any]:
    """Check once. Returns the document that `health --json` prints. Raises CliError if no node responds."""
    from tierlog.broker.diagnosis.health import assess
    from tierlog.cli import cluster_files, cluster_processes
    from tierlog.cli.admin import AdminApi, admin_target, split_urls
    from tierlog.cli.observation import TIMEOUT_S, observe, partition_names
    from tierlog.cli.targets import local_directory

    directory = local_directory(admin, bootstrap)
    plan = cluster_files.load(directory) if directory else None
    processes = cluster_processes.states(directory, plan) if directory and plan else {}
    urls = split_urls(admin_target(admin, bootstrap))
    observation = observe(urls)
    if not processes and not any(observation.quorum.values()):
        AdminApi(urls[0], timeout_s=TIMEOUT_S).get("/v1/quorum")  # its error says more
        raise unreachable(", ".join(urls), "no node responds")
    assessment = assess(observation, processes, plan.roles if plan else None)
    return {
        "status": assessment.status.value,
        "leader": observation.leader,
        "voters": list(observation.voters),
        "answering": [node for node, response in observation.quorum.items() if response],
        "partitions": (observation.brokers or {}).get("partitions"),
        "names": partition_names((observation.unhealthy or {}).get("partitions", ())),
        "problems": [problem._asdict() for problem in assessment.problems],
    }


def _print_health(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    counts = document["partitions"] or {}
    facts = [f"node {document['leader']} leads the quorum"] if document["leader"] is not None else []
    responding = len(document["answering"])
    facts += [f"{counted(responding, 'node')} {'responds' if responding == 1 else 'respond'}"]
    facts += [counted(counts["total"], "partition")] if counts else []
    style = "green" if not document["problems"] else "bold red"
    console().print(f"{document['status']}: {', '.join(facts)}", style=style)
    if document["problems"]:
        columns = {"status": "status", "what": "problem", "next": "what to do"}
        print_rows(columns, document["problems"], title="Problems")
    _print_names(counts, document["names"])


def _print_names(counts: dict[str, int], names: dict[str, list[str]]) -> None:
    """Print a table of unhealthy partitions, if there are any."""
    rows = [
        {"condition": condition, "count": counts[condition], "names": _shortened(listed, counts[condition])}
        for condition, listed in names.items()
        if counts.get(condition)
    ]
    if rows:
        columns = {"condition": "condition", "count": "partitions", "names": "names"}
        print_rows(columns, rows, title="Partitions")


def _shortened(names: list[str], count: int) -> str:
    """The first names. An ellipsis follows if there are more, of `count` in all."""
    shown = names[:SHOWN_MAX]
    return ", ".join([*shown, "…"] if count > len(shown) else shown)


for command in (
    cluster_versions.versions,
    cluster_versions.finalize,
    cluster_rollout.rollout,
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
app.add_typer(cluster_config.app, name="config")
app.command("self-test")(cluster_self_test.self_test)
