"""Executes plans on a model of quorum, disk and bucket: no offset is lost or copied twice.

Switching tiering off deletes what is remote, and nothing else.
"""

import dataclasses
import random
import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace
from remote_segments import local_segment, remote_segment

from tierlog.base.segments import SegmentDescriptor
from tierlog.metadata.image import RemotePartition, StartedCopy
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering import planner
from tierlog.tiering.page_tree import Spill
from tierlog.tiering.planner import LeaderView, TierPolicy, plan

limits = st.one_of(st.just(-1), st.integers(0, 500))


def empty_segment(base: int) -> SegmentDescriptor:
    return local_segment(base, base, size=0, at=-1, rolled=False)


class TieringModel(RuleBasedStateMachine):
    """Appends, rolls, watermarks, time, policies and failures in any order; plans one action at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)
        self.remote = RemotePartition()
        self.segments = [empty_segment(0)]
        self.high = self.stable = 0
        self.now = 1_000
        self.policy = TierPolicy()
        self.bucket_end: int | None = None
        self.bucket: list[RemoteSegment] = []  # every object that was ever verified
        self.started: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return self.segments[-1].end_offset

    @rule(count=st.integers(1, 20), size=st.integers(1, 200))
    def append(self, count: int, size: int) -> None:
        last = self.segments[-1]
        self.segments[-1] = local_segment(
            last.base_offset,
            last.end_offset + count,
            size=last.size_bytes + size,
            at=self.now,
            rolled=False,
        )

    @rule()
    def roll(self) -> None:
        last = self.segments[-1]
        if last.end_offset > last.base_offset:
            self.segments[-1] = replace(last, rolled=True)
            self.segments.append(empty_segment(self.end))

    @rule(data=st.data())
    def move_watermarks(self, data: st.DataObject) -> None:
        self.high = data.draw(st.integers(self.high, self.end))
        self.stable = (
            data.draw(st.integers(self.stable, self.high)) if self.high > self.stable else self.stable
        )

    @rule(by=st.integers(1, 300))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(
        ms=limits, size=limits, local_ms=limits, local_size=limits, copy=st.booleans(), delete=st.booleans()
    )
    def change_policy(self, ms, size, local_ms, local_size, copy, delete) -> None:
        self.policy = TierPolicy(
            enabled=self.policy.enabled,
            retention_ms=ms,
            retention_bytes=size,
            local_retention_ms=local_ms,
            local_retention_bytes=local_size,
            copy=copy,
            delete=delete,
        )

    @rule(enabled=st.booleans())
    def switch(self, enabled: bool) -> None:
        self.policy = dataclasses.replace(self.policy, enabled=enabled)

    @rule()
    def write_manifest(self) -> None:
        self.bucket_end = self.remote.end_offset

    @rule(fails=st.booleans(), steps=st.integers(1, 5))
    def carry_out(self, fails: bool, steps: int) -> None:
        for _ in range(steps):
            view = LeaderView(
                leader_epoch=0,
                high_watermark=self.high,
                last_stable_offset=self.stable,
                bucket_end=self.bucket_end,
            )
            actions = plan(self.remote, self.segments, self.policy, view, self.now)
            if not actions:
                return
            self.perform(actions[0], fails)

    def perform(self, action: planner.Action, fails: bool) -> None:
        match action:
            case planner.Copy(segment):
                self.copy(segment, fails)
            case planner.DropLocal(start):
                self.drop(start)
            case planner.MoveLogStart(offset):
                self.move_log_start(offset)
            case planner.DropRemote(start):
                self.drop_remote(start)
            case planner.Abandon(copy_id):
                started = tuple(copy for copy in self.remote.started if copy.uuid != copy_id)
                self.remote = replace(self.remote, started=started)
            case planner.Blocked(reason):
                raise AssertionError(reason)
            case Spill() | planner.TrimPages():
                raise AssertionError("far fewer entries than that")

    def copy(self, segment: SegmentDescriptor, fails: bool) -> None:
        assert segment.rolled and self.policy.enabled
        assert segment.end_offset <= min(self.high, self.stable)
        assert segment in self.segments
        if self.remote.end_offset is not None:
            assert segment.base_offset == self.remote.end_offset
        elif self.remote.copied_end_offset is not None:
            most = max(self.remote.copied_end_offset, self.remote.log_start_offset)
            assert self.remote.copied_end_offset <= segment.base_offset <= most
        copy = StartedCopy(
            uuid=uuid.UUID(int=self.rng.getrandbits(128)),
            base_offset=segment.base_offset,
            last_offset=segment.end_offset - 1,
            leader_epoch=0,
            at_ms=self.now,
        )
        assert not self.remote.started, "abandoned first"
        if fails:
            self.remote = replace(self.remote, started=(copy,))
            return
        entry = remote_segment(
            copy.base_offset,
            copy.last_offset,
            uuid=copy.uuid,
            log_bytes=segment.size_bytes,
            max_timestamp=segment.max_timestamp,
        )
        self.bucket.append(entry)
        self.remote = replace(
            self.remote, entries=(*self.remote.entries, entry), copied_end_offset=entry.end_offset
        )

    def drop(self, start: int) -> None:
        dropped = [s for s in self.segments if s.base_offset < start and s.end_offset <= start]
        assert dropped and all(segment.rolled for segment in dropped)
        for segment in dropped:
            below = segment.end_offset <= self.remote.log_start_offset
            assert below or self.policy.enabled
            assert below or segment.end_offset <= min(self.remote.end_offset or 0, self.bucket_end or 0)
        self.segments = self.segments[len(dropped) :]

    def drop_remote(self, start: int) -> None:
        assert not self.policy.enabled
        assert self.remote.log_start_offset <= start <= self.high
        assert start in (self.remote.log_start_offset, self.segments[0].base_offset)
        self.remote = RemotePartition(log_start_offset=start, copied_end_offset=start)
        self.bucket.clear()  # in the delete queue
        self.bucket_end = None

    def move_log_start(self, offset: int) -> None:
        assert self.remote.log_start_offset < offset <= self.high
        assert self.policy.delete
        entries = tuple(entry for entry in self.remote.entries if entry.last_offset >= offset)
        self.remote = replace(self.remote, log_start_offset=offset, entries=entries)

    @invariant()
    def every_offset_is_in_a_tier(self) -> None:
        local_start, log_start = self.segments[0].base_offset, self.remote.log_start_offset
        if local_start > log_start:
            assert self.remote.first_offset is not None
            assert self.remote.first_offset <= log_start
            assert self.remote.end_offset is not None
            assert self.remote.end_offset >= local_start

    @invariant()
    def finished_copies_never_overlap(self) -> None:
        for before, after in zip(self.bucket, self.bucket[1:], strict=False):
            assert after.base_offset > before.last_offset


TestTieringModel = TieringModel.TestCase
TestTieringModel.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
