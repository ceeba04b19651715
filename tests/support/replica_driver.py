"""Opens, appends to, stops and crashes a replica, and checks its invariants against a model (`log_model`).

The rules of the state machine are in tests/property/test_replica_model.py. The files are real, few of them
stay open, and a crash keeps, loses or tears unsynced data.
"""

import os
import random
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine
from log_model import Batch, LogModel, fetch_all
from opened_replica import opened_replica
from power_loss import KEPT, LOST, TORN, PowerLoss

from tierlog.base.files import FileSlice
from tierlog.base.open_files import OpenFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.leader_role import AppendResult
from tierlog.broker.storage.names import LOG, SNAPSHOT
from tierlog.broker.storage.segment import BatchAt
from tierlog.broker.storage_tools.index_checks import OffsetIndexCheck, TimeIndexCheck, TxnIndexCheck
from tierlog.broker.storage_tools.offline import BatchFound, find_partitions
from tierlog.broker.storage_tools.verifying import Totals, Verification
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import assign
from tierlog.records.codecs import Codec
from tierlog.records.record import Record
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
TOMBSTONES_MS = 100
PRODUCERS_MS = 1_000
IDEMPOTENT, TRANSACTIONAL = (5, 6), (7, 8)
UNLIMITED = 1 << 60


class ReplicaDriver(RuleBasedStateMachine):
    """The state of one run; a subclass has the rules."""

    def begin_life(self, config: TopicConfig, load_factor: float, open_files_most: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.directory = Path(self._home.name).resolve()
        self.config = config
        self.load_factor = load_factor
        self.open_files_most = open_files_most
        self.now = NOW
        self.epoch = 0
        self.model = LogModel(0, TOMBSTONES_MS)
        self.checkpoint: tuple[int, int, int | None] = (0, 0, None)  # recovery point, log start, cleaned to
        self.cut_unsynced = False
        self.idle_since_ms: dict[int, int | None] = {}
        """Producer -> first run of log maintenance after its last batch, or after a start."""
        self.highest_start = 0
        """After a crash the log may start below this offset again; the leader epochs of those records are
        unknown.
        """
        self.forgotten: dict[int, int] = {}  # producer -> log end when it was
        self.sequences: dict[int, tuple[int, int]] = {}  # producer -> epoch and next sequence
        self.answers: list[tuple[FileSlice, bytes]] = []
        """Read but not sent yet: their files must stay open and their bytes unchanged."""
        self.start_process()
        self.open(clean=True)

    def start_process(self) -> None:
        """Start a process that has opened nothing yet."""
        self.files = PowerLoss(self.directory, UNLIMITED, OpenFiles(self.open_files_most))

    def open(self, *, clean: bool) -> None:
        recovery_point, log_start, cleaned_to = self.checkpoint
        self.replica = opened_replica(
            TopicPartition("t", 0),
            uuid.UUID(int=1),
            1,
            self.directory,
            self.config,
            self.files,
            self.now,
            log_start_offset=log_start,
            recovery_point=recovery_point,
            clean=clean,
            cleaned_to=cleaned_to,
            rng=random.Random(1),
        )
        self.replica.become_leader(self.epoch, 0, [1])
        self.replica.log.producers.on_high_watermark_updated(self.replica.high_watermark)
        self.idle_since_ms = dict.fromkeys(self.idle_since_ms)

    def teardown(self) -> None:
        if hasattr(self, "replica"):
            self.files.left = UNLIMITED
            self.answers.clear()
            self.replica.close(clean=False)
            self._home.cleanup()

    # -- building blocks of rules --

    def send(
        self,
        new: list[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        producer: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        transactional: bool = False,
        ends: str | None = None,
    ) -> AppendResult:
        """Append to the model first, since a crash may leave the batch written or not."""
        base = self.model.end
        data = encode_batch(
            new,
            codec=codec,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            control=ends is not None,
        )
        in_transaction = transactional or ends is not None
        batch = Batch(
            _as_stored(new, base), self.epoch, self.now, producer, epoch, sequence, in_transaction, ends
        )
        self.model.append(batch)
        if producer >= 0:
            self.idle_since_ms[producer] = None
        result = self.replica.as_leader.append(
            memoryview(data), self.now, from_client=ends is None, must_verify=False
        )
        if result.error or result.base_offset != base:
            self.model.batches.pop()
        return result

    def copy(self, new: list[NewRecord], leader_epoch: int) -> None:
        """Append a batch as a follower does; it carries the epoch of the leader that wrote it."""
        base, data = self.model.end, bytearray(encode_batch(new))
        assign(data, 0, base, leader_epoch)
        self.model.append(Batch(_as_stored(new, base), leader_epoch, self.now))
        error = self.replica.as_follower.append_replicated(
            memoryview(data),
            leader_epoch=self.epoch,
            high_watermark=self.model.end,
            log_start_offset=self.model.start,
            now_ms=self.now,
        )
        assert error == ErrorCode.NONE

    def records_of(self, drawn: list[tuple[bytes, bool, int]]) -> list[NewRecord]:
        return [
            NewRecord(self.now + at, key, None if gone else b"%d." % (self.model.end + n), ())
            for n, (key, gone, at) in enumerate(drawn)
        ]

    def save_checkpoint(self) -> None:
        log = self.replica.log
        self.checkpoint = (log.recovery_point, log.log_start_offset, log.cleaned_to)

    def after_retention(self) -> int:
        """The log start offset after retention, from the model's records."""
        config, segments = self.config, self.replica.segments
        total = sum(segment.size_bytes for segment in segments)
        base = segments[0].base_offset
        for segment in segments:
            inside = range(segment.base_offset, segment.end_offset)
            stored = [r.timestamp for b in self.model.batches for r in b.records if r.offset in inside]
            if self.model.cleaned > segment.base_offset:
                # compaction may have removed the newest record, or all of them
                stored = [segment.max_timestamp] if segment.max_timestamp >= 0 else []
            deletes = "delete" in config.cleanup_policy
            newest = max(stored, default=segment.last_modified_ms)
            too_old = deletes and config.retention_ms >= 0 and self.now - newest > config.retention_ms
            too_much = (
                deletes
                and config.retention_bytes >= 0
                and segment.rolled
                and total - segment.size_bytes >= config.retention_bytes
            )
            below = segment.rolled and segment.end_offset <= self.model.start
            if not (too_old or too_much or below) or not (segment.size_bytes or segment.rolled):
                break
            total -= segment.size_bytes
            base = segment.end_offset
        return base

    def forget_sequences(self) -> None:
        """Producers continue after the last batch that remains."""
        for producer in (*IDEMPOTENT, *TRANSACTIONAL):
            batches = self.model.data_of(producer)
            if batches:
                last = batches[-1]
                self.sequences[producer] = last.producer_epoch, last.sequence + len(last.records)
            else:
                self.sequences.pop(producer, None)

    def unlink(self) -> None:
        for path in self.replica.log.take_due(self.now):
            self.files.unlink(path)

    def come_back(self, what: str, seed: int, *, floor: int) -> None:
        """Check that all durable data survived and that the log is a prefix of what was written."""
        if what == LOST and self.cut_unsynced:
            what = TORN
        self.answers.clear()
        self.replica.close(clean=False)
        if what != KEPT:
            self.files.crash(what, random.Random(seed))
            self.start_process()
        before, start = self.model.end, self.model.start
        self.epoch += 1
        self.open(clean=False)
        assert not self.files.reserved(), "space is still reserved after a start that had to check the log"
        end = self.replica.log_end_offset
        assert floor <= end <= before, "synced data is lost, or the log holds data that was never written"
        self.model.truncate(end)
        assert self.model.end == end, "a partial batch remains"
        again = self.replica.log_start_offset
        assert min(self.checkpoint[1], end) <= again <= min(start, end), (self.checkpoint, again, start, end)
        self.model.start = self.replica.log_start_offset
        self.forget_sequences()

    # -- invariants --

    def check(self) -> None:
        replica, model = self.replica, self.model
        replica.check()
        self.check_files()
        self.check_active_indexes()
        self.highest_start = max(self.highest_start, model.start)
        assert (replica.log_start_offset, replica.log_end_offset) == (model.start, model.end)
        assert replica.high_watermark == model.end
        unstable = model.first_unstable()
        if unstable is None or unstable >= self.highest_start:  # retention removes open transactions, too
            assert replica.last_stable_offset == (model.end if unstable is None else unstable)
        stored = self.stored()
        model.check_stored(stored, self.now)
        for producer in (*IDEMPOTENT, *TRANSACTIONAL):
            self.check_producer(producer)
        for offset, epoch in model.epochs(stored).items():
            assert offset < self.highest_start or replica.log.epochs.epoch_of(offset) == epoch

    def check_files(self) -> None:
        """Few files are open, only the active segment has reserved space, and bytes that were read do not
        change.
        """
        self.files.open_files.trim()  # reading over many segments at once holds them all for a moment
        held = {id(part.file) for part, _ in self.answers}
        opened = [target for target in _descriptors() if target.is_relative_to(self.directory)]
        assert len(opened) <= self.open_files_most + len(held), opened
        active = self.replica.log.active.path().name
        assert self.files.reserved() <= {active}
        for part, expected in self.answers:
            assert part.read() == expected, "a response that is being sent has changed"

    def check_active_indexes(self) -> None:
        """The active segment's indexes are correct; those of rolled segments are checked after a stop."""
        active = self.replica.log.active
        checks = (
            OffsetIndexCheck(active.offset_index, active.base_offset),
            TimeIndexCheck(active.time_index, active.base_offset, rolled=False),
            TxnIndexCheck(active.txn_index),
        )
        for position, header in active.scan(0):
            found = BatchFound(position, header, active.read_batch(BatchAt(position, header)), "")
            wrong = [each for check in checks for each in check.batch(found, None)]
            assert not wrong, wrong
        wrong = [each for check in checks for each in check.end()]
        assert not wrong, wrong

    def check_stopped(self) -> None:
        """Verify the files of a clean stop with the operators' tool, and that no space is still reserved."""
        assert not self.files.reserved(), "space is still reserved after a clean stop"
        for partition in find_partitions(self.directory) if any(self.directory.glob(f"*{LOG}")) else ():
            compacted = "compact" in self.config.cleanup_policy
            problems = Verification(partition, Totals(), records=True, compacted=compacted).problems()
            # a snapshot torn by a crash remains until a start needs it
            damage = [each for each in problems if each.damage and each.path.suffix != SNAPSHOT]
            assert not damage, damage

    def check_truncated_epochs(self) -> None:
        """After a truncation and before the next leader epoch: the epoch in fetches, and the end offset of
        each epoch.
        """
        epochs, end = self.replica.log.epochs, self.model.end
        assert all(entry.start_offset < end for entry in epochs.entries), (epochs.entries, end)
        last = self.model.batches[-1] if self.model.batches else None
        if last is not None and last.base >= self.highest_start:
            assert epochs.latest is not None and epochs.latest.epoch == last.leader_epoch
        for epoch in range(self.epoch + 1):
            assert self.replica.end_offset_for_epoch(epoch).end_offset <= end

    def must_be_known(self, producer: int) -> bool:
        """Whether it has been active recently and its last batch remains."""
        data = self.model.data_of(producer)
        if not data or data[-1].base < self.model.start:
            return False
        return self.now - data[-1].appended_ms < PRODUCERS_MS or self.has_open(producer)

    def known_batches(self, producer: int) -> list[Batch]:
        """Its last batches whose retry must be recognised, at most five."""
        if not self.must_be_known(producer):
            return []
        since = max(self.model.cleaned, self.model.start, self.forgotten.get(producer, 0))
        return [batch for batch in self.model.kept_of(producer) if batch.base >= since]

    def has_open(self, producer: int) -> bool:
        fates = self.model.fates()
        return any(fates[batch.base] == "open" for batch in self.model.data_of(producer))

    def check_producer(self, producer: int) -> None:
        found = self.replica.log.producers.get(producer)
        data = self.model.data_of(producer)
        if found is None or not found.batches:
            assert not self.must_be_known(producer), f"producer {producer} is forgotten"
            return
        by_base = {batch.base: batch for batch in data}
        if self.must_be_known(producer):  # compaction removes the last batch of an expired producer
            assert found.batches[-1].first_offset == data[-1].base, "its last batch is wrong"
        missing = {batch.base for batch in self.known_batches(producer)}
        assert missing <= {kept.first_offset for kept in found.batches}, "a retry would not be recognised"
        for kept in found.batches:
            batch = by_base[kept.first_offset]
            last_sequence = batch.sequence + len(batch.records) - 1
            assert (kept.last_offset, kept.last_sequence) == (batch.last, last_sequence)
            assert found.epoch == batch.producer_epoch
        first_open = self.replica.log.producers.get(producer).transaction_first_offset
        if data[0].base >= self.highest_start:
            assert (first_open >= 0) == self.has_open(producer)

    def stored(self) -> list[Record]:
        return fetch_all(self.replica, 1 << 20, committed_only=False)


def _as_stored(new: list[NewRecord], base: int) -> tuple[Record, ...]:
    return tuple(
        Record(base + n, record.timestamp, record.key, record.value, tuple(record.headers))
        for n, record in enumerate(new)
    )


def _descriptors() -> Iterator[Path]:
    """The target of each descriptor of this process."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            yield Path(os.readlink(f"/proc/self/fd/{name}"))
