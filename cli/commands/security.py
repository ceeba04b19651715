"""`tierlog security …`: finds what stands open, is weak or expires, and shows the roles of the admin API."""

from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.errors import ExitCode, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, known_words
from tierlog.cli.output import counted, listed, print_json, print_rows, print_status
from tierlog.cli.targets import READ_TIMEOUT_S

app = typer.Typer(no_args_is_help=True, help="Check what stands open, is weak or expires, and show roles.")

COLUMNS = {"level": "level", "check": "check", "where": "where", "what": "finding", "next": "what to do"}
ROLE_COLUMNS = {
    "role": "role",
    "principals": "principals",
    "brokers": "brokers",
    "settings": "settings",
    "may": "may",
}
DAYS = 21
DAYS_MAX = 3_650


@app.command()
def check(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            exists=True,
            dir_okay=False,
            help="Check this settings file, the files that it names, and TIERLOG_… variables. "
            "No node has to run. Default: check the running cluster.",
        ),
    ] = None,
    days: Annotated[
        int,
        typer.Option("--days", min=1, max=DAYS_MAX, help="Report what expires within so many days."),
    ] = DAYS,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="CHECK", help="Leave out the findings of a check. May be repeated."),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show what stands open, is weak or expires, each with a remedy. Changes nothing.

    Exit code 7 if there are findings. The running cluster is checked as its clients see it: settings of
    single listeners (listener.name.…) and modes of files are seen with --config alone. The check needs a
    login that may describe the cluster, its users and ACLs.
    """
    from tierlog.cli import security_facts
    from tierlog.cli.security_findings import CHECKS, ordered

    ignored = known_words(ignore, CHECKS, "--ignore")
    if config is not None and (bootstrap or admin or client_config):
        raise usage(
            "--config checks a file, and --bootstrap, --admin and --client-config a cluster",
            hint="Give one of the two; unset TIERLOG_BOOTSTRAP, TIERLOG_ADMIN and TIERLOG_CLIENT_CONFIG.",
        )
    found = (
        security_facts.of_cluster(bootstrap, admin, days)
        if config is None
        else security_facts.of_file(config, days)
    )
    rows = [finding.row() for finding in ordered(found) if finding.check not in ignored]
    if as_json:
        print_json({"findings": rows})
    elif rows:
        print_rows(COLUMNS, rows, title=counted(len(rows), "finding"))
    else:
        print_status("no findings")
    if rows:
        raise typer.Exit(int(ExitCode.INSECURE))


@app.command()
def roles(as_json: Json = False, bootstrap: Bootstrap = None, client_config: ClientConfig = None) -> None:
    """Show the principals of each role of the admin API. Roles are settings of the nodes.

    To change them, change the setting on all nodes, and restart these one after the other. ACLs name
    principals only: give each principal its own with `tierlog acl create`.
    """
    from tierlog.cli.admin_roles import ROLES, assignments
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        found = assignments(client)
    if as_json:
        print_json({"roles": found.rows, "without_authentication": found.open_brokers})
        return
    print_rows(ROLE_COLUMNS, found.rows, title=counted(len(ROLES), "role"))
    if found.open_brokers:
        print_status(
            f"admin.authentication is not set on {listed(found.open_brokers)}: there, every client that "
            "reaches the admin API may do everything"
        )
