"""`tierlog generate …`: writes files for other programs, such as dashboards and alert rules."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from tierlog.cli.errors import CliError, unreachable, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json
from tierlog.cli.output import print_outcome
from tierlog.monitoring.rules import DEFAULT_DOCS

app = typer.Typer(
    no_args_is_help=True, help="Write files for other programs: dashboards, alert rules, clients, units."
)

Directory = Annotated[Path, typer.Argument(help="Where the files are written; created if missing.")]


@app.callback()
def generate() -> None:
    """Write files for other programs: dashboards, alert rules."""


@app.command()
def dashboards(directory: Directory, as_json: Json = False) -> None:
    """Write the Grafana dashboards: one JSON file each. Existing files are replaced.

    Import them in Grafana (Dashboards, New, Import), or name the directory in a provisioning file.
    """
    from tierlog.monitoring.dashboards import dashboard_files

    write_files(directory, dashboard_files(), as_json=as_json)


@app.command()
def alerts(
    directory: Directory,
    docs: Annotated[
        str,
        typer.Option(
            "--docs",
            metavar="URL",
            help="Address of tierlog's docs directory, for the links to runbooks.",
        ),
    ] = DEFAULT_DOCS,
    as_json: Json = False,
) -> None:
    """Write the rules for Prometheus: alerts.yml, and kafka_names.yml for dashboards of Kafka.

    Existing files are replaced. Name alerts.yml under rule_files in prometheus.yml, and the other one if you
    use such dashboards. The name of the scrape job must begin with tierlog.
    """
    from tierlog.monitoring.alerts import ALERTS, FILE
    from tierlog.monitoring.kafka_names import RULE_FILE, recording_rules
    from tierlog.monitoring.rules import rules_yaml

    files = {FILE: rules_yaml(ALERTS, docs), RULE_FILE: recording_rules()}
    write_files(directory, files, as_json=as_json)


@app.command()
def prometheus(
    directory: Directory,
    job: Annotated[
        str, typer.Option("--job", help="Name of the job. With several clusters, one for each: tierlog-….")
    ] = "tierlog",
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="Viewer of the admin API. Prometheus reads its password from prometheus.password."
        ),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Write prometheus.yml, by which Prometheus scrapes all nodes of the cluster, and the files of its rules.

    The rules are those of `generate alerts`. Existing files are replaced. Write it again after a node was
    added.
    """
    from tierlog.cli.admin import admin_target, split_urls
    from tierlog.cli.observation import ask
    from tierlog.client.admin import variable
    from tierlog.monitoring.alerts import ALERTS, FILE
    from tierlog.monitoring.kafka_names import RULE_FILE, recording_rules
    from tierlog.monitoring.rules import rules_yaml

    if not re.fullmatch(r"tierlog[a-zA-Z0-9._-]{0,100}", job):
        raise usage(f"invalid --job {job!r}", hint="It begins with tierlog: --job tierlog-orders")
    seeds = split_urls(admin_target(admin, bootstrap))
    answers = ask(seeds, ())
    if not answers.documents:
        raise unreachable(", ".join(seeds), "no node responds")
    text = _prometheus_yaml(job, answers.urls.values(), user, variable("TIERLOG_ADMIN_CA"))
    files = {"prometheus.yml": text, FILE: rules_yaml(ALERTS), RULE_FILE: recording_rules()}
    write_files(directory, files, as_json=as_json)


@app.command()
def clients(
    directory: Directory,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
) -> None:
    """Write settings for Java, and with a first program for Python, Go, Rust, JavaScript and C#.

    With a profile they have its TLS and its login. They read the password where the profile does, so that no
    file has it. Existing files are replaced.
    """
    from tierlog.cli.client_config import profile_in_use
    from tierlog.cli.client_files import client_files
    from tierlog.cli.targets import bootstrap_target

    addresses = bootstrap_target(bootstrap).addresses
    write_files(directory, client_files(addresses, profile_in_use()), as_json=as_json)


@app.command()
def connect(
    directory: Directory,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    group: Annotated[
        str, typer.Option("--group", help="group.id of the workers; their topics' names begin with it.")
    ] = "connect",
) -> None:
    """Write connect-distributed.properties for the workers of Kafka Connect.

    It has the addresses, TLS and login of the profile, for the worker and for the clients of its connectors,
    and says how to start it and which ACLs it needs. The password is read where the profile does.
    """
    from tierlog.cli.client_config import profile_in_use
    from tierlog.cli.client_files import connect_files
    from tierlog.cli.targets import bootstrap_target

    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", group):
        raise usage(f"invalid --group {group!r}", hint="Use the characters a-z A-Z 0-9 . _ -")
    addresses = bootstrap_target(bootstrap).addresses
    write_files(directory, connect_files(addresses, profile_in_use(), group), as_json=as_json)


@app.command()
def systemd(
    directory: Directory,
    program: Annotated[
        Path, typer.Option("--program", help="The installed command that the unit starts.")
    ] = Path("/opt/tierlog/bin/tierlog"),
    user: Annotated[str, typer.Option("--user", help="User and group of the node.")] = "tierlog",
    as_json: Json = False,
) -> None:
    """Write the systemd unit tierlog@.service: `systemctl enable --now tierlog@1` runs node 1.

    The node's settings are in /etc/tierlog/1.toml, and its secrets in /etc/tierlog/1.env
    (docs/howto/hosts.md). An existing file is replaced.
    """
    from tierlog.cli.systemd_unit import NAME, unit

    write_files(directory, {NAME: unit(program, user)}, as_json=as_json)


def _prometheus_yaml(job: str, urls: Collection[str], user: str | None, authority: str | None) -> str:
    """`urls`: of admin APIs. `authority`: file of the CA, for TLS."""
    nodes = [urlsplit(url) for url in sorted(urls)]
    is_secure = any(one.scheme == "https" for one in nodes)
    lines = [
        "# Written by `tierlog generate prometheus`. Paths are below this file's directory.",
        "global: {scrape_interval: 15s}",
        "rule_files: [alerts.yml, kafka_names.yml]",
        "scrape_configs:",
        f"  - job_name: {job}",
    ]
    if is_secure:
        file = "ca.pem" if authority is None else str(Path(authority).absolute())
        lines += ["    scheme: https", f"    tls_config: {{ca_file: {json.dumps(file)}}}"]
    if user is not None:
        lines.append(f"    basic_auth: {{username: {json.dumps(user)}, password_file: prometheus.password}}")
    lines += ["    static_configs:", f"      - targets: {json.dumps([one.netloc for one in nodes])}"]
    return "\n".join([*lines, ""])


def write_files(directory: Path, files: dict[str, str], *, as_json: bool) -> None:
    """Write name -> content below the directory, and list the files. Raises CliError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_text(content, encoding="utf-8")
    except OSError as failure:
        hint = "Choose another directory."
        raise CliError(f"cannot write to {directory}: {failure.strerror}", hint=hint) from None
    written = [str(directory / name) for name in files]
    print_outcome("\n".join(f"wrote {name}" for name in written), {"files": written}, as_json=as_json)
