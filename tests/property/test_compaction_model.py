"""Compares compaction of a real log with a model: all written records and the last value of each key."""

import random
import struct
import tempfile
from pathlib import Path

from compaction import NOW, append, clean, open_log, records_of
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tierlog.config.topic import TopicConfig
from tierlog.records.codecs import Codec
from tierlog.records.record import Record
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord

KEYS = [b"a", b"b", b"c", b"a longer key, of which a digest is kept", b"the same, but another of them"]
RETENTION = 100
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


class Compaction(RuleBasedStateMachine):
    """`written`: every record, by offset, with the transaction that it belongs to (None: none)."""

    @initialize(
        segment_bytes=st.sampled_from([300, 900, 4000]),
        load_factor=st.sampled_from([0.04, 0.1, 0.9]),  # a map of 1, 3 and 28 keys
        interval=st.sampled_from([0, 4096]),
    )
    def begin(self, segment_bytes: int, load_factor: float, interval: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.config = TopicConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy=("compact",),
            delete_retention_ms=RETENTION,
            file_delete_delay_ms=0,
        )
        self.load_factor = load_factor
        self.written: dict[int, tuple[Record, int | None]] = {}
        self.fates: dict[int, str] = {}
        self.open_transactions: dict[int, int] = {}  # producer -> transaction
        self.sequences: dict[int, int] = {}
        self.epochs = dict.fromkeys([5, 6], 0)
        self.now = NOW
        self.log = open_log(Path(self._home.name), self.config)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            self._home.cleanup()

    @rule(
        entries=st.lists(
            st.tuples(st.sampled_from(KEYS), st.booleans(), st.integers(-5, 50)), min_size=1, max_size=4
        ),
        codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
        producer=st.sampled_from([-1, 5, 6]),
        transactional=st.booleans(),
        repeat=st.integers(1, 3),
    )
    def write(
        self,
        entries: list[tuple[bytes, bool, int]],
        codec: Codec,
        producer: int,
        transactional: bool,
        repeat: int,
    ) -> None:
        transactional = producer >= 0 and (transactional or producer in self.open_transactions)
        for _ in range(repeat):
            base = self.log.log_end_offset
            new = [
                NewRecord(NOW + at, key, None if gone else b"%d" % (base + n), (("h", b"1"),))
                for n, (key, gone, at) in enumerate(entries)
            ]
            options: dict[str, object] = {"codec": codec}
            if producer >= 0:
                sequence = self.sequences.get(producer, 0)
                self.sequences[producer] = sequence + len(new)
                epoch = self.epochs[producer]
                options |= {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
                options |= {"transactional": transactional}
            append(self.log, new, **options)
            transaction = None
            if transactional:
                transaction = self.open_transactions.setdefault(producer, len(self.fates))
                self.fates[transaction] = OPEN
            for n, record in enumerate(new):
                kept = Record(base + n, record.timestamp, record.key, record.value, tuple(record.headers))
                self.written[base + n] = (kept, transaction)

    @rule(producer=st.sampled_from([5, 6]), commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer: int, commit: bool, bump: bool) -> None:
        """`bump`: as transaction version 2 does, with a new epoch (KIP-890)."""
        if bump:
            self.epochs[producer] += 1
            self.sequences[producer] = 0
        marker = [NewRecord(NOW, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0))]
        options = {"producer_id": producer, "producer_epoch": self.epochs[producer], "base_sequence": -1}
        append(self.log, marker, transactional=True, control=True, **options)
        self.log.producers.on_high_watermark_updated(self.log.log_end_offset)
        transaction = self.open_transactions.pop(producer, None)
        if transaction is not None:
            self.fates[transaction] = COMMITTED if commit else ABORTED

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule(passed=st.sampled_from([1, RETENTION]))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule()
    def clean(self) -> None:
        """Clean in as many passes as the small offset map needs. The cleaned part has only last values."""
        stable = self.log.producers.first_unstable_offset()
        stable = self.log.log_end_offset if stable is None else stable
        before = -1
        while (self.log.cleaned_to or 0) != before:
            before = self.log.cleaned_to or 0
            if not self.log.rolled_below(stable):
                return
            clean(self.log, self.now, load_factor=self.load_factor, stable=stable)
            for path in self.log.take_due(self.now):
                path.unlink()
        end = max(segment.end_offset for segment in self.log.rolled_below(stable))
        assert self.log.cleaned_to == end
        kept = [r.key for r in self.committed(self.stored()) if r.offset < end]
        assert len(set(kept)) == len(kept)

    @rule(at=st.integers(-6, 51))
    def look_up_time(self, at: int) -> None:
        stored = records_of(self.log)
        found = run_all_steps(self.log.offset_for_timestamp(NOW + at))
        assert (found and found.offset) == next((r.offset for r in stored if r.timestamp >= NOW + at), None)
        newest = run_all_steps(self.log.max_timestamp())
        assert (newest and newest.timestamp) == max((r.timestamp for r in stored), default=None)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        recovery_point, cleaned_to = self.log.recovery_point, self.log.cleaned_to
        last = {p.producer_id: (p.epoch, p.batches and p.batches[-1][:2]) for p in self.log.producers}
        self.log.close(clean=clean)
        self.log = open_log(
            Path(self._home.name),
            self.config,
            clean=clean,
            recovery_point=recovery_point if random.Random(recovery_point).random() < 0.5 else 0,
            cleaned_to=cleaned_to,
        )
        self.log.producers.on_high_watermark_updated(self.log.log_end_offset)
        again = {p.producer_id: (p.epoch, p.batches and p.batches[-1][:2]) for p in self.log.producers}
        assert again == last

    def stored(self) -> list[Record]:
        """All but markers."""
        return [record for record in records_of(self.log) if record.offset in self.written]

    def committed(self, records: list[Record]) -> list[Record]:
        """As a client with read_committed filters, by the aborted list of the fetch."""
        aborted = self.log.aborted(0, self.log.log_end_offset)
        transactions = {r.offset: self.written[r.offset][1] for r in records}
        hidden = {
            offset
            for offset, transaction in transactions.items()
            for entry in aborted
            if transaction is not None
            and self.fates[transaction] == ABORTED
            and entry.first_offset <= offset <= entry.last_offset
        }
        return [r for r in records if r.offset not in hidden]

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.check()
        stored = self.stored()
        offsets = [record.offset for record in stored]
        assert offsets == sorted(set(offsets))
        for record in stored:
            assert record == self.written[record.offset][0]
        fate = {
            at: COMMITTED if transaction is None else self.fates[transaction]
            for at, (_, transaction) in self.written.items()
        }
        model: dict[bytes, Record] = {}
        for at in sorted(self.written):
            record = self.written[at][0]
            if fate[at] == COMMITTED:
                model[record.key or b""] = record
        visible: dict[bytes, Record] = {}
        for record in self.committed(stored):
            assert fate[record.offset] != ABORTED, "an aborted record came back"
            if fate[record.offset] == COMMITTED:
                visible[record.key or b""] = record
        for key, record in model.items():
            if record.value is None:
                assert visible.get(key, record) == record  # no older value may be visible
            else:
                assert visible[key] == record
        assert {at for at, kind in fate.items() if kind == OPEN} <= set(offsets)
        for offset in range(self.log.log_start_offset, self.log.log_end_offset, 3):
            found = self.log.read(offset, 1, self.log.log_end_offset, min_one=True)
            assert found.end_offset > offset


TestCompaction = Compaction.TestCase
TestCompaction.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
