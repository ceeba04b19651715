"""Target of a command: the given addresses, the local cluster, or the default address."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tierlog.cli.options import DEFAULT_BOOTSTRAP
from tierlog.cli.output import print_status

if TYPE_CHECKING:
    from tierlog.cli.cluster_files import ClusterPlan


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
    """Bootstrap brokers: the given ones, the local cluster's, or the default address."""
    if bootstrap is not None:
        return Target(bootstrap)
    return local_target(lambda plan: plan.bootstrap, DEFAULT_BOOTSTRAP)


def local_target(addresses: "Callable[[ClusterPlan], str]", default: str) -> Target:
    from tierlog.cli import cluster_files

    directory = cluster_files.last_started()
    plan = cluster_files.load(directory) if directory is not None else None
    if plan is None:
        return Target(default, "the default address")
    return Target(addresses(plan), f"the local cluster in {directory}")
