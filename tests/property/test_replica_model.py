"""Compares a replica with a model without files, under any sequence of operations on a partition.

Produce with retries, gaps and fenced epochs; transactions and their markers; rolls, retention,
DeleteRecords, truncation, compaction; reads by offset, by time, by leader epoch, with read_committed; clean
stops; and crashes, between two operations or inside one, that keep, lose or tear unsynced bytes. Few files
may stay open, down to a single one, and disk space is reserved ahead of appends.

A truncation is durable with the next flush. Crashes before it that lose everything are left out, because
followers truncate by leader epoch again when they return.
"""

import struct
from contextlib import suppress

import pytest
from compaction import clean
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from log_model import ABORTED, COMMITTED, fetch_all
from power_loss import KEPT, LOST, TORN, ZEROED, Killed
from replica_driver import IDEMPOTENT, PRODUCERS_MS, TOMBSTONES_MS, TRANSACTIONAL, UNLIMITED, ReplicaDriver

from tierlog.base.files import FileSlice
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import iter_batches
from tierlog.records.codecs import Codec
from tierlog.records.record import iter_records
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord

KEYS = [b"a", b"b", b"a longer key, of which compaction keeps a digest"]
MOST_BEHIND_A_CUT = 12
ANSWERS_MOST = 3
MAX_LONG = 2**63 - 1
OTHER_BROKER = 2

entries = st.lists(
    st.tuples(st.sampled_from(KEYS), st.booleans(), st.integers(-50, 50)), min_size=1, max_size=4
)


class Partition(ReplicaDriver):
    @initialize(
        policy=st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
        segment_bytes=st.sampled_from([200, 500, 2000]),
        interval=st.sampled_from([0, 200, 4096]),
        retention_ms=st.sampled_from([-1, 150]),
        retention_bytes=st.sampled_from([-1, 900]),
        flush_messages=st.sampled_from([MAX_LONG, MAX_LONG, 1]),
        load_factor=st.sampled_from([0.1, 0.9]),
        preallocate=st.booleans(),
        open_files_most=st.sampled_from([1, 2, 4, 512]),
    )
    def begin(
        self,
        policy: tuple[str, ...],
        segment_bytes: int,
        interval: int,
        retention_ms: int,
        retention_bytes: int,
        flush_messages: int,
        load_factor: float,
        preallocate: bool,
        open_files_most: int,
    ) -> None:
        config = TopicConfig(
            cleanup_policy=policy,
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            flush_messages=flush_messages,
            delete_retention_ms=TOMBSTONES_MS,
            file_delete_delay_ms=0,
            preallocate=preallocate,
        )
        self.begin_life(config, load_factor, open_files_most)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "replica"):
            self.check()

    # -- produce --

    @rule(drawn=entries, codec=st.sampled_from([Codec.NONE, Codec.ZSTD]), repeat=st.integers(1, 3))
    def produce(self, drawn: list[tuple[bytes, bool, int]], codec: Codec, repeat: int) -> None:
        for _ in range(repeat):
            base = self.model.end
            result = self.send(self.records_of(drawn), codec=codec)
            assert (result.error, result.base_offset) == (ErrorCode.NONE, base)

    @rule(
        producer=st.sampled_from(IDEMPOTENT),
        drawn=entries,
        bump=st.integers(0, 4),
        repeat=st.integers(1, 3),
    )
    def produce_next(
        self, producer: int, drawn: list[tuple[bytes, bool, int]], bump: int, repeat: int
    ) -> None:
        """The next batch of a producer is appended, whether or not its state has expired."""
        for _ in range(repeat):
            epoch, sequence = self.sequences.get(producer, (0, 0))
            if bump == 1:
                epoch, sequence = epoch + 1, 0
            base = self.model.end
            self.sequences[producer] = epoch, sequence + len(drawn)
            result = self.send(self.records_of(drawn), producer=producer, epoch=epoch, sequence=sequence)
            assert (result.error, result.base_offset) == (ErrorCode.NONE, base)

    @rule(producer=st.sampled_from(IDEMPOTENT), data=st.data())
    def retry(self, producer: int, data: st.DataObject) -> None:
        """Retry one of the last five batches: it is recognised, and gets its first offset."""
        known = self.known_batches(producer)
        if not known:
            return
        batch = data.draw(st.sampled_from(known))
        end = self.model.end
        new = [NewRecord(r.timestamp, r.key, r.value, ()) for r in batch.records]
        result = self.send(new, producer=producer, epoch=batch.producer_epoch, sequence=batch.sequence)
        assert (result.error, result.base_offset, result.last_offset) == (
            ErrorCode.NONE,
            batch.base,
            batch.last,
        )
        assert self.replica.log_end_offset == end

    @rule(producer=st.sampled_from(IDEMPOTENT), stale=st.booleans(), gap=st.integers(1, 3))
    def produce_wrong(self, producer: int, stale: bool, gap: int) -> None:
        """A gap, or an epoch that was fenced: refused, and nothing is written."""
        if not self.model.data_of(producer) or not self.must_be_known(producer):
            return
        last = self.model.data_of(producer)[-1]
        epoch = last.producer_epoch - stale
        if epoch < 0:
            return
        sequence = last.sequence + len(last.records) + gap
        result = self.send(
            [NewRecord(self.now, b"a", b"", ())], producer=producer, epoch=epoch, sequence=sequence
        )
        expected = ErrorCode.INVALID_PRODUCER_EPOCH if stale else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert result.error == expected

    @rule(producer=st.sampled_from(TRANSACTIONAL), drawn=entries)
    def produce_in_transaction(self, producer: int, drawn: list[tuple[bytes, bool, int]]) -> None:
        _, sequence = self.sequences.get(producer, (0, 0))
        self.sequences[producer] = 0, sequence + len(drawn)
        new = self.records_of(drawn)
        assert not self.send(new, producer=producer, epoch=0, sequence=sequence, transactional=True).error

    @rule(producer=st.sampled_from(TRANSACTIONAL), ends=st.sampled_from([COMMITTED, ABORTED]))
    def end_transaction(self, producer: int, ends: str) -> None:
        key, value = struct.pack(">hh", 0, int(ends == COMMITTED)), struct.pack(">hi", 0, 0)
        new = [NewRecord(self.now, key, value, ())]
        assert not self.send(new, producer=producer, epoch=0, transactional=True, ends=ends).error

    @rule(producer=st.sampled_from(TRANSACTIONAL), drawn=entries, ends=st.sampled_from([COMMITTED, ABORTED]))
    def whole_transaction(self, producer: int, drawn: list[tuple[bytes, bool, int]], ends: str) -> None:
        self.produce_in_transaction(producer, drawn)
        self.end_transaction(producer, ends)

    # -- log maintenance --

    @rule(passed=st.sampled_from([1, TOMBSTONES_MS, 2 * PRODUCERS_MS]))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1
        self.replica.become_leader(self.epoch, 0, [1])

    @rule()
    def roll(self) -> None:
        self.replica.log.roll(self.now)

    @rule(checkpoint=st.booleans())
    def flush(self, checkpoint: bool) -> None:
        assert self.replica.flush() == self.model.end
        self.cut_unsynced = False
        if checkpoint:
            self.save_checkpoint()

    @rule()
    def grow_large(self) -> None:
        """The next append reserves disk space ahead."""
        self.replica.log.active.reserved_to = 0

    @rule()
    def free_space(self) -> None:
        """As log maintenance does when the disk has little left."""
        self.replica.log.active.release_reserved()
        assert not self.files.reserved()

    @rule()
    def retain(self) -> None:
        """Retention by time and size deletes complete segments, oldest first."""
        known = {segment.base_offset: segment for segment in self.replica.segments}
        base = self.after_retention()
        before, self.model.start = self.model.start, max(self.model.start, base)
        self.replica.apply_retention(self.now)
        self.replica.log.producers.expire(self.now, PRODUCERS_MS)
        assert self.replica.log_start_offset == max(before, base), (known, base)
        self.unlink()
        for producer in (*IDEMPOTENT, *TRANSACTIONAL):
            if self.replica.log.producers.get(producer) is None:
                self.forgotten[producer] = self.model.end
        for producer, since_ms in self.idle_since_ms.items():
            if since_ms is None:
                self.idle_since_ms[producer] = self.now
            elif self.now - since_ms >= PRODUCERS_MS and not self.has_open(producer):
                assert self.replica.log.producers.get(producer) is None

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.end))
        self.model.start = offset
        self.replica.raise_log_start(offset)
        assert self.replica.log_start_offset == offset

    @rule(data=st.data(), then=st.sampled_from(["continue", "continue", "follow", "stop", KEPT, TORN]))
    def truncate(self, data: st.DataObject, then: str) -> None:
        """Truncate as a follower does after its log diverged from the leader's."""
        lowest = max(self.model.start, self.model.truncation_floor)
        offset = data.draw(st.integers(lowest, self.model.end))
        old_end = self.model.end
        self.answers.clear()  # their bytes are truncated and overwritten
        if then == "continue":
            self.read_from_everywhere(1)
        self.cut_unsynced = self.cut_unsynced or offset < self.model.end
        self.model.truncate(self.model.boundary(offset))
        self.epoch += 1
        self.replica.become_follower(OTHER_BROKER, self.epoch, 0)
        self.replica.as_follower.truncate_to(offset, self.now)
        self.check()
        self.check_truncated_epochs()
        point, start, cleaned_to = self.checkpoint  # lowered before the truncated records are replaced
        self.checkpoint = (min(point, self.model.end), min(start, self.model.start), cleaned_to)
        self.idle_since_ms = dict.fromkeys(self.idle_since_ms)
        self.forget_sequences()
        if then == "follow":
            self.follow(data.draw(entries), data.draw(st.integers(1, 3)))
        if then in ("continue", "follow"):
            self.new_leader_epoch()
            self.write_past(old_end, data.draw(entries))  # cached state of the old end must not be used
            self.read_from_everywhere(1)
            self.look_up_epochs()
            for target in {record.timestamp for record in self.model.records()}:
                self.find_time(target)
        elif then == "stop":
            self.epoch += 1
            self.stop_clean(power_goes=False)
        else:
            self.come_back(then, 0, floor=self.replica.log.recovery_point)
        self.forget_sequences()

    def follow(self, drawn: list[tuple[bytes, bool, int]], count: int) -> None:
        """Copy batches that the other leader appended before the epoch that was truncated here."""
        epoch = self.model.batches[-1].leader_epoch if self.model.batches else self.epoch
        for _ in range(count):
            self.copy(self.records_of(drawn), epoch)
        self.check()

    def write_past(self, end: int, drawn: list[tuple[bytes, bool, int]]) -> None:
        """Batches of other sizes than what was there."""
        for _ in range(MOST_BEHIND_A_CUT):
            self.produce(drawn, Codec.NONE, 1)
            if self.model.end > end:
                return

    @precondition(lambda self: "compact" in self.config.cleanup_policy)
    @rule(roll=st.booleans())
    def clean(self, roll: bool) -> None:
        log, before = self.replica.log, -1
        if roll:
            log.roll(self.now)
        while (log.cleaned_to or 0) != before:
            before = log.cleaned_to or 0
            stable = self.replica.last_stable_offset
            sources = log.rolled_below(stable)
            if not sources or sources[-1].end_offset <= max(before, log.log_start_offset):
                return
            self.model.cleaning(sources[-1].end_offset, self.now)
            clean(log, self.now, files=self.files, load_factor=self.load_factor, stable=stable)
            self.unlink()
            self.checkpoint = (*self.checkpoint[:2], log.cleaned_to)
        self.cut_unsynced = False
        fates = self.model.fates()
        kept = [
            record.key
            for record in self.stored()
            if log.log_start_offset <= record.offset < (log.cleaned_to or 0)
            and fates[record.offset] == COMMITTED
        ]
        assert len(set(kept)) == len(kept), "a key is there twice after a whole cleaning"

    # -- stops and crashes --

    @rule(power_goes=st.booleans())
    def stop_clean(self, power_goes: bool) -> None:
        self.answers.clear()
        self.replica.close(clean=True)
        self.save_checkpoint()
        self.cut_unsynced = False
        if power_goes:
            self.files.crash(LOST)
            self.start_process()
        self.check_stopped()
        self.open(clean=True)

    @rule(what=st.sampled_from([KEPT, LOST, TORN, ZEROED]), seed=st.integers(0, 999))
    def crash(self, what: str, seed: int) -> None:
        self.come_back(what, seed, floor=self.replica.log.recovery_point)

    @rule(
        data=st.data(),
        left=st.integers(0, 40),
        what=st.sampled_from([KEPT, LOST, TORN, ZEROED]),
        seed=st.integers(0, 999),
        operation=st.sampled_from(["produce", "roll", "flush", "retain", "clean", "stop"]),
    )
    def crash_inside(self, data: st.DataObject, left: int, what: str, seed: int, operation: str) -> None:
        floor = self.replica.log.recovery_point
        self.files.left = left
        with suppress(Killed):
            match operation:
                case "produce":
                    for _ in range(4):
                        self.send(self.records_of([(b"a", False, 0), (b"b", False, 0)]))
                        floor = self.replica.log.recovery_point
                case "roll":
                    self.replica.log.roll(self.now)
                case "flush":
                    floor = self.replica.flush()
                case "retain":
                    self.model.start = max(self.model.start, self.after_retention())
                    self.highest_start = max(self.highest_start, self.model.start)
                    self.replica.apply_retention(self.now)
                case "clean" if "compact" in self.config.cleanup_policy:
                    self.clean(roll=True)
                case "stop":
                    self.replica.log.close(clean=True)
                    floor = self.model.end
        self.files.left = UNLIMITED
        self.come_back(what, seed, floor=floor)

    # -- reads --

    @rule(max_bytes=st.sampled_from([1, 150, 700]), committed_only=st.booleans())
    def consume(self, max_bytes: int, committed_only: bool) -> None:
        records = fetch_all(self.replica, max_bytes, committed_only=committed_only)
        stored = self.stored()
        unstable = self.model.first_unstable()
        if committed_only and (unstable is None or unstable >= self.highest_start):
            self.model.check_visible(records, stored)
        elif not committed_only:
            assert records == stored

    @rule(data=st.data())
    def begin_to_send(self, data: st.DataObject) -> None:
        """A slow consumer holds a response."""
        result = self.replica.read(data.draw(st.integers(self.model.start, self.model.end)), 400)
        parts = [] if result.slice is None else result.slice.parts
        self.answers += [(part, part.read()) for part in parts if isinstance(part, FileSlice)]
        del self.answers[:-ANSWERS_MOST]

    @rule()
    def end_sending(self) -> None:
        self.answers.clear()

    @rule(max_bytes=st.sampled_from([1, 400]))
    def read_from_everywhere(self, max_bytes: int) -> None:
        """A read from any offset, even one that compaction removed, finds the next batch."""
        stored = {record.offset: record for record in self.stored()}
        markers = {batch.base for batch in self.model.batches if batch.ends is not None}
        for offset in range(self.model.start, self.model.end):
            found = self.replica.read(offset, max_bytes).slice
            assert found is not None and found.end_offset > offset
            data = b"".join(part.read() for part in found.parts if isinstance(part, FileSlice))
            records = [r for at, _ in iter_batches(data) for r in iter_records(data, at, max_bytes=1 << 20)]
            inside = [r for r in records if r.offset >= offset and r.offset not in markers]
            expected = [at for at in stored if offset <= at < found.end_offset]
            assert [record.offset for record in inside] == expected
        assert self.replica.read(self.model.end, 1).error == ErrorCode.NONE
        beyond = [self.model.end + 1, *([self.model.start - 1] if self.model.start else [])]
        for offset in beyond:
            assert self.replica.read(offset, 1).error == ErrorCode.OFFSET_OUT_OF_RANGE

    @rule(data=st.data(), beside=st.sampled_from([-1, 0, 0, 1]))
    def look_up_time(self, data: st.DataObject, beside: int) -> None:
        written = sorted({record.timestamp for record in self.model.records()})
        self.find_time(data.draw(st.sampled_from(written or [self.now])) + beside)

    def find_time(self, target: int) -> None:
        log = self.replica.log
        everything = [
            (record.offset, record.timestamp)
            for batch, data in log.batches(log.local_log_start_offset)
            for record in iter_records(data, max_bytes=1 << 20)
            if record.offset >= self.model.start
        ]
        found = run_all_steps(self.replica.offset_for_timestamp(target))
        assert (found and found.offset) == next((at for at, ms in everything if ms >= target), None)
        if found:
            (epoch,) = {b.leader_epoch for b in self.model.batches if b.base <= found.offset <= b.last}
            assert found.leader_epoch == epoch

    @rule()
    def look_up_epochs(self) -> None:
        """An epoch ends after its last record, and not after the first of a later one."""
        epochs = self.model.epochs(r for r in self.stored() if r.offset >= self.highest_start)
        for epoch in set(epochs.values()):
            found = self.replica.end_offset_for_epoch(epoch)
            last = max(at for at, other in epochs.items() if other == epoch)
            beyond = min((at for at, other in epochs.items() if other > epoch), default=self.model.end)
            assert found.epoch == epoch and last < found.end_offset <= beyond


def lives(count: int) -> settings:
    return settings(
        max_examples=count, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestPartition = Partition.TestCase
TestPartition.settings = lives(15)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_many_lives_of_a_partition(count: int) -> None:
    """Enough operations for a truncation, a crash and a cleaning to coincide."""
    run_state_machine_as_test(Partition, settings=lives(count))
