"""The comparison of copies with each other and with the history reports each kind of damage."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from havoc import audit
from havoc.anomalies import Kind
from havoc.history import Acked, AnyEvent, Failed, Read, Sent, value_of
from havoc.keyed import KEYS, TOMBSTONE_EVERY, is_tombstone, key_of
from havoc.replicas import REMOTE, Copy, StoredBatch, StoredRecord, read_directory, read_segments
from remote_segments import remote_segment

from tierlog.records.writer import NewRecord, encode_batch

N = 6


def batch(offset: int, *values: str, data: bytes = b"", key: bytes | None = None) -> StoredBatch:
    """A batch with one record for each value."""
    records = tuple(
        StoredRecord(offset + n, 1000 + n, key, value, is_tombstone=False) for n, value in enumerate(values)
    )
    return StoredBatch(offset, offset + len(values), data or repr((offset, values)).encode(), records)


def copy_of(name: str, values: Iterable[str], start: int = 0) -> Copy:
    return Copy(name, tuple(batch(start + n, value) for n, value in enumerate(values)))


VALUES = [value_of("p0", 0, number) for number in range(N)]
WHOLE = copy_of("node 1", VALUES)


def history(acknowledged: int = N) -> list[AnyEvent]:
    return [
        *(Sent(0.0, "p0", 0, number) for number in range(N)),
        *(Acked(0.1, "p0", 0, number, number) for number in range(acknowledged)),
        Read(0.2, "assigned/0", 0, tuple(enumerate(VALUES))),
    ]


def kinds(copies: list[Copy]) -> list[Kind]:
    return [anomaly.kind for anomaly in audit.compare(0, copies)]


def test_equal_copies_pass() -> None:
    assert kinds([WHOLE, copy_of("node 2", VALUES), copy_of("node 3", VALUES)]) == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (copy_of("node 2", VALUES[:-1]), Kind.DIFFERENT),  # a replica that ends before the others
        (Copy("node 2", (*WHOLE.batches[:2], *WHOLE.batches[3:])), Kind.DAMAGED),  # a gap
        (Copy("node 2", WHOLE.batches, "segment 0, position 12: CRC"), Kind.DAMAGED),
        (copy_of("node 2", [*VALUES[:2], "p0/0/9", *VALUES[3:]]), Kind.DIFFERENT),
        (Copy("node 2", (*WHOLE.batches[:-1], batch(N - 1, VALUES[-1], data=b"x"))), Kind.DIFFERENT),
    ],
)
def test_different_copy_is_flagged(other: Copy, expected: Kind) -> None:
    assert expected in kinds([WHOLE, other])


def test_one_wrong_byte_in_a_batch_is_flagged() -> None:
    changed = Copy("node 2", (batch(0, VALUES[0], data=b"one byte else"), *WHOLE.batches[1:]))
    assert kinds([WHOLE, changed, WHOLE]) == [Kind.DIFFERENT, Kind.DIFFERENT]


def test_copies_are_compared_over_their_common_offsets() -> None:
    remote = Copy(REMOTE, WHOLE.batches[:4])
    local = Copy("node 1", WHOLE.batches[2:])
    assert kinds([remote, local]) == []
    assert list(audit.joined(remote, local).records()) == list(WHOLE.records())
    wrong = Copy(REMOTE, (*WHOLE.batches[:3], batch(3, VALUES[3], data=b"?")))
    assert kinds([wrong, local]) == [Kind.DIFFERENT]


def test_gap_between_tiers_is_flagged() -> None:
    log = audit.joined(Copy(REMOTE, WHOLE.batches[:2]), Copy("node 1", WHOLE.batches[4:]))
    verdict = audit.against_history(history(), {0: log}, 1)
    assert verdict.counts()["lost"] == 2 and verdict.invalid


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (VALUES, {}),
        (VALUES[:-1], {"lost": 1, "vanished": 1}),
        ([*VALUES, VALUES[0]], {"doubled": 1}),
        ([*VALUES, "p9/0/0"], {"unsent": 1}),
    ],
)
def test_each_copy_must_agree_with_the_history(values: list[str], expected: dict[str, int]) -> None:
    verdict = audit.against_history(history(), {0: copy_of("node 3", values)}, 1)
    counts = {kind: count for kind, count in verdict.counts().items() if count and kind != "skipped"}
    assert counts == expected


# --- compacted logs

OTHER = TOMBSTONE_EVERY - 1
"""The first number that deletes its key."""


def keyed_history(*numbers: int, acknowledged: Iterable[int] | None = None) -> list[AnyEvent]:
    """Each at the offset that is its number."""
    acked = numbers if acknowledged is None else tuple(acknowledged)
    return [
        *(Sent(0.0, "k0", 0, number) for number in numbers),
        *(Acked(0.1, "k0", 0, number, number) for number in acked),
    ]


def keyed_copy(name: str, *numbers: int, start: int = -1) -> Copy:
    records = [StoredRecord(n, 1000, key_of("k0", n), value_of("k0", 0, n), is_tombstone(n)) for n in numbers]
    return Copy(name, tuple(StoredBatch(r.offset, r.offset + 1, b"", (r,)) for r in records))


def compacted(events: list[AnyEvent], *copies: Copy) -> set[Kind]:
    found = audit.compare_compacted(events, {0: copies}, key_of=key_of, is_tombstone=is_tombstone)
    return {anomaly.kind for anomaly in found}


LAST = KEYS + 1  # the same key as 1


def test_records_removed_by_compaction_are_not_lost() -> None:
    events = keyed_history(1, 2, LAST)
    assert compacted(events, keyed_copy("node 1", 1, 2, LAST), keyed_copy("node 2", 2, LAST)) == set()


def test_a_key_without_its_last_value_is_lost() -> None:
    events = keyed_history(1, 2, LAST)
    assert compacted(events, keyed_copy("node 1", 1, 2)) == {Kind.LOST}


def test_deleted_key_may_be_missing_but_must_not_return() -> None:
    gone = OTHER % KEYS
    assert key_of("k0", gone) == key_of("k0", OTHER) and is_tombstone(OTHER)
    before = OTHER + KEYS
    while not is_tombstone(before):
        before += KEYS
    alive = before - KEYS
    events = keyed_history(alive, before, before + 1)
    assert compacted(events, keyed_copy("node 1", before + 1)) == set()
    assert compacted(events, keyed_copy("node 1", alive, before + 1)) == {Kind.LOST}


def test_missing_key_without_tombstone_is_lost() -> None:
    assert compacted(keyed_history(1, 2), keyed_copy("node 1", 2)) == {Kind.LOST}


def test_a_record_of_unknown_fate_may_be_the_last_one() -> None:
    events = keyed_history(1, LAST, acknowledged=[1])
    assert compacted(events, keyed_copy("node 1", 1, LAST)) == set()


def test_compacted_copies_that_differ_are_flagged() -> None:
    events = keyed_history(1, 2, LAST)
    whole = keyed_copy("node 1", 1, 2, LAST)
    shifted = Copy(
        "node 2",
        tuple(each._replace(records=(each.records[0]._replace(timestamp=7),)) for each in whole.batches),
    )
    assert compacted(events, whole, shifted) == {Kind.DIFFERENT}
    assert compacted(events, whole, keyed_copy("node 2", 1, 2)) == {Kind.DIFFERENT, Kind.LOST}


def test_wrong_records_of_a_compacted_log_are_flagged() -> None:
    events = keyed_history(1, 2, LAST)
    record = keyed_copy("node 1", LAST).batches[0].records[0]

    def with_last(changed: StoredRecord) -> Copy:
        last = StoredBatch(changed.offset, changed.offset + 1, b"", (changed,))
        return Copy("node 1", (*keyed_copy("", 1, 2).batches, last))

    assert compacted(events, with_last(record._replace(value="k7/0/1"))) == {Kind.UNSENT, Kind.LOST}
    assert compacted(events, with_last(record._replace(key=b"else"))) == {Kind.INCONSISTENT}
    assert compacted(events, with_last(record._replace(offset=LAST + 1))) == {Kind.INCONSISTENT}
    again = keyed_copy("", 1).batches[0].records[0]._replace(offset=LAST)
    assert Kind.DOUBLED in compacted(events, with_last(again))
    behind = Copy("node 1", (*keyed_copy("", LAST).batches, *keyed_copy("", 1).batches))
    assert Kind.REORDERED in compacted(keyed_history(1, LAST), behind)
    refused = [*events, Failed(0.2, "k0", 0, LAST, "refused", definite=True)]
    assert Kind.REFUSED in compacted(refused, with_last(record))


# --- reading


def encoded(offset: int, value: bytes) -> bytes:
    data = bytearray(encode_batch([NewRecord(1000, None, value)]))
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def test_copy_of_a_directory_ends_at_damage(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [encoded(n, VALUES[n].encode() + b" filler") for n in range(3)]
    (directory / f"{0:020d}.log").write_bytes(batches[0] + batches[1])
    (directory / f"{2:020d}.log").write_bytes(batches[2])
    copy = read_directory("node 1", directory)
    assert [(record.offset, record.value) for record in copy.records()] == list(enumerate(VALUES[:3]))
    assert (copy.start, copy.end, copy.fault) == (0, 3, "")
    assert [each.data for each in copy.batches] == batches
    damaged = bytearray(batches[1])
    damaged[-1] ^= 1
    (directory / f"{0:020d}.log").write_bytes(batches[0] + bytes(damaged))
    copy = read_directory("node 1", directory)
    assert copy.end == 1 and "CRC" in copy.fault


def test_remote_segments_must_match_the_manifest() -> None:
    data = encoded(0, b"p0/0/0 ") + encoded(1, b"p0/0/1 ")
    assert read_segments([(data, remote_segment(0, 1, log_bytes=len(data)))]).fault == ""
    assert "in the manifest" in read_segments([(data[:-1], remote_segment(0, 1, log_bytes=len(data)))]).fault
    assert "does not end" in read_segments([(data, remote_segment(0, 5, log_bytes=len(data)))]).fault
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    assert "CRC" in read_segments([(flipped, remote_segment(0, 1, log_bytes=len(data)))]).fault
