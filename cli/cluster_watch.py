"""Live view of a local cluster: a refreshed table in a terminal, else one line per change."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierlog.broker.diagnosis.evidence import Observation, ProcessState
from tierlog.broker.diagnosis.health import Health, assess
from tierlog.cli import cluster_files, cluster_processes
from tierlog.cli.client_config import use_local
from tierlog.cli.cluster_files import ClusterPlan
from tierlog.cli.observation import observe
from tierlog.cli.output import console, counted, print_json, printable, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Polls = Iterator[tuple[dict[int, ProcessState], Observation]]

REFRESH_INTERVAL_S = 1.0

COLUMNS = {
    "node": "node",
    "state": "state",
    "role": "quorum",
    "bootstrap": "address",
    "pid": "pid",
    "leads": "leads",
    "replicas": "replicas",
    "out_of_sync": "out of sync",
    "metadata": "metadata at",
}


WIDE_ONLY = ("pid", "metadata")
"""Columns that a narrow terminal has no space for."""


def poll(directory: Path, plan: ClusterPlan) -> tuple[dict[int, ProcessState], Observation]:
    """State of all processes, and an observation of the nodes that are up."""
    use_local(directory)
    processes = cluster_processes.states(directory, plan)
    up = {one: url for one, url in plan.admin_urls.items() if processes[one] is ProcessState.UP}
    return processes, observe(up.values())


def rows(
    directory: Path, plan: ClusterPlan, processes: Mapping[int, ProcessState], seen: Observation
) -> list[dict[str, Any]]:
    """One row per node, with None for unknown values. `metadata`: the index that the node has applied."""
    brokers = seen.registered
    found = []
    for node in plan.nodes:
        quorum, broker = seen.quorum.get(node.id) or {}, brokers.get(node.id, {})
        found.append(
            {
                "node": node.id,
                "state": processes[node.id].value,
                "role": quorum.get("role"),
                "bootstrap": node.bootstrap,
                "admin": node.admin_url,
                "directory": str(cluster_files.node_directory(directory, node.id)),
                "pid": cluster_processes.pid_of(cluster_files.node_directory(directory, node.id)),
                "fenced": broker.get("fenced"),
                "leads": broker.get("leads"),
                "replicas": broker.get("replicas"),
                "out_of_sync": broker.get("out_of_sync"),
                "metadata": quorum.get("applied_index"),
            }
        )
    return found


def watch(directory: Path, plan: ClusterPlan, *, quiet: bool) -> None:
    """Show the cluster until it is interrupted or taken down. `quiet`: print nothing."""
    polls = _polls(directory, plan)
    if quiet:
        while cluster_files.last_started() == directory.absolute():
            time.sleep(REFRESH_INTERVAL_S)
    elif console().is_terminal:
        _show_live(directory, plan, polls)
    else:
        _print_changes(directory, plan, polls)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_live(directory: Path, plan: ClusterPlan, polls: Polls) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for processes, seen in polls:
            live.update(_render(directory, plan, processes, seen), refresh=True)


def _render(
    directory: Path, plan: ClusterPlan, processes: Mapping[int, ProcessState], seen: Observation
) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    found = rows(directory, plan, processes, seen)
    nodes = node_table(found, title=_title(directory), width=console().width)
    health = assess(seen, processes, plan.roles)
    style = "green" if not health.problems else "yellow"
    keys = "Ctrl-C stops the cluster. In another terminal: `tierlog cluster kill|pause|resume|start N`."
    return Group(nodes, Text(_summary(seen, health), style), Text(keys, "dim"))


def _print_changes(directory: Path, plan: ClusterPlan, polls: Polls) -> None:
    """One line for each node whose state or role has changed, and for each change of the cluster's health."""
    before: dict[str, str] = {}
    for processes, seen in polls:
        now = {
            f"node {row['node']}": f"{row['state']}" + (f", {row['role']}" if row["role"] else "")
            for row in rows(directory, plan, processes, seen)
        }
        now["cluster"] = _summary(seen, assess(seen, processes, plan.roles))
        for name, text in now.items():
            if before.get(name) != text:
                console().print(printable(f"{name}: {text}"), markup=False)
        before = now


def _polls(directory: Path, plan: ClusterPlan) -> Polls:
    while cluster_files.last_started() == directory.absolute():
        started = time.monotonic()
        yield poll(directory, plan)
        time.sleep(max(0.0, REFRESH_INTERVAL_S - (time.monotonic() - started)))


def node_table(found: list[dict[str, Any]], *, title: str, width: int) -> "Table":
    """The table of the nodes, without WIDE_ONLY if it would be wider than `width`."""
    from rich.console import Console
    from rich.measure import Measurement

    # process ids as text have no thousands separators; a controller node has no address for Kafka clients
    shown = [
        {
            **row,
            "pid": row["pid"] and str(row["pid"]),
            "bootstrap": row["bootstrap"] or f"admin :{row['admin'].rpartition(':')[2]}",
        }
        for row in found
    ]
    made = table(COLUMNS, shown, title=title)
    unlimited = Console(width=1000)
    if Measurement.get(unlimited, unlimited.options, made).maximum <= width:
        return made
    narrow = {key: heading for key, heading in COLUMNS.items() if key not in WIDE_ONLY}
    return table(narrow, shown, title=title)


def _title(directory: Path) -> str:
    return f"Cluster in {directory}"


def _summary(seen: Observation, health: Health) -> str:
    counts = (seen.brokers or {}).get("partitions")
    partitions = "" if counts is None else "; " + counted(counts["total"], "partition")
    return "; ".join([f"{health.status}{partitions}", *(problem.what for problem in health.problems)])


def show(directory: Path, plan: ClusterPlan, *, as_json: bool) -> None:
    """Print the table once."""
    processes, seen = poll(directory, plan)
    found = rows(directory, plan, processes, seen)
    if as_json:
        print_json(found)
    else:
        console().print(node_table(found, title=_title(directory), width=console().width))
