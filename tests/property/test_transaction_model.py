"""Compares last stable offset, aborted transactions and open transactions of a replica with a model."""

import random
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from opened_replica import opened_replica

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.storage.core.producer_state import Rejection
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.markers import EndMarker
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
FOLLOWER = 2
PRODUCERS = st.sampled_from([5, 6])
BEHIND = st.sampled_from([0, 0, 1, 2, 5])
"""Offsets which the follower lacks after an append."""


@dataclass
class Written:
    """A batch. `end`: whether a marker commits; None for data."""

    first: int
    last: int
    producer: int
    epoch: int
    sequence: int
    transactional: bool
    end: bool | None = None


@dataclass
class Transaction:
    producer: int
    first: int
    marker: int | None = None
    aborted: bool = False


class Transactions(RuleBasedStateMachine):
    """`written`: every batch of the log. All expectations are computed from it, from the start each time."""

    @initialize(segment_bytes=st.sampled_from([300, 1000]))
    def begin(self, segment_bytes: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=0)
        self.written: list[Written] = []
        self.leader_epoch = self.high_watermark = self.recovery_point = 0
        self.open(clean=False)

    def teardown(self) -> None:
        if hasattr(self, "replica"):
            self.replica.close(clean=False)
            self._home.cleanup()

    def open(self, *, clean: bool, log_start_offset: int = 0) -> None:
        self.replica = opened_replica(
            TopicPartition("t", 0),
            uuid.UUID(int=1),
            1,
            Path(self._home.name) / "t-0",
            self.config,
            OsFiles(),
            NOW,
            clean=clean,
            rng=random.Random(1),
            high_watermark=self.high_watermark,
            log_start_offset=log_start_offset,
            recovery_point=self.recovery_point,
        )
        self.lead()

    def lead(self) -> None:
        self.leader_epoch += 1
        self.replica.become_leader(self.leader_epoch, self.leader_epoch, [1, FOLLOWER])

    # -- the model --

    def transactions(self) -> list[Transaction]:
        found: list[Transaction] = []
        for batch in self.written:
            open_one = next((t for t in found if t.producer == batch.producer and t.marker is None), None)
            if batch.end is not None:
                if open_one is not None:
                    open_one.marker, open_one.aborted = batch.last, not batch.end
            elif batch.transactional and open_one is None:
                found.append(Transaction(batch.producer, batch.first))
        return found

    def is_open(self, producer: int) -> bool:
        return any(t.producer == producer and t.marker is None for t in self.transactions())

    def last_of(self, producer: int) -> tuple[int, int]:
        """Epoch and next sequence of a producer."""
        epoch, sequence = 0, 0
        for batch in self.written:
            if batch.producer == producer:
                sequence = 0 if batch.epoch != epoch else sequence
                epoch = batch.epoch
                sequence = (
                    sequence if batch.end is not None else batch.sequence + batch.last - batch.first + 1
                )
        return epoch, sequence

    # -- rules --

    @rule(
        producer=PRODUCERS,
        count=st.integers(1, 3),
        transactional=st.sampled_from([True, True, False]),
        forget=st.sampled_from([False, False, True]),
        behind=BEHIND,
    )
    def produce(self, producer: int, count: int, transactional: bool, forget: bool, behind: int) -> None:
        """`forget`: without a guard, which only an open transaction allows."""
        is_open = self.is_open(producer)
        epoch, sequence = self.last_of(producer)
        base = self.replica.log_end_offset
        records = [NewRecord(NOW, b"k", b"v" * 20)] * count
        data = encode_batch(
            records,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        leader, guard = self.replica.as_leader, None
        if transactional and not forget:
            guard = leader.begin_verification(producer, epoch, sequence)
            assert (guard is None) == is_open and not isinstance(guard, Rejection)
        result = leader.append(memoryview(data), NOW, acks=1, guard=guard)
        if is_open != transactional and (is_open or guard is None):
            assert result.error == ErrorCode.INVALID_TXN_STATE
            return
        assert (result.error, result.base_offset) == (ErrorCode.NONE, base)
        self.written.append(Written(base, base + count - 1, producer, epoch, sequence, transactional))
        self.follower_fetches(behind)

    @rule(producer=PRODUCERS, commit=st.booleans(), version=st.sampled_from([1, 2]), behind=BEHIND)
    def end_transaction(self, producer: int, commit: bool, version: int, behind: int) -> None:
        """Also without a transaction, as a retry of the marker."""
        epoch = self.last_of(producer)[0] + (version == 2)
        base = self.replica.log_end_offset
        result = self.replica.as_leader.append_marker(
            producer, epoch, EndMarker(commit, 0), NOW, transaction_version=version
        )
        assert (result.error, result.base_offset) == (ErrorCode.NONE, base)
        self.written.append(Written(base, base, producer, epoch, -1, True, commit))
        self.follower_fetches(behind)

    @rule(
        producers=st.permutations([5, 6]),
        commits=st.lists(st.booleans(), min_size=2, max_size=2),
        behind=BEHIND,
    )
    def overlapping_transactions(self, producers: list[int], commits: list[bool], behind: int) -> None:
        for producer in producers:
            self.produce(producer, 1, True, False, 0)
        for producer, commit in zip([5, 6], commits, strict=True):
            self.end_transaction(producer, commit, producer - 4, behind)

    @rule(behind=BEHIND)
    def follower_fetches(self, behind: int) -> None:
        end = self.replica.log_end_offset
        offset = max(self.high_watermark, end - behind)
        self.replica.as_leader.follower_fetched(FOLLOWER, 1, offset, NOW)
        self.high_watermark = max(self.high_watermark, self.replica.high_watermark)

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.replica.raise_log_start(int(self.high_watermark * part))

    @rule()
    def roll(self) -> None:
        self.replica.log.roll(NOW)

    @rule(clean=st.booleans(), flush=st.booleans())
    def restart(self, clean: bool, flush: bool) -> None:
        if flush:
            self.replica.flush()
        start, self.recovery_point = self.replica.log_start_offset, self.replica.log.recovery_point
        self.replica.close(clean=clean)
        self.open(clean=clean, log_start_offset=start)

    @rule(batches=st.integers(0, 5))
    def truncate_as_follower(self, batches: int) -> None:
        """Another leader did not get the last batches, which are not committed."""
        kept = [batch for batch in self.written if batch.last < self.high_watermark]
        kept = self.written[: max(len(kept), len(self.written) - batches)]
        end = kept[-1].last + 1 if kept else 0
        if end < self.high_watermark:
            return
        self.leader_epoch += 1
        self.replica.become_follower(FOLLOWER, self.leader_epoch, self.leader_epoch)
        self.replica.as_follower.truncate_to(end, NOW)
        self.written = kept
        self.lead()

    # -- expectations --

    @invariant()
    def agrees_with_the_model(self) -> None:
        replica, transactions = self.replica, self.transactions()
        replica.check()
        high = replica.high_watermark
        unstable = [t.first for t in transactions if t.marker is None or t.marker >= high]
        stable = max(min([high, *unstable]), replica.log_start_offset)
        assert replica.last_stable_offset == stable
        open_at = {t.producer: t.first for t in transactions if t.marker is None}
        found = {p.producer_id: p.transaction_first_offset for p in replica.active_producers()}
        assert {id_: first for id_, first in found.items() if first >= 0} == open_at
        aborted = [t for t in transactions if t.aborted]
        for start in range(replica.log_start_offset, stable, 3):
            for end in {start + 1, (start + stable) // 2, stable}:
                overlapping = [
                    (t.producer, t.first) for t in aborted if t.first < end and (t.marker or 0) >= start
                ]
                listed = replica.log.aborted(start, end) if end > start else []
                assert sorted((t.producer_id, t.first_offset) for t in listed) == sorted(
                    overlapping if end > start else []
                )


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
