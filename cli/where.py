"""Which nodes a command asks: those that are named, those of the local cluster, or the default address."""

from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.options import DEFAULT_ADMIN, DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.cluster_files import ClusterPlan

PROBE_TIMEOUT_S = 3.0
"""A node that is paused takes connections and answers nobody."""

AnyAdmin = Annotated[
    str | None,
    typer.Option(
        "--admin",
        "-a",
        envvar="TIERLOG_ADMIN",
        metavar="URL[,URL...]",
        help="Admin HTTP API of a node, or of several: the first that answers is asked. "
        f"Default: the nodes of `tierlog cluster up` if it runs here, else {DEFAULT_ADMIN}.",
    ),
]


def admin_urls(given: str | None) -> list[str]:
    """To be tried in this order."""
    if given:
        return [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    plan = _local_cluster()
    return [DEFAULT_ADMIN] if plan is None else list(plan.admin_urls.values())


def bootstrap_of(given: str | None) -> str:
    """HOST:PORT of the brokers to ask first, with commas between them."""
    if given:
        return given
    plan = _local_cluster()
    return DEFAULT_BOOTSTRAP if plan is None else plan.bootstrap


def _local_cluster() -> "ClusterPlan | None":
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    return cluster_files.load(directory) if directory is not None else None


def admin_api(given: str | None, *, timeout_s: float = 60.0) -> "AdminApi":
    """Of the first node that knows of the quorum; raises CliError if none does."""
    from tierlog.cli.admin import AdminApi
    from tierlog.cli.errors import CliError, ExitCode

    failure = CliError("no admin API is named", code=ExitCode.USAGE)
    for url in admin_urls(given):
        try:
            AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/quorum")
        except CliError as failed:
            failure = failed
        else:
            return AdminApi(url, timeout_s=timeout_s)
    raise failure
