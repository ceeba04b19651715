"""`tierlog cluster …`: the nodes and the metadata quorum."""

from typing import Any

import typer

from tierlog.cli.options import DEFAULT_ADMIN, DEFAULT_BOOTSTRAP, Admin, Bootstrap, Json

app = typer.Typer(no_args_is_help=True, help="The nodes and the metadata quorum.")


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
