"""The processes of a cluster on this machine, known from their directories: whoever started them may be gone.

`process.json` beside a node's data names its process by id and by start time, so that a process that came to
have the same id later is never taken for it. Signals go through a descriptor of the process (pidfd), which
cannot come to mean another one.
"""

import os
import select
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from tierlog.cli.cluster_files import ClusterPlan, node_directory

STOP_TIMEOUT_S = 20.0
"""For a clean end. Nodes that stop all at once may wait for a controller that is gone already."""

FILE = "process.json"


class ProcessState(StrEnum):
    UP = "up"
    PAUSED = "paused"
    DOWN = "down"


class NodeProcess(msgspec.Struct, frozen=True):
    """`started`: clock ticks after the machine's start (proc(5), stat, field 22)."""

    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    started: int


def note(directory: Path, pid: int) -> None:
    """This process runs the node of this directory from now on."""
    stat = _stat(pid)
    if stat is not None:
        found = msgspec.json.encode(NodeProcess(pid, stat.started))
        (directory / FILE).write_bytes(found + b"\n")


def state_of(directory: Path) -> ProcessState:
    """Of the node's process; a paused one has its connections open and answers nobody."""
    process = noted(directory)
    stat = None if process is None else _stat(process.pid)
    if process is None or stat is None or stat.started != process.started or stat.state in "ZX":
        return ProcessState.DOWN
    return ProcessState.PAUSED if stat.state in "Tt" else ProcessState.UP


def pid_of(directory: Path) -> int | None:
    """None if it does not run."""
    process = noted(directory)
    return None if process is None or state_of(directory) is ProcessState.DOWN else process.pid


def send(directory: Path, *numbers: signal.Signals, wait_s: float = 0.0) -> bool:
    """Sends signals, one after the other, and waits for the end of the process if asked to.

    False if it does not run, or if it had not ended in time."""
    with _opened(directory) as process:
        if process is None:
            return False
        try:
            for number in numbers:
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            return True  # it ended a moment ago
        return not wait_s or bool(select.select([process], [], [], wait_s)[0])


def noted(directory: Path) -> NodeProcess | None:
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=NodeProcess)
    except (OSError, msgspec.DecodeError):
        return None


# --- of a whole cluster


def states(directory: Path, plan: ClusterPlan) -> dict[int, ProcessState]:
    """Of each node of the cluster in this directory."""
    return {node.id: state_of(node_directory(directory, node.id)) for node in plan.nodes}


def stop(directory: Path, node_ids: Iterable[int], timeout_s: float = STOP_TIMEOUT_S) -> list[int]:
    """Ends nodes clean, side by side; returns those that had to be killed in the end."""

    def stop_one(node_id: int) -> bool:
        node = node_directory(directory, node_id)
        # a paused one sees SIGTERM only once it goes on
        if send(node, signal.SIGTERM, signal.SIGCONT, wait_s=timeout_s):
            return False
        return kill(directory, node_id)

    chosen = list(node_ids)
    with ThreadPoolExecutor(max(len(chosen), 1)) as pool:
        return [one for one, killed in zip(chosen, pool.map(stop_one, chosen), strict=True) if killed]


def kill(directory: Path, node_id: int) -> bool:
    """Returns once it is gone; False if it did not run."""
    return send(node_directory(directory, node_id), signal.SIGKILL, wait_s=STOP_TIMEOUT_S)


@contextmanager
def _opened(directory: Path) -> Iterator[int | None]:
    """A descriptor of the node's process; readable once it has ended."""
    process = noted(directory)
    descriptor = None
    if process is not None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            descriptor = None
    try:
        # whose descriptor it is shows only now
        yield descriptor if state_of(directory) is not ProcessState.DOWN else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # a name may hold blanks and brackets
    return _Stat(fields[0], int(fields[19]))
