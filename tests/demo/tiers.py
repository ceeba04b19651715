"""Tier watcher: records a topic's local and remote offsets over time.

One thread per broker process listens to the admin API's events and requests the tier status after each. Every
status becomes a `Sample`: the live table shows the newest, the picture all of them.
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
    seconds: float  # since the watcher was created
    partitions: dict[int, PartitionTiers]

    @property
    def only_active_is_local(self) -> bool:
        """Whether all rolled segments are uploaded and deleted from local disk; only active ones are left."""
        return bool(self.partitions) and all(tiers.closed_segments == 0 for tiers in self.partitions.values())


class TierWatcher:
    """Collects samples of one topic, across restarts of the broker."""

    def __init__(self, topic: str) -> None:
        self.samples: list[Sample] = []
        self.moments: list[tuple[float, str]] = []  # what the picture marks
        self._topic = topic
        self._begin = time.monotonic()
        self._changed = threading.Condition()

    def listen(self, admin_url: str) -> None:
        """Watch a broker that has just started; ends when the broker does."""
        threading.Thread(target=self._follow, args=(admin_url,), name="tier watcher", daemon=True).start()

    def mark(self, label: str) -> None:
        """Record that something happened now."""
        self.moments.append((self.seconds(), label))

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def look(self, admin: AdminApi) -> Sample:
        """Take a sample now."""
        sample = Sample(self.seconds(), read_status(admin.get("/v1/tier/status", topic=self._topic)))
        with self._changed:
            self.samples.append(sample)
            self._changed.notify_all()
        return sample

    def wait(
        self, enough: Callable[[Sample], bool], show: Callable[[Sample], None], timeout_s: float
    ) -> Sample:
        """Wait for the first sample that is `enough`, and `show` each. Raises CliError after the timeout."""
        deadline = time.monotonic() + timeout_s
        seen = max(len(self.samples) - 1, 0)
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: len(self.samples) > seen, deadline - time.monotonic()):  # noqa: B023
                    raise CliError(
                        f"segments were not uploaded within {timeout_s:.0f} s",
                        hint="Keep the data (DEMO_OPTIONS='--keep DIR') and see the broker's log.",
                    )
                seen, newest = len(self.samples), self.samples[-1]
            show(newest)
            if enough(newest):
                return newest

    def _follow(self, admin_url: str) -> None:
        admin = AdminApi(admin_url)
        try:
            for _ in admin.changes():
                self.look(admin)
        except (CliError, OSError, ValueError):
            return  # the broker ended; its restart calls `listen` again


def read_status(answer: dict[str, Any]) -> dict[int, PartitionTiers]:
    """Partition -> its offsets, from the response of /v1/tier/status for one topic."""
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
