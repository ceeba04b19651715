"""Copy lag: rolls segments in time for `remote.log.copy.max.lag.ms`, and reports partitions that are late.

A record is copied once the manifest in the bucket lists it. Its age is measured by the leader's monotonic
clock from its append. A new leader does not know the age of the records that it finds, so it rolls and
uploads them soon: after a drawn part of a tenth of the allowed time, since a broker may come to lead
thousands of partitions at once. The active segment is rolled after half of the allowed time, if it has
records, and only once all earlier segments are copied: until then another segment would not be copied sooner.
Called by the remote log manager; only partitions with the setting cost anything.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tierlog.base.clock import Clock
from tierlog.base.safeguards import safeguard
from tierlog.base.types import TopicIdPartition
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.image import RemotePartition

ROLL_SHARE = 2
"""The active segment is rolled once this part of the allowed time has passed: the rest is for the upload."""

FOUND_SHARE = 10
"""The records that a new leader finds are rolled within this part of the allowed time."""

CHECK_S = 0.5

ROLLS_PER_TURN = 5
"""Segments rolled per turn of the event loop: each roll writes index files."""

_log = structlog.get_logger("tierlog.tiering")


@dataclass(slots=True)
class _Lag:
    """Append times of what one leader has not copied. `found_end`: log end when this broker became leader.
    `draw`: from 0 to 1, delays the roll of what it found. `first_appends`: offset and time of the first
    append to each segment since then."""

    replica: Replica
    leader_epoch: int
    found_end: int
    since_ms: int
    draw: float
    first_appends: list[tuple[int, int]] = field(default_factory=list)
    marked_base: int = -1  # base offset of the newest segment with an entry
    is_behind: bool = False
    roll_failed: bool = False

    def on_appended(self, now_ms: int) -> None:
        log = self.replica.log
        base = log.active_base_offset
        if base != self.marked_base and log.log_end_offset > (first := max(base, self.found_end)):
            self.marked_base = base
            self.first_appends.append((first, now_ms))

    def oldest_ms(self, copied_end: int) -> int | None:
        """Append time of the oldest record that is not copied; None if there is none."""
        if copied_end >= self.replica.log_end_offset:
            return None
        if copied_end < self.found_end:
            return self.since_ms
        times = (time for first, time in self.first_appends if first <= copied_end)
        return max(times, default=self.since_ms)

    def forget_below(self, copied_end: int) -> None:
        while len(self.first_appends) > 1 and self.first_appends[1][0] <= copied_end:
            del self.first_appends[0]


class CopyLags:
    def __init__(
        self,
        clock: Clock,
        remote: Callable[[TopicIdPartition], RemotePartition],
        bucket_end: Callable[[TopicIdPartition], int],
        on_rolled: Callable[[Replica], None],
        on_changed: Callable[[TopicIdPartition], None],
        rng: random.Random,
    ) -> None:
        """`remote`: what the quorum has committed. `bucket_end`: end of what the bucket's manifest lists.
        `on_changed`: called when a partition becomes late, and when it no longer is."""
        self._clock = clock
        self._remote = remote
        self._bucket_end = bucket_end
        self._on_rolled = on_rolled
        self._on_changed = on_changed
        self._rng = rng
        self._lags: dict[TopicIdPartition, _Lag] = {}
        self._some = asyncio.Event()

    def update(self, replica: Replica) -> None:
        """Follow a partition that this broker leads, as its settings say."""
        lag, epoch = self._lags.get(replica.id), replica.leader_epoch
        if not _is_limited(replica):
            self.remove(replica.id)
        elif lag is None or lag.replica is not replica or lag.leader_epoch != epoch:
            now_ms, draw = self._clock.monotonic_ms(), self._rng.random()
            self._lags[replica.id] = _Lag(replica, epoch, replica.log_end_offset, now_ms, draw)
            self._some.set()

    def remove(self, where: TopicIdPartition) -> None:
        self._lags.pop(where, None)

    def on_appended(self, where: TopicIdPartition) -> None:
        """Called on every append; reads the clock only for the first one in a segment."""
        lag = self._lags.get(where)
        if lag is not None and lag.marked_base != lag.replica.log.active_base_offset:
            lag.on_appended(self._clock.monotonic_ms())

    async def turn(self) -> None:
        """One check, or a wait for the first partition with the setting. Called repeatedly."""
        if not self._lags:
            self._some.clear()
            await self._some.wait()
        await self.check()
        await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Roll what is due, and report what is late."""
        rolls = 0
        for where, lag in list(self._lags.items()):
            if self._lags.get(where) is not lag or not lag.replica.is_leader:
                continue  # the image that says so is about to be applied
            now_ms = self._clock.monotonic_ms()
            lag.on_appended(now_ms)
            rolls += self._roll_if_due(where, lag, now_ms)
            self._report(where, lag, now_ms)
            if rolls >= ROLLS_PER_TURN:
                rolls = 0
                await asyncio.sleep(0)  # let requests run

    def age_ms(self, where: TopicIdPartition) -> int | None:
        """Age of the oldest record that the bucket does not have, 0 if there is none. None without the
        setting."""
        lag = self._lags.get(where)
        return None if lag is None else self._age_ms(where, lag, self._clock.monotonic_ms())

    def due_ms(self, where: TopicIdPartition) -> int | None:
        """Until when the oldest record must be copied, by the monotonic clock; None if that does not
        matter."""
        lag = self._lags.get(where)
        oldest_ms = None if lag is None else lag.oldest_ms(self._copied_end(where, lag.replica))
        if lag is None or oldest_ms is None:
            return None
        return oldest_ms + lag.replica.config.remote_log_copy_max_lag_ms

    def ages_ms(self) -> dict[TopicIdPartition, int]:
        """`age_ms` of every partition with the setting."""
        now_ms = self._clock.monotonic_ms()
        return {where: self._age_ms(where, lag, now_ms) for where, lag in self._lags.items()}

    @property
    def behind(self) -> list[Replica]:
        """Partitions with a record that is older than the setting allows."""
        return [lag.replica for lag in self._lags.values() if lag.is_behind]

    def _age_ms(self, where: TopicIdPartition, lag: _Lag, now_ms: int) -> int:
        oldest_ms = lag.oldest_ms(self._copied_end(where, lag.replica))
        return 0 if oldest_ms is None else now_ms - oldest_ms

    def _copied_end(self, where: TopicIdPartition, replica: Replica) -> int:
        """End of the records that survive the loss of all brokers, or were deleted."""
        return max(self._bucket_end(where), replica.log_start_offset)

    @safeguard("segments are rolled in time for remote.log.copy.max.lag.ms")
    def _roll_if_due(self, where: TopicIdPartition, lag: _Lag, now_ms: int) -> bool:
        """Returns whether it rolled."""
        replica, log, remote = lag.replica, lag.replica.log, self._remote(where)
        committed_end = max(remote.end_offset or remote.copied_end_offset or 0, replica.log_start_offset)
        oldest_ms = lag.oldest_ms(committed_end)
        if oldest_ms is None or (log.active_base_offset > committed_end and len(log.segment_files) > 1):
            return False
        allowed_ms, age_ms = replica.config.remote_log_copy_max_lag_ms, now_ms - oldest_ms
        waits_ms = (
            allowed_ms / ROLL_SHARE if committed_end >= lag.found_end else lag.draw * allowed_ms / FOUND_SHARE
        )
        if age_ms < waits_ms:
            return False
        try:
            rolled = log.roll(self._clock.now_ms())
        except OSError as failure:  # in particular a full disk
            if not lag.roll_failed:
                _log.error("cannot roll a segment", partition=str(replica.name), error=str(failure))
            lag.roll_failed = True
            return False
        lag.roll_failed = False
        if rolled:
            self._on_rolled(replica)
        return rolled

    def _report(self, where: TopicIdPartition, lag: _Lag, now_ms: int) -> None:
        lag.forget_below(self._copied_end(where, lag.replica))
        age_ms, allowed_ms = self._age_ms(where, lag, now_ms), lag.replica.config.remote_log_copy_max_lag_ms
        if (age_ms > allowed_ms) == lag.is_behind:
            return
        lag.is_behind = not lag.is_behind
        name, limit = str(lag.replica.name), f"remote.log.copy.max.lag.ms is {allowed_ms}"
        if lag.is_behind:
            _log.error("records are not uploaded in time", partition=name, age_ms=age_ms, why=limit)
        else:
            _log.info("records are uploaded in time again", partition=name)
        self._on_changed(where)


def _is_limited(replica: Replica) -> bool:
    config = replica.config
    is_copied = replica.is_tiered and config.remote_storage_enable and not config.remote_log_copy_disable
    return is_copied and config.remote_log_copy_max_lag_ms >= 0
