"""Target of a command: the given addresses, the local cluster, or the default address."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tierlog.cli.options import DEFAULT_ADMIN, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.cluster_files import ClusterPlan

PROBE_TIMEOUT_S = 3.0
"""A paused node accepts connections and never responds."""

Admin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        "-a",
        envvar="TIERLOG_ADMIN",
        metavar="URL[,URL...]",
        help="Admin HTTP API of one or more nodes; the first that responds is used. "
        "Default: the cluster at --bootstrap if given, "
        f"the local cluster of `tierlog cluster up` if there is one, else {DEFAULT_ADMIN}.",
    ),
]


class Target(NamedTuple):
    """Addresses of a cluster, separated by commas, and how they were found."""

    addresses: str
    found: str = ""

    def __str__(self) -> str:
        return self.addresses + (f" ({self.found})" if self.found else "")


def announce_target(target: object) -> None:
    """Print to stderr which cluster the command changes."""
    from tierlog.cli.output import print_status

    print_status(f"target: {target}")


# --- brokers


def bootstrap_target(bootstrap: str | None) -> Target:
    """Bootstrap brokers: the given ones, the local cluster's, or the default address."""
    if bootstrap is not None:
        return Target(bootstrap)
    return _local(lambda plan: plan.bootstrap, DEFAULT_BOOTSTRAP)


def bootstrap_of(admin: str) -> str:
    """Brokers of the cluster that an admin API belongs to. Raises CliError."""
    brokers = admin_api(admin).get("/v1/cluster")["brokers"]
    return ",".join(f"{one['host']}:{one['port']}" for one in brokers if not one["fenced"])


# --- admin APIs


def admin_target(admin: str | None, bootstrap: str | None = None) -> Target:
    """Admin APIs to try: the given ones, those of the cluster at `bootstrap`, the local cluster's, or the
    default address. Raises CliError if `bootstrap` does not respond."""
    if admin is not None:
        return Target(admin)
    if bootstrap is not None:
        return Target(",".join(_admin_urls_of(bootstrap)), f"of the cluster at {bootstrap}")
    return _local(lambda plan: ",".join(plan.admin_urls.values()), DEFAULT_ADMIN)


def split_urls(target: Target) -> list[str]:
    """The URLs, in the order in which they are tried."""
    return [url.strip().rstrip("/") for url in target.addresses.split(",") if url.strip()]


def admin_api(
    admin: str | None, bootstrap: str | None = None, *, timeout_s: float = 60.0, changes: bool = False
) -> "AdminApi":
    """The first admin API that responds. Raises CliError if none does.

    `changes`: the command changes the cluster, so it prints its target.
    """
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError, ExitCode

    hint = f"For example: --admin {DEFAULT_ADMIN}"
    failure = CliError("no admin API given", hint=hint, code=ExitCode.USAGE)
    target = admin_target(admin, bootstrap)
    for url in split_urls(target):
        try:
            AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
        except CliError as failed:
            failure = failed
        else:
            if changes:
                announce_target(Target(url, target.found))
            return AdminApi(url, timeout_s=timeout_s)
    raise failure


def _admin_urls_of(bootstrap: str) -> list[str]:
    """Admin APIs of the cluster's brokers, then of a voter: a controller node cannot serve requests about a
    broker's logs. DescribeQuorum (KIP-853) returns the voters' addresses, and voters know the brokers' admin
    APIs."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.errors import CliError, ExitCode

    with KafkaClient(bootstrap, timeout_s=PROBE_TIMEOUT_S) as client:
        voters = [url for host, port in client.voters() for url in _urls(host, port)]
    for url in voters:
        try:
            brokers = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/cluster")["brokers"]
        except CliError:
            continue
        return [*(one["admin_url"] for one in brokers if one["admin_url"] and not one["fenced"]), url]
    raise CliError(
        f"no admin API of the cluster at {bootstrap} responds",
        hint="Give one with --admin or TIERLOG_ADMIN.",
        code=ExitCode.UNREACHABLE,
    )


def _urls(host: str, port: int) -> list[str]:
    """Possible URLs: the Kafka protocol does not tell whether the admin API uses TLS."""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    schemes = ("https", "http") if os.environ.get("TIERLOG_ADMIN_CERTIFICATE") else ("http",)
    return [f"{scheme}://{authority}" for scheme in schemes]


def _local(addresses: "Callable[[ClusterPlan], str]", default: str) -> Target:
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory is not None else None
    if plan is None:
        return Target(default, "the default address")
    return Target(addresses(plan), f"the local cluster in {directory}")
