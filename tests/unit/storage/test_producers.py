"""Producer state: retries, gaps, epochs, wrap-around, transactions and snapshots."""

import pytest
from crc32c import crc32c

from tierlog.broker.storage.core.producer_state import (
    LARGEST_SEQUENCE,
    CompletedTransaction,
    Duplicate,
    MalformedSnapshot,
    ProducerStateManager,
    Rejection,
    advance_sequence,
)
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from tierlog.records.markers import EndMarker


def header(
    sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 9, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, attributes, count - 1, 50, 50, producer, epoch, sequence, count)


def state_after(*batches: BatchHeader) -> ProducerStateManager:
    """The state after these batches are appended from offset 100 on."""
    state, offset = ProducerStateManager(), 100
    for batch in batches:
        assert state.validate(batch, must_verify=False) is None
        state.apply(batch, offset)
        offset += batch.record_count
    state.check()
    return state


def error(result: Duplicate | Rejection | None) -> ErrorCode | None:
    """The error code of a rejected batch; None for an accepted or duplicate one."""
    return result.error if isinstance(result, Rejection) else None


def test_unknown_producer_may_start_at_any_sequence() -> None:
    assert ProducerStateManager().validate(header(77)) is None


def test_retry_of_any_of_the_last_five_batches_is_a_duplicate() -> None:
    state = state_after(*(header(n * 2, 2) for n in range(6)))
    assert error(state.validate(header(0, 2))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for n in range(1, 6):
        assert state.validate(header(n * 2, 2)) == Duplicate(100 + n * 2, 101 + n * 2, 50)
    assert error(state.validate(header(4, 1))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # fewer records
    assert state.validate(header(12)) is None


def test_sequence_gap_is_rejected() -> None:
    assert error(state_after(header(0)).validate(header(2))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_fences_the_old_one_and_starts_at_sequence_zero() -> None:
    state = state_after(header(0, epoch=3))
    assert error(state.validate(header(1, epoch=2))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert error(state.validate(header(1, epoch=4))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.validate(header(0, epoch=4)) is None
    state.apply(header(0, epoch=4), 200)
    assert error(state.validate(header(0, epoch=3))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert state.validate(header(1, epoch=4)) is None


def test_sequences_wrap_around() -> None:
    assert advance_sequence(LARGEST_SEQUENCE, 1) == 0
    state = state_after(header(LARGEST_SEQUENCE - 1, 4))
    assert state.validate(header(LARGEST_SEQUENCE - 1, 4)) == Duplicate(100, 103, 50)
    assert state.validate(header(2)) is None
    assert error(state.validate(header(1))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_idle_producers_expire_unless_in_a_transaction() -> None:
    state = state_after(header(0), header(0, producer=10, attributes=TRANSACTIONAL))
    assert state.expire(7000, 1000) == 0  # idle time is counted from the first check
    assert state.expire(7999, 1000) == 0
    assert state.expire(8000, 1000) == 1
    assert state.get(9) is None and state.get(10) is not None


def test_active_producer_does_not_expire() -> None:
    state = state_after(header(0))
    for now_ms in range(0, 5000, 900):
        assert state.expire(now_ms, 1000) == 0
        state.apply(header(1 + now_ms), 200 + now_ms)


def test_idle_time_continues_after_a_restart_with_a_new_clock() -> None:
    state = state_after(header(0))
    for now_ms in (90_000, 90_600):
        state.expire(now_ms, 1000)
    state = ProducerStateManager.decode(state.encode())
    assert state.expire(5, 1000) == 0
    assert state.expire(404, 1000) == 0
    assert state.expire(405, 1000) == 1


def test_no_producer_expires_at_once_after_loading_a_kafka_snapshot() -> None:
    restored = ProducerStateManager.decode(snapshot_file(kafka_entry(state_after(header(0)))))
    assert not restored.has_all_batches
    assert restored.expire(10**12, 1000) == 0


def kafka_entry(state: ProducerStateManager) -> bytes:
    """The part of the snapshot of one producer that Kafka writes too, without version and checksum."""
    return state.encode()[6:56]


def snapshot_file(content: bytes) -> bytes:
    """Version, CRC-32C of the content, content."""
    return b"\0\1" + crc32c(content).to_bytes(4, "big") + content


def test_open_transaction_holds_the_last_stable_offset_until_its_marker_is_committed() -> None:
    state = state_after(
        header(0, 3, attributes=TRANSACTIONAL), header(0, 2, producer=10, attributes=TRANSACTIONAL)
    )
    assert state.first_unstable_offset() == 100
    assert error(state.validate(header(3))) == ErrorCode.INVALID_TXN_STATE
    marker = header(-1, attributes=TRANSACTIONAL | CONTROL)
    completed = state.apply(marker, 105, EndMarker(committed=False, coordinator_epoch=1))
    assert completed == CompletedTransaction(9, 100, 105, True)
    assert state.last_stable_offset_after(completed) == 103
    assert state.first_unstable_offset() == 100  # the marker itself is not committed yet
    state.on_high_watermark_updated(105)
    assert state.first_unstable_offset() == 100
    state.on_high_watermark_updated(106)
    assert state.first_unstable_offset() == 103
    state.check()


def test_retry_after_the_end_of_its_transaction_is_rejected() -> None:
    """The client has forgotten the batch, and its sequence is that of another record."""
    state = state_after(header(0, attributes=TRANSACTIONAL), header(1, attributes=TRANSACTIONAL))
    retry = header(1, attributes=TRANSACTIONAL)
    assert state.validate(retry, must_verify=False) == Duplicate(101, 101, 50)
    marker = header(-1, attributes=TRANSACTIONAL | CONTROL)
    state.apply(marker, 102, EndMarker(committed=False, coordinator_epoch=1))
    assert error(state.validate(retry, must_verify=False)) == ErrorCode.INVALID_TXN_STATE
    restored = ProducerStateManager.decode(state.encode())
    assert error(restored.validate(retry, must_verify=False)) == ErrorCode.INVALID_TXN_STATE
    following = header(2, attributes=TRANSACTIONAL)
    assert state.validate(following, must_verify=False) is None
    state.apply(following, 103)
    assert error(state.validate(retry, must_verify=False)) == ErrorCode.INVALID_TXN_STATE
    assert state.validate(following, must_verify=False) == Duplicate(103, 103, 50)


def test_snapshot_has_the_last_five_batches() -> None:
    batches = [header(2 * n, 2) for n in range(7)]
    state = state_after(*batches, header(0, 1, producer=10))
    restored = ProducerStateManager.decode(state.encode())
    assert restored.encode() == state.encode()
    assert restored.has_all_batches
    for batch in batches[-5:]:
        first = 100 + batch.base_sequence
        assert restored.validate(batch) == state.validate(batch) == Duplicate(first, first + 1, 50)
    assert error(restored.validate(batches[1])) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    restored.check()


def test_snapshot_has_the_timestamps_of_all_batches() -> None:
    """Duplicate returns a batch's timestamp; Kafka's entry has only the time at which it was written."""
    state = ProducerStateManager()
    for n in range(3):
        state.apply(header(n), 100 + n, now_ms=9000 + n)
    restored = ProducerStateManager.decode(state.encode())
    assert [restored.validate(header(n)) for n in range(3)] == [
        Duplicate(100 + n, 100 + n, 50) for n in range(3)
    ]


def test_unknown_data_after_kafkas_entries_is_skipped() -> None:
    entry = kafka_entry(state_after(header(0, 2)))
    restored = ProducerStateManager.decode(snapshot_file(entry + b"TLPB\0\2 whatever"))
    assert not restored.has_all_batches
    assert restored.validate(header(2)) is None


def test_snapshot_has_the_last_batch_and_the_open_transaction() -> None:
    state = state_after(header(0, 2), header(2, 3), header(0, 1, producer=10, attributes=TRANSACTIONAL))
    restored = ProducerStateManager.decode(state.encode())
    assert restored.encode() == state.encode()
    assert restored.validate(header(2, 3)) == Duplicate(102, 104, 50)
    assert restored.validate(header(5)) is None
    assert restored.first_unstable_offset() == 105
    restored.check()


SNAPSHOT_BYTES = 79  # one producer with one batch


@pytest.mark.parametrize("position", range(SNAPSHOT_BYTES))
def test_flipped_bit_or_cut_in_a_snapshot_is_detected(position: int) -> None:
    content = bytearray(state_after(header(0)).encode())
    assert len(content) == SNAPSHOT_BYTES
    content[position] ^= 1
    with pytest.raises(MalformedSnapshot):
        ProducerStateManager.decode(bytes(content))
    with pytest.raises(MalformedSnapshot):
        ProducerStateManager.decode(bytes(content[:position]))
