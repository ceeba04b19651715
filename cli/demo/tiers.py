"""Follows where a topic's offsets lie: listens to the admin API's events, asks for the status after each.

A thread per life of the broker. Every status becomes a `Sample`; the live table shows the newest, the picture
all of them. Who waits, waits on the condition that a new sample notifies.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError


@dataclass(frozen=True, slots=True)
class PartitionTiers:
    """Ends are exclusive: remote is [log_start, remote_end), local is [local_start, log_end)."""

    log_start: int
    remote_end: int
    local_start: int
    log_end: int
    remote_bytes: int
    local_bytes: int
    closed_segments: int  # rolled, and still on local disk


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float  # since the watcher was made
    partitions: dict[int, PartitionTiers]

    @property
    def settled(self) -> bool:
        """Every rolled segment is uploaded and gone from local disk; only the active ones are local."""
        return bool(self.partitions) and all(tiers.closed_segments == 0 for tiers in self.partitions.values())


class TierWatcher:
    """Collects samples of one topic, over restarts of the broker."""

    def __init__(self, topic: str) -> None:
        self.samples: list[Sample] = []
        self.moments: list[tuple[float, str]] = []  # what the picture marks
        self._topic = topic
        self._begin = time.monotonic()
        self._changed = threading.Condition()

    def listen(self, admin_url: str) -> None:
        """Follows a broker that has just started; ends by itself when the broker does."""
        threading.Thread(target=self._follow, args=(admin_url,), name="tier watcher", daemon=True).start()

    def mark(self, words: str) -> None:
        """Remembers that something happened now."""
        self.moments.append((self.seconds(), words))

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def look(self, admin: AdminApi) -> Sample:
        """Takes a sample now."""
        sample = Sample(self.seconds(), read_status(admin.get("/v1/tier/status", topic=self._topic)))
        with self._changed:
            self.samples.append(sample)
            self._changed.notify_all()
        return sample

    def wait(
        self, enough: Callable[[Sample], bool], show: Callable[[Sample], None], timeout_s: float
    ) -> Sample:
        """The first sample that is enough; shows each on the way. Raises CliError after the timeout."""
        deadline = time.monotonic() + timeout_s
        seen = max(len(self.samples) - 1, 0)
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: len(self.samples) > seen, deadline - time.monotonic()):  # noqa: B023
                    raise CliError(
                        f"the tiers did not settle within {timeout_s:.0f} s",
                        hint="`tierlog tier status` on a kept run shows more.",
                    )
                seen, newest = len(self.samples), self.samples[-1]
            show(newest)
            if enough(newest):
                return newest

    def _follow(self, admin_url: str) -> None:
        admin = AdminApi(admin_url)
        try:
            for _ in admin.events():
                self.look(admin)
        except (CliError, OSError, ValueError):
            return  # the broker went away; whoever ended it starts the next watcher


def read_status(answer: dict[str, Any]) -> dict[int, PartitionTiers]:
    """The answer of /v1/tier/status for one topic, per partition."""
    return {
        row["partition"]: PartitionTiers(
            log_start=row["log_start_offset"],
            remote_end=row["remote_end_offset"] or row["log_start_offset"],
            local_start=row["local_log_start_offset"],
            log_end=row["log_end_offset"],
            remote_bytes=row["remote_bytes"],
            local_bytes=row["local_bytes"],
            closed_segments=row["local_segments"] - 1,  # the last one is active
        )
        for row in answer["partitions"]
    }
