"""Compares a partition log with a list of records under appends, rolls, truncations, stops and crashes.

The model has every record and the durable end of the log. After a crash the log must be a prefix of the
model with everything below the recovery point, whatever happened to the files above it.
"""

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.slices import LogSlice
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.codecs import Codec
from tierlog.records.record import Record, iter_records
from tierlog.records.window import run_all_steps
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
PRODUCER = 5


class Written(NamedTuple):
    """A record of the model and the batch that holds it."""

    batch_start: int
    batch_end: int
    timestamp: int
    value: bytes
    epoch: int


def records_of(found: LogSlice) -> list[Record]:
    data = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in found.parts)
    assert len(data) == found.size
    return [record for at, _ in iter_batches(data) for record in iter_records(data, at, max_bytes=1 << 20)]


class LogMachine(RuleBasedStateMachine):
    @initialize(
        interval=st.sampled_from([0, 100, 4096]),
        segment_bytes=st.sampled_from([200, 700, 5000]),
        start=st.sampled_from([0, 1000]),
    )
    def begin(self, interval: int, segment_bytes: int, start: int) -> None:
        self._home = tempfile.TemporaryDirectory()
        self.directory = Path(self._home.name) / "t-0"
        self.config = TopicConfig(index_interval_bytes=interval, segment_bytes=segment_bytes)
        self.start = start
        self.epoch = 0
        self.model: dict[int, Written] = {}
        self.open(clean=False, recovery_point=0)

    def open(self, *, clean: bool, recovery_point: int, same_boot: bool = False) -> None:
        self.log = PartitionLog.open(
            self.directory,
            self.config,
            OsFiles(),
            NOW,
            log_start_offset=self.start,
            recovery_point=recovery_point,
            clean=clean,
            same_boot=same_boot,
            rng=random.Random(1),
        )

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            self._home.cleanup()

    @property
    def end(self) -> int:
        return max(self.model, default=self.start - 1) + 1

    @rule(
        timestamps=st.lists(st.integers(0, 50), min_size=1, max_size=4),
        size=st.integers(0, 60),
        codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
    )
    def append(self, timestamps: list[int], size: int, codec: Codec) -> None:
        base, end = self.end, self.end + len(timestamps)
        values = [b"%d." % offset + bytes(size) for offset in range(base, end)]
        new = [NewRecord(NOW + at, None, value) for at, value in zip(timestamps, values, strict=True)]
        sequence = base % 2**31
        batch = encode_batch(new, codec=codec, producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
        assign(batch, 0, base, self.epoch)
        self.log.append(memoryview(batch), read_header(batch), base, self.epoch, NOW)
        for offset, record in zip(range(base, end), new, strict=True):
            self.model[offset] = Written(base, end, record.timestamp, record.value or b"", self.epoch)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.end

    @rule()
    def restart_clean(self) -> None:
        self.log.close(clean=True)
        self.open(clean=True, recovery_point=0)

    @rule()
    def kill(self) -> None:
        recovery_point = self.log.recovery_point
        self.log.close(clean=False)
        self.open(clean=False, recovery_point=recovery_point, same_boot=True)
        assert self.log.log_end_offset == self.end

    @rule(data=st.data(), harm=st.sampled_from(["cut", "flip", "zeros", "garbage"]))
    def lose_power(self, data: st.DataObject, harm: str) -> None:
        """Bytes written since the last flush may be lost, torn or garbled."""
        recovery_point = self.log.recovery_point
        suspects = [segment for segment in self.log.segments if segment.end_offset > recovery_point]
        self.log.close(clean=False)
        if suspects:
            victim = data.draw(st.sampled_from(suspects))
            path = victim.path_log
            content = bytearray(path.read_bytes())
            durable = sum(
                header.size for _, header in iter_batches(content) if header.next_offset <= recovery_point
            )
            at = data.draw(st.integers(durable, len(content)))
            match harm:
                case "cut":
                    del content[at:]
                case "flip" if at < len(content) and not self.in_epoch(content, at):
                    content[at] ^= 1 << data.draw(st.integers(0, 7))
                case "zeros":
                    content[at:] = bytes(len(content) - at)
                case _:
                    content += data.draw(st.binary(max_size=100))
            path.write_bytes(content)
        self.open(clean=False, recovery_point=recovery_point)
        assert recovery_point <= self.log.log_end_offset <= self.end
        self.model = {offset: w for offset, w in self.model.items() if offset < self.log.log_end_offset}

    @staticmethod
    def in_epoch(content: bytearray, at: int) -> bool:
        """Nothing covers a batch's leader epoch: neither its CRC nor, as for its offset, its neighbours."""
        return any(start + 12 <= at < start + 16 for start, _ in iter_batches(content))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(min(self.model), self.end))
        self.log.truncate_to(offset, NOW)
        self.model = {at: written for at, written in self.model.items() if written.batch_end <= offset}
        if not self.model and self.log.log_end_offset == offset:
            self.start = offset

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_oldest(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(min(self.model), self.end))
        self.log.delete_local_before(offset, NOW)
        assert self.log.log_start_offset <= max(offset, self.start)
        self.start = self.log.log_start_offset
        self.model = {at: written for at, written in self.model.items() if at >= self.start}
        for path in self.log.take_due(NOW + self.config.file_delete_delay_ms):
            path.unlink()

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "log"):
            self.log.check()
            assert self.log.log_end_offset == self.end
            assert self.log.log_start_offset == self.start

    @precondition(lambda self: self.model)
    @rule(data=st.data(), max_bytes=st.integers(0, 3000), min_one=st.booleans())
    def read(self, data: st.DataObject, max_bytes: int, min_one: bool) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        ends = sorted({written.batch_end for written in self.model.values()})
        end = data.draw(st.sampled_from(ends))
        found = self.log.read(offset, max_bytes, end, min_one=min_one)
        records = records_of(found)
        if not records:
            first = self.model.get(offset)
            assert offset >= end or first is None or not min_one
            return
        begin = self.model[offset].batch_start
        assert [record.offset for record in records] == list(range(begin, found.end_offset))
        assert found.base_offset == begin and found.end_offset <= end
        for record in records:
            written = self.model[record.offset]
            assert (record.timestamp, record.value) == (written.timestamp, written.value)
        if found.size > max_bytes:
            assert min_one and found.end_offset == self.model[offset].batch_end

    @precondition(lambda self: self.model)
    @rule()
    def read_everything_as_a_consumer(self) -> None:
        seen: list[int] = []
        offset = self.start
        while (found := self.log.read(offset, 300, self.end, min_one=True)).parts:
            seen += [record.offset for record in records_of(found)]
            offset = found.end_offset
        assert seen == sorted(self.model)

    @rule(at=st.integers(-1, 51))
    def look_up_time(self, at: int) -> None:
        found = run_all_steps(self.log.offset_for_timestamp(NOW + at))
        expected = next(
            (offset for offset in sorted(self.model) if self.model[offset].timestamp >= NOW + at), None
        )
        assert (found and found.offset) == expected
        if found:
            written = self.model[found.offset]
            assert (found.timestamp, found.leader_epoch) == (written.timestamp, written.epoch)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def epochs(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.model)))
        assert self.log.epochs.epoch_of(offset) == self.model[offset].epoch

    @precondition(lambda self: self.model)
    @rule()
    def producer_remembers(self) -> None:
        """The producer state has its newest batch, and no batch that was never written."""
        producer = self.log.producers.get(PRODUCER)
        assert producer is not None
        last = self.model[max(self.model)]
        assert producer.batches[-1].first_offset == last.batch_start
        for kept in producer.batches:
            if kept.first_offset in self.model:
                assert self.model[kept.first_offset][:2] == (kept.first_offset, kept.last_offset + 1)

    @precondition(lambda self: self.model)
    @rule()
    def export(self) -> None:
        for segment in self.log.segments[:-1]:
            exported = self.log.export_segment(segment.base_offset)
            assert exported is not None
            data = exported.descriptor.path_log.read_bytes()
            last = list(iter_batches(data))[-1][1]
            assert len(data) == segment.size_bytes and last.next_offset == segment.end_offset
            assert exported.descriptor.max_timestamp == max(
                self.model[at].timestamp for at in range(segment.base_offset, segment.end_offset)
            )


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
