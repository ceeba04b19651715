"""Processes of a local cluster, found by their node directories.

The command that started a node may have ended. `process.json` beside the node's data therefore records the
process id and its start time, which together identify the process even if its id is reused. Signals go
through a pidfd, which always refers to the same process.
"""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from tierlog.broker.diagnosis.evidence import ProcessState
from tierlog.cli.cluster_files import ClusterPlan, node_directory

STOP_TIMEOUT_S = 20.0
"""Time for a controlled shutdown. When all nodes stop at once, some wait for a controller that has already
stopped."""

PROCESS_FILE = "process.json"


class NodeProcess(msgspec.Struct, frozen=True):
    """`started`: start time in clock ticks since boot (proc(5), stat, field 22)."""

    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    started: int


def record_process(directory: Path, pid: int) -> None:
    """Record the process that runs the node of this directory."""
    stat = _stat(pid)
    if stat is not None:
        encoded = msgspec.json.encode(NodeProcess(pid, stat.started))
        (directory / PROCESS_FILE).write_bytes(encoded + b"\n")


def state_of(directory: Path) -> ProcessState:
    """State of the node's process. A paused process keeps its connections open and does not respond."""
    process = read_process(directory)
    stat = None if process is None else _stat(process.pid)
    if process is None or stat is None or stat.started != process.started or stat.state in "ZX":
        return ProcessState.DOWN
    return ProcessState.PAUSED if stat.state in "Tt" else ProcessState.UP


def pid_of(directory: Path) -> int | None:
    """Process id of the node, or None if it is down."""
    process = read_process(directory)
    return None if process is None or state_of(directory) is ProcessState.DOWN else process.pid


def send_signals(directory: Path, *numbers: signal.Signals, wait_s: float = 0.0) -> bool:
    """Send signals in order, then wait up to `wait_s` for the process to end.

    Returns False if the node is down, or did not end in time.
    """
    with _open_pidfd(directory) as process:
        if process is None:
            return False
        try:
            for number in numbers:
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            return True  # it has just ended
        return not wait_s or bool(select.select([process], [], [], wait_s)[0])


def read_process(directory: Path) -> NodeProcess | None:
    try:
        return msgspec.json.decode((directory / PROCESS_FILE).read_bytes(), type=NodeProcess)
    except (OSError, msgspec.DecodeError):
        return None


# --- the cluster


def states(directory: Path, plan: ClusterPlan) -> dict[int, ProcessState]:
    """State of each node of the cluster in this directory."""
    return {node.id: state_of(node_directory(directory, node.id)) for node in plan.nodes}


def stop(directory: Path, node_ids: Iterable[int], timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
    """Stop nodes in parallel by SIGTERM, and kill those that do not end in time.

    Returns those that were killed and have ended. The others may still run: see `states`.
    """

    def stop_one(node_id: int) -> bool:
        """Returns whether the node was killed."""
        node = node_directory(directory, node_id)
        # a paused process handles SIGTERM only after SIGCONT
        if send_signals(node, signal.SIGTERM, signal.SIGCONT, wait_s=timeout_s):
            return False
        return send_signals(node, signal.SIGKILL, wait_s=STOP_TIMEOUT_S)

    chosen = list(node_ids)
    with ThreadPoolExecutor(max(len(chosen), 1)) as pool:
        return [one for one, killed in zip(chosen, pool.map(stop_one, chosen), strict=True) if killed]


@contextmanager
def _open_pidfd(directory: Path) -> Iterator[int | None]:
    """A pidfd of the node's process; it becomes readable when the process ends. None if the node is down."""
    process = read_process(directory)
    descriptor = None
    if process is not None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            descriptor = None
    try:
        # checked after opening, because the id may have been reused in between
        yield descriptor if state_of(directory) is not ProcessState.DOWN else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a command name may hold spaces and brackets
    return _Stat(fields[0], int(fields[19]))
