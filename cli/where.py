"""Which node a command asks: one that is named, one of the local cluster, or that at the default address."""

from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.options import DEFAULT_ADMIN

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

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
    from tierlog.cli import cluster_files

    if given:
        return [url.strip().rstrip("/") for url in given.split(",") if url.strip()]
    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory is not None else None
    return [DEFAULT_ADMIN] if plan is None else list(plan.admin_urls.values())


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
