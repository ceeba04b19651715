"""Copy lag: rolls segments in time for `remote.log.copy.max.lag.ms`, and reports partitions that are late.

A record is copied once the manifest in the bucket lists it. Its age is measured by the leader's monotonic
clock from its append. A new leader takes the age of the records that it finds from its own log: from the time
of the segment's first append there, as a follower, so that elections do not make records younger. After a
restart that time is lost, and the timestamp of the first record counts. A client may have set it: then it
makes a record at most half as old as allowed, so that no false one is reported as late. Wrong ages roll
segments early, and delete nothing.

A new leader rolls and uploads what it finds soon: after a drawn part of a tenth of the allowed time, since a
broker may come to lead thousands of partitions at once. Otherwise the active segment is rolled after half of
the allowed time, if it has records, and only once all earlier segments are copied: until then another segment
would not be copied sooner. Called by the remote log manager; only partitions with the setting cost anything.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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

CHECKS_PER_TURN = 100
CHECKS_PER_ROLL = 20
"""Partitions that are checked in one turn of the event loop: a millisecond. A roll writes index files, and
takes as long as some checks."""

_log = structlog.get_logger("tierlog.tiering")


class _FirstAppend(NamedTuple):
    """The first append to a segment since `offset`, by the monotonic clock. `claimed_ms`: earlier, if a
    timestamp says so."""

    offset: int
    time_ms: int
    claimed_ms: int


@dataclass(slots=True)
class _Lag:
    """Append times of what one leader has not copied. `found_end`: log end when this broker became leader.
    `draw`: from 0 to 1, delays the roll of what it found. `first_appends`: of each segment, in order."""

    replica: Replica
    leader_epoch: int
    found_end: int
    since_ms: int
    draw: float
    first_appends: list[_FirstAppend]
    marked_base: int = -1  # base offset of the newest segment with an entry for appends since then
    is_behind: bool = False
    roll_failed: bool = False

    def on_appended(self, now_ms: int) -> None:
        log = self.replica.log
        base = log.active_base_offset
        if base != self.marked_base and log.log_end_offset > (first := max(base, self.found_end)):
            self.marked_base = base
            self.first_appends.append(_FirstAppend(first, now_ms, now_ms))

    def oldest(self, copied_end: int) -> _FirstAppend | None:
        """The append that the oldest record which is not copied is as old as; None if all are copied."""
        if copied_end >= self.replica.log_end_offset:
            return None
        found = self.first_appends[0] if self.first_appends else None
        for append in self.first_appends:
            if append.offset > copied_end:
                break
            found = append
        return found or _FirstAppend(copied_end, self.since_ms, self.since_ms)

    def forget_below(self, copied_end: int) -> None:
        while len(self.first_appends) > 1 and self.first_appends[1].offset <= copied_end:
            del self.first_appends[0]


class CopyLags:
    def __init__(
        self,
        clock: Clock,
        remote: Callable[[TopicIdPartition], RemotePartition],
        bucket_end: Callable[[TopicIdPartition], int | None],
        on_rolled: Callable[[Replica], None],
        on_changed: Callable[[TopicIdPartition], None],
        rng: random.Random,
    ) -> None:
        """`remote`: what the quorum has committed. `bucket_end`: end of what the bucket's manifest lists,
        None if this leader has neither written nor read it. `on_changed`: called when a partition becomes
        late, and when it no longer is."""
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
            found = self._found_appends(replica, now_ms)
            self._lags[replica.id] = _Lag(replica, epoch, replica.log_end_offset, now_ms, draw, found)
            self._some.set()

    def _found_appends(self, replica: Replica, now_ms: int) -> list[_FirstAppend]:
        """The first appends to the segments that are not copied. A segment's `created_ms` is by this broker's
        wall clock: the first append, or the start of the process."""
        copied_end, found = self._committed_end(replica), list[_FirstAppend]()
        wall_ms, config = self._clock.now_ms(), replica.config
        is_own_time = config.message_timestamp_type == "LogAppendTime"
        claimed_max = wall_ms if is_own_time else config.remote_log_copy_max_lag_ms // ROLL_SHARE
        for segment in reversed(replica.log.segment_files):
            if segment.end_offset <= copied_end:
                break
            if not segment.size:
                continue
            age_ms, stamped_ms = max(0, wall_ms - segment.created_ms), segment.first_timestamp
            claimed_ms = min(wall_ms - stamped_ms, claimed_max) if stamped_ms > 0 else 0
            claimed_ms = max(age_ms, claimed_ms)
            found.append(_FirstAppend(segment.base_offset, now_ms - age_ms, now_ms - claimed_ms))
        return found[::-1]

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
        checks = 0
        for where, lag in list(self._lags.items()):
            if checks >= CHECKS_PER_TURN:
                checks = 0
                await asyncio.sleep(0)  # let requests run
            checks += 1
            if self._lags.get(where) is not lag or not lag.replica.is_leader:
                continue  # the image that says so is about to be applied
            now_ms = self._clock.monotonic_ms()
            lag.on_appended(now_ms)
            if self._roll_if_due(lag, now_ms):
                checks += CHECKS_PER_ROLL
            self._report(where, lag, now_ms)

    def age_ms(self, where: TopicIdPartition) -> int | None:
        """Age of the oldest record that the bucket does not have, 0 if there is none. None without the
        setting."""
        lag = self._lags.get(where)
        return None if lag is None else self._age_ms(where, lag, self._clock.monotonic_ms())

    def due_ms(self, where: TopicIdPartition) -> int | None:
        """Until when the oldest record must be copied, by the monotonic clock; None if that does not
        matter."""
        lag = self._lags.get(where)
        oldest_ms = None if lag is None else self._oldest_ms(where, lag)
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
        oldest_ms = self._oldest_ms(where, lag)
        return 0 if oldest_ms is None else now_ms - oldest_ms

    def _oldest_ms(self, where: TopicIdPartition, lag: _Lag) -> int | None:
        """Append time of the oldest record that is not copied; None if there is none. Until this leader knows
        the bucket's manifest, that of the oldest which is not committed, but no later than its election."""
        bucket_end, log_start = self._bucket_end(where), lag.replica.log_start_offset
        if bucket_end is not None:
            oldest = lag.oldest(max(bucket_end, log_start))
            return None if oldest is None else oldest.claimed_ms
        if log_start >= lag.replica.log_end_offset:
            return None
        oldest = lag.oldest(self._committed_end(lag.replica))
        if lag.found_end <= log_start:  # there was nothing at the election
            return None if oldest is None else oldest.claimed_ms
        return lag.since_ms if oldest is None else min(lag.since_ms, oldest.claimed_ms)

    def _committed_end(self, replica: Replica) -> int:
        """End of the records that the quorum's manifest has, or that were deleted."""
        remote = self._remote(replica.id)
        return max(remote.used_end_offset, replica.log_start_offset)

    @safeguard("segments are rolled in time for remote.log.copy.max.lag.ms")
    def _roll_if_due(self, lag: _Lag, now_ms: int) -> bool:
        """Returns whether it rolled."""
        replica, log, committed_end = lag.replica, lag.replica.log, self._committed_end(lag.replica)
        oldest = lag.oldest(committed_end)
        if oldest is None or (log.active_base_offset > committed_end and len(log.segment_files) > 1):
            return False
        allowed_ms = replica.config.remote_log_copy_max_lag_ms
        is_old = now_ms - oldest.time_ms >= allowed_ms / ROLL_SHARE
        was_found = committed_end < lag.found_end
        if not (is_old or (was_found and now_ms - lag.since_ms >= lag.draw * allowed_ms / FOUND_SHARE)):
            return False
        try:
            rolled = log.roll(self._clock.now_ms())
        except OSError as failure:  # in particular a full disk
            if not lag.roll_failed:
                _log.error("tiering.roll_failed", partition=str(replica.name), error=str(failure))
            lag.roll_failed = True
            return False
        lag.roll_failed = False
        if rolled:
            self._on_rolled(replica)
        return rolled

    def _report(self, where: TopicIdPartition, lag: _Lag, now_ms: int) -> None:
        lag.forget_below(max(self._bucket_end(where) or 0, lag.replica.log_start_offset))
        age_ms, allowed_ms = self._age_ms(where, lag, now_ms), lag.replica.config.remote_log_copy_max_lag_ms
        if (age_ms > allowed_ms) == lag.is_behind:
            return
        lag.is_behind = not lag.is_behind
        name, limit = str(lag.replica.name), f"remote.log.copy.max.lag.ms is {allowed_ms}"
        if lag.is_behind:
            _log.error("upload.late", partition=name, age_ms=age_ms, why=limit)
        else:
            _log.info("upload.in_time", partition=name)
        self._on_changed(where)


def _is_limited(replica: Replica) -> bool:
    config = replica.config
    is_copied = replica.is_tiered and config.remote_storage_enable and not config.remote_log_copy_disable
    return is_copied and config.remote_log_copy_max_lag_ms >= 0
