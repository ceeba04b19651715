"""Repair of a damaged range in place: after any failure the range is damaged or intact, and all else
unchanged.
"""

import random
from contextlib import suppress
from pathlib import Path

import pytest
from compaction import NOW, open_log, put
from power_loss import KEPT, LOST, Killed, PowerLoss

from tierlog.base.files import OsFiles
from tierlog.base.types import NO_EPOCH
from tierlog.broker.storage.log import PartitionLog
from tierlog.broker.storage.range_repair import CheckedPrefix, RangeRepair, check, range_repairs, rules_of
from tierlog.broker.storage.segment import CorruptLog
from tierlog.broker.storage.segment_scrub import SegmentScrub
from tierlog.config.topic import TopicConfig
from tierlog.records.batch import HEADER_SIZE, iter_batches

CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=0)
COUNT = 20
DAMAGED = 3


def begin(offset: int) -> CheckedPrefix:
    return CheckedPrefix(0, offset, NO_EPOCH)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with one damaged batch, after a shutdown."""
    log = open_log(tmp_path / "t-0", CONFIG, cleaned_to=None)
    for n in range(COUNT):
        put(log, f"key {n}", f"value {n}")
    log.flush()
    log.close(clean=True)
    return tmp_path / "t-0"


def first(directory: Path) -> Path:
    return min(directory.glob("*.log"))


def lies(directory: Path) -> slice:
    return next(
        slice(at, at + header.size)
        for at, header in iter_batches(first(directory).read_bytes())
        if header.base_offset == DAMAGED
    )


def flip(directory: Path) -> bytes:
    """Flip a bit; returns the segment's content before."""
    whole = first(directory).read_bytes()
    content = bytearray(whole)
    content[lies(directory).start + HEADER_SIZE + 3] ^= 4
    first(directory).write_bytes(content)
    return whole


def scrub(log: PartitionLog) -> list[RangeRepair]:
    for segment in log.segment_files:
        looked = SegmentScrub(log, segment)
        while not looked.done:
            looked.step()
        for damage in looked.found:
            log.add_damage(segment, damage)
    return list(range_repairs(log))


def mend(mending: RangeRepair, content: bytes) -> bool:
    assert mending.fits(content)
    mending.write(content)
    mending.sync()
    return mending.finish()


def opened(directory: Path, files: OsFiles | None = None) -> PartitionLog:
    return open_log(directory, CONFIG, files, recovery_point=COUNT, cleaned_to=None)


def test_repair_restores_the_leader_epoch_of_the_first_batches(directory: Path) -> None:
    """A start after a crash took a flipped epoch for the first one, and the next leader removed it."""
    whole = flip(directory)
    log = opened(directory)
    log.epochs.restart()
    [repair] = scrub(log)
    assert mend(repair, whole[lies(directory)])
    assert log.epochs.entries == ((0, DAMAGED),)
    log.close(clean=False)


def test_repaired_range_is_served_after_the_sync(directory: Path) -> None:
    whole = flip(directory)
    log = opened(directory)
    [mending] = scrub(log)
    mending.write(whole[lies(directory)])
    with pytest.raises(CorruptLog):
        log.read(DAMAGED, 1 << 20, COUNT, min_one=True)
    mending.sync()
    assert mending.finish() and log.damage == ()
    assert log.read(DAMAGED, 1 << 20, COUNT, min_one=True).base_offset == DAMAGED
    assert log.log_end_offset == COUNT and not mending.is_current
    assert scrub(log) == []
    log.check()
    log.close(clean=True)
    assert first(directory).read_bytes() == whole


@pytest.mark.parametrize("what", [KEPT, LOST])
def test_power_failure_at_every_file_operation(directory: Path, what: str) -> None:
    whole = flip(directory)
    damaged = first(directory).read_bytes()
    for left in range(10):
        first(directory).write_bytes(damaged)
        files = PowerLoss(directory, 1000)
        log = opened(directory, files)
        [mending] = scrub(log)
        files.left = left
        finished = False
        with suppress(Killed):
            finished = mend(mending, whole[lies(directory)])
        log.close(clean=False)
        del log, mending
        files.crash(what)
        assert first(directory).read_bytes() in ((whole,) if finished else (whole, damaged))
        if finished:
            return
    pytest.fail("the repair never ended")


def test_damage_can_be_repaired_after_a_torn_write(directory: Path) -> None:
    whole = flip(directory)
    damaged, where = first(directory).read_bytes(), lies(directory)
    sizes = random.Random(1).sample(range(where.stop - where.start), 10)
    for size in sizes:
        torn = bytearray(damaged)
        torn[where.start : where.start + size] = bytes(size)  # the sectors came in another order
        torn[where.start + size : where.stop] = whole[where.start + size : where.stop]
        first(directory).write_bytes(torn)
        log = opened(directory)
        for mending in scrub(log):
            assert mend(mending, whole[mending.damage.position : mending.damage.end_position])
        log.close(clean=True)
        assert first(directory).read_bytes() == whole


def test_truncated_segment_is_not_overwritten(directory: Path) -> None:
    flip(directory)
    log = opened(directory)
    [mending] = scrub(log)
    log.truncate_to(DAMAGED, NOW)
    assert not mending.is_current and not mending.finish()
    assert log.damage == ()
    log.close(clean=False)


def test_batches_of_the_same_length_must_match_the_index(directory: Path) -> None:
    whole = flip(directory)
    log = opened(directory)
    [mending] = scrub(log)
    assert not mending.fits(whole[lies(directory)][:-1])
    assert mending.fits(whole[lies(directory)])
    log.close(clean=False)


def test_batches_of_another_replica_are_checked(directory: Path) -> None:
    log = opened(directory)
    content = first(directory).read_bytes()
    rules = rules_of(log)
    last = [header for _, header in iter_batches(content)][-1]
    found = check(content, begin(0), last.next_offset, rules)
    assert (found.size, found.next_offset) == (len(content), last.next_offset)
    assert check(content, begin(0), DAMAGED, rules).size == lies(directory).start
    assert check(content[:-1], begin(0), last.next_offset, rules).next_offset == last.base_offset
    assert check(b"", begin(0), 1, rules).next_offset == 0
    with pytest.raises(CorruptLog):
        check(content, begin(1), COUNT, rules)
    for at in (7, 12, HEADER_SIZE + 1):
        wrong = bytearray(content)
        wrong[lies(directory).start + at] ^= 1
        with pytest.raises(CorruptLog):
            check(bytes(wrong), begin(0), last.next_offset, rules)
    log.close(clean=False)


def test_compaction_gap_is_accepted_only_if_the_length_matches(directory: Path) -> None:
    """A base offset raised by a flipped bit looks like a gap."""
    log = open_log(directory, CONFIG, recovery_point=COUNT, cleaned_to=0)
    where, content = lies(directory).start, bytearray(first(directory).read_bytes())
    content[where + 4] ^= 1
    found = check(bytes(content), begin(0), COUNT, rules_of(log))
    assert found.next_offset == DAMAGED
    found = check(bytes(content), begin(0), COUNT, rules_of(log, COUNT))
    assert (found.next_offset, found.size) == (COUNT, where)
    log.close(clean=False)
