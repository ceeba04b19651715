"""Target of a command: the given addresses, the local cluster, or the default address."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tierlog.cli.options import DEFAULT_BOOTSTRAP
from tierlog.cli.output import print_status

if TYPE_CHECKING:
    from pathlib import Path

    from tierlog.cli.cluster_files import ClusterPlan


READ_TIMEOUT_S = 10.0
"""How long a command that prints a table waits for all nodes that do not respond, at the same time. A Kafka
request that a broker has accepted gets half as long again. The admin API of a node that responds gets the
time of `admin_api`: it may describe 200,000 partitions, or wait for the object store."""


class Target(NamedTuple):
    """Addresses of a cluster, separated by commas, and how they were found."""

    addresses: str
    found: str = ""

    def __str__(self) -> str:
        return self.addresses + (f" ({self.found})" if self.found else "")


def announce_target(target: object) -> None:
    """Print to stderr which cluster the command changes."""
    print_status(f"target: {target}")


def bootstrap_target(bootstrap: str | None) -> Target:
    """Bootstrap brokers: the given ones, those of --client-config or of the profile, the local cluster's, or
    the default address. Raises CliError."""
    from tierlog.cli.client_config import bootstrap_servers, profile_in_use

    bootstrap = bootstrap or bootstrap_servers()
    if bootstrap is not None:
        return Target(bootstrap)
    if (profile := profile_in_use()) is not None:
        return Target(profile.bootstrap or _brokers_of(profile.admin or ""), f"profile {profile.name}")
    return local_target(lambda plan: plan.bootstrap, DEFAULT_BOOTSTRAP)


def _brokers_of(admin: str) -> str:
    from tierlog.cli.admin import bootstrap_of

    return bootstrap_of(admin)


def local_directory(admin: str | None, bootstrap: str | None) -> "Path | None":
    """The directory of the local cluster if it is the target of a command with these options."""
    from tierlog.cli import cluster_files
    from tierlog.cli.client_config import bootstrap_servers, profile_in_use

    is_other = admin or bootstrap or bootstrap_servers() or profile_in_use()
    return None if is_other else cluster_files.last_started()


def local_target(addresses: "Callable[[ClusterPlan], str]", default: str) -> Target:
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory is not None else None
    if plan is None:
        return Target(default, "the default address")
    return Target(addresses(plan), f"the local cluster in {directory}")
