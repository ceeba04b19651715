"""The live view of a cluster on this machine: a table drawn anew in a terminal, else a line per change."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierlog.cli import cluster_files, cluster_processes
from tierlog.cli.cluster_files import ClusterPlan
from tierlog.cli.cluster_processes import ProcessState
from tierlog.cli.health import Health, judge
from tierlog.cli.observation import Observation, observe
from tierlog.cli.output import console, print_rows, table

if TYPE_CHECKING:
    from rich.console import RenderableType

Looks = Iterator[tuple[dict[int, ProcessState], Observation]]

EVERY_S = 1.0

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


def look(directory: Path, plan: ClusterPlan) -> tuple[dict[int, ProcessState], Observation]:
    """Only those that can answer are asked."""
    processes = cluster_processes.states(directory, plan)
    up = {one: url for one, url in plan.admin_urls.items() if processes[one] is ProcessState.UP}
    return processes, observe(up.values())


def rows(
    directory: Path, plan: ClusterPlan, processes: Mapping[int, ProcessState], seen: Observation
) -> list[dict[str, Any]]:
    """One for each node; what nobody tells is None. `metadata`: the index that it has applied."""
    brokers = {broker["id"]: broker for broker in (seen.brokers or {}).get("brokers", ())}
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
    """Until it is interrupted, or until somebody takes the cluster down. `quiet`: prints nothing."""
    looks = _looks(directory, plan)
    if quiet:
        while cluster_files.last_started() == directory.absolute():
            time.sleep(EVERY_S)
    elif console().is_terminal:
        _draw(directory, plan, looks)
    else:
        _write(directory, plan, looks)


@contextmanager
def interruptible() -> Iterator[None]:
    """A terminal that closes and SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _draw(directory: Path, plan: ClusterPlan, looks: Looks) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for processes, seen in looks:
            live.update(_picture(directory, plan, processes, seen), refresh=True)


def _picture(
    directory: Path, plan: ClusterPlan, processes: Mapping[int, ProcessState], seen: Observation
) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    drawn = table(COLUMNS, _plain(rows(directory, plan, processes, seen)), title=_title(directory))
    health = judge(seen, processes, plan.roles)
    style = "green" if not health.problems else "yellow"
    keys = "Ctrl-C stops it. `tierlog cluster kill|pause|resume|start N` in another terminal."
    return Group(drawn, Text(_summary(seen, health), style), Text(keys, "dim"))


def _write(directory: Path, plan: ClusterPlan, looks: Looks) -> None:
    """A line for each node whose state or role is another than before, and for each word of its health."""
    before: dict[str, str] = {}
    for processes, seen in looks:
        now = {
            f"node {row['node']}": f"{row['state']}" + (f", {row['role']}" if row["role"] else "")
            for row in rows(directory, plan, processes, seen)
        }
        now["cluster"] = _summary(seen, judge(seen, processes, plan.roles))
        for name, words in now.items():
            if before.get(name) != words:
                console().print(f"{name}: {words}", markup=False)
        before = now


def _looks(directory: Path, plan: ClusterPlan) -> Looks:
    while cluster_files.last_started() == directory.absolute():
        began = time.monotonic()
        yield look(directory, plan)
        time.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))


def _plain(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As people read them: a process id is no quantity."""
    return [{**row, "pid": row["pid"] and str(row["pid"])} for row in found]


def _title(directory: Path) -> str:
    return f"Cluster in {directory}"


def _summary(seen: Observation, health: Health) -> str:
    counts = (seen.brokers or {}).get("partitions")
    told = "" if counts is None else f"; {counts['total']:,} partitions"
    return "; ".join([f"{health.status}{told}", *(problem.what for problem in health.problems)])


def show(directory: Path, plan: ClusterPlan, *, as_json: bool) -> None:
    """The table once."""
    processes, seen = look(directory, plan)
    found = rows(directory, plan, processes, seen)
    print_rows(COLUMNS, found if as_json else _plain(found), title=_title(directory), as_json=as_json)
