"""Replica state: what both roles of a replica use of it and of its log directory."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from tierlog.base.types import TopicPartition
from tierlog.broker.storage.log import PartitionLog


class LogDirState(Protocol):
    """State of a replica's log directory, as appends and flushes need it."""

    @property
    def refusal(self) -> str | None:
        """Why appends are refused: the directory is full or offline."""

    @property
    def threads(self) -> Executor | None:
        """The threads for blocking operations on its disk."""

    def mark_hung(self, timeout_s: float) -> None:
        """No operation in the directory has ended for `timeout_s`."""


class ReplicaState(Protocol):
    """Implemented by `Replica`, which documents the fields."""

    name: TopicPartition
    log: PartitionLog
    log_dir: LogDirState
    suspect: Callable[[int, str], None]
    failed: str | None
    failed_end: int
    bytes_in: int

    def after_append(self) -> None: ...
    def on_restarted(self, offset: int) -> None: ...
    def raise_log_start(self, offset: int) -> None: ...
    def notify(self) -> None: ...
