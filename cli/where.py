"""The nodes that a command talks to: those given, those of the local cluster, or the default address."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tierlog.cli.options import DEFAULT_ADMIN, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.cluster_files import ClusterPlan

PROBE_TIMEOUT_S = 3.0
"""A paused node accepts connections and answers nothing."""

AnyAdmin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        "-a",
        envvar="TIERLOG_ADMIN",
        metavar="URL[,URL...]",
        help="Admin HTTP API of a node, or of several: the first that answers is asked. "
        "Default: those of the cluster at --bootstrap if that is given, "
        f"the nodes of `tierlog cluster up` if it runs here, else {DEFAULT_ADMIN}.",
    ),
]


class Target(NamedTuple):
    """Addresses of a cluster, with commas between them, and how they were found."""

    addresses: str
    found: str = ""

    def __str__(self) -> str:
        return self.addresses + (f" ({self.found})" if self.found else "")


def announce(target: object) -> None:
    """Commands that change something print on stderr which cluster they change."""
    from tierlog.cli.output import done

    done(f"target: {target}")


# --- brokers


def target_of(bootstrap: str | None) -> Target:
    """The brokers to ask first: those given, those of the local cluster, or the default address."""
    if bootstrap is not None:
        return Target(bootstrap)
    return _local(lambda plan: plan.bootstrap, DEFAULT_BOOTSTRAP)


def bootstrap_behind(admin: str) -> str:
    """The brokers of the cluster that an admin API belongs to; raises CliError."""
    brokers = admin_api(admin).get("/v1/cluster")["brokers"]
    return ",".join(f"{one['host']}:{one['port']}" for one in brokers if not one["fenced"])


# --- admin APIs


def admin_target(admin: str | None, bootstrap: str | None = None) -> Target:
    """The admin APIs to try: those given, those of the cluster behind `bootstrap`, those of the local
    cluster, or the default address. Raises CliError if `bootstrap` cannot be asked."""
    if admin is not None:
        return Target(admin)
    if bootstrap is not None:
        return Target(",".join(_admin_urls_behind(bootstrap)), f"of the cluster at {bootstrap}")
    return _local(lambda plan: ",".join(plan.admin_urls.values()), DEFAULT_ADMIN)


def urls_of(target: Target) -> list[str]:
    """To be tried in this order."""
    return [url.strip().rstrip("/") for url in target.addresses.split(",") if url.strip()]


def admin_api(
    admin: str | None, bootstrap: str | None = None, *, timeout_s: float = 60.0, changes: bool = False
) -> "AdminApi":
    """The first admin API that knows of the quorum; raises CliError if none does.

    `changes`: the command changes something, so it prints its target.
    """
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError, ExitCode

    hint = f"For example: --admin {DEFAULT_ADMIN}"
    failure = CliError("no admin API is named", hint=hint, code=ExitCode.USAGE)
    target = admin_target(admin, bootstrap)
    for url in urls_of(target):
        try:
            AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
        except CliError as failed:
            failure = failed
        else:
            if changes:
                announce(Target(url, target.found))
            return AdminApi(url, timeout_s=timeout_s)
    raise failure


def _admin_urls_behind(bootstrap: str) -> list[str]:
    """Brokers first: a node that only votes cannot answer what is asked of brokers. The Kafka protocol names
    the addresses of the voters (DescribeQuorum, KIP-853), and those know the brokers' admin APIs."""
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
        f"no admin API of the cluster at {bootstrap} answers",
        hint="--admin (or TIERLOG_ADMIN) names one.",
        code=ExitCode.UNREACHABLE,
    )


def _urls(host: str, port: int) -> list[str]:
    """The protocol does not say whether a node's admin API uses TLS."""
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
