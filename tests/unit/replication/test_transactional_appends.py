"""Transactional appends on a leader: verification (KIP-890), markers and their fencing, and producers."""

from pathlib import Path
from typing import Any

import pytest
from opened_replica import led_replica

from tierlog.broker.replication.leader_role import AppendResult
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import ActiveProducer, Rejection
from tierlog.broker.storage.core.verification import VERIFICATIONS_MAX, VerificationGuard
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.markers import EndMarker
from tierlog.records.writer import NewRecord, encode_batch

COMMIT, ABORT = EndMarker(True, 0), EndMarker(False, 0)
V1, V2 = 1, 2
PRODUCER = 7
NOW = 1_700_000_000_000


def open_replica(directory: Path, config: TopicConfig | None = None) -> Replica:
    return led_replica(directory, NOW, config)


def batch(count: int, **options: Any) -> memoryview:
    return memoryview(encode_batch([NewRecord(NOW, b"k", b"v")] * count, **options))


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return open_replica(tmp_path)


def verify(
    replica: Replica, sequence: int = 0, *, epoch: int = 0, producer: int = PRODUCER, v2: bool = False
) -> VerificationGuard:
    found = replica.as_leader.begin_verification(producer, epoch, sequence, supports_epoch_bump=v2)
    assert isinstance(found, VerificationGuard)
    return found


def produce(
    replica: Replica,
    sequence: int = 0,
    guard: VerificationGuard | None = None,
    *,
    epoch: int = 0,
    producer: int = PRODUCER,
    **options: bool,
) -> AppendResult:
    """Append a transactional batch of one record."""
    data = batch(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)
    return replica.as_leader.append(data, NOW, guard=guard, **options)


def end(
    replica: Replica,
    marker: EndMarker = COMMIT,
    *,
    epoch: int = 0,
    version: int = V1,
    producer: int = PRODUCER,
) -> ErrorCode:
    result = replica.as_leader.append_marker(producer, epoch, marker, NOW, transaction_version=version)
    replica.check()
    return result.error


def test_first_batch_of_a_transaction_needs_a_guard_and_later_ones_do_not(replica: Replica) -> None:
    assert produce(replica).error == ErrorCode.INVALID_TXN_STATE
    assert replica.log_end_offset == 0
    assert produce(replica, 0, verify(replica)).error == ErrorCode.NONE
    assert replica.as_leader.begin_verification(PRODUCER, 0, 1) is None
    assert produce(replica, 1).error == ErrorCode.NONE
    assert (replica.last_stable_offset, replica.high_watermark) == (0, 2)


def test_no_guard_is_needed_without_verification(replica: Replica) -> None:
    assert produce(replica, must_verify=False).error == ErrorCode.NONE


def test_guard_of_another_producer_is_refused(replica: Replica) -> None:
    verify(replica)
    assert produce(replica, 0, verify(replica, producer=8)).error == ErrorCode.INVALID_TXN_STATE


def test_marker_invalidates_the_guard_of_a_delayed_batch(replica: Replica) -> None:
    guard = verify(replica)
    assert end(replica, ABORT) == ErrorCode.NONE
    assert produce(replica, 0, guard).error == ErrorCode.INVALID_TXN_STATE
    assert replica.last_stable_offset == replica.high_watermark == 1
    assert produce(replica, 0, verify(replica)).error == ErrorCode.NONE


def test_guard_of_a_finished_transaction_does_not_open_the_next(replica: Replica) -> None:
    guard = verify(replica)
    produce(replica, 0, guard)
    end(replica)
    assert produce(replica, 1, guard).error == ErrorCode.INVALID_TXN_STATE
    assert produce(replica, 1, verify(replica, 1)).error == ErrorCode.NONE


def test_verification_with_a_higher_epoch_invalidates_the_guard(replica: Replica) -> None:
    old, new = verify(replica), verify(replica, epoch=1)
    assert produce(replica, 0, old).error == ErrorCode.INVALID_TXN_STATE
    assert produce(replica, 0, new, epoch=1).error == ErrorCode.NONE


def test_requests_in_flight_share_a_verification(replica: Replica) -> None:
    first, second = verify(replica, 0), verify(replica, 1)
    assert produce(replica, 0, first).error == ErrorCode.NONE
    assert produce(replica, 1, second).error == ErrorCode.NONE, "the transaction is open"


def test_later_batch_waits_for_the_retry_of_one_that_was_not_verified(replica: Replica) -> None:
    verify(replica, 0)
    guard = verify(replica, 1)
    assert produce(replica, 1, guard).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(replica, 0, verify(replica, 0)).error == ErrorCode.NONE
    assert produce(replica, 1).error == ErrorCode.NONE


def test_unknown_producer_of_protocol_v2_starts_at_sequence_zero(replica: Replica) -> None:
    v1 = verify(replica, 5, producer=8)
    assert produce(replica, 5, v1, producer=8).error == ErrorCode.NONE, "its state may have expired"
    v2 = verify(replica, 5, v2=True)
    assert produce(replica, 5, v2).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(replica, 0, verify(replica, 0, v2=True)).error == ErrorCode.NONE


def test_stale_epoch_is_refused_before_the_coordinator_is_asked(replica: Replica) -> None:
    produce(replica, 0, verify(replica, epoch=3), epoch=3)
    found = replica.as_leader.begin_verification(PRODUCER, 2, 0)
    assert isinstance(found, Rejection) and found.error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(replica, 0, epoch=2).error == ErrorCode.INVALID_PRODUCER_EPOCH


def test_retry_of_a_finished_transaction_is_refused(replica: Replica) -> None:
    """A client that has forgotten the batch gives its sequence to another record, which must not be lost."""
    produce(replica, 0, verify(replica))
    end(replica)
    again = produce(replica, 0, verify(replica))
    assert (again.error, replica.log_end_offset) == (ErrorCode.INVALID_TXN_STATE, 2)


def test_plain_batch_inside_a_transaction_is_refused(replica: Replica) -> None:
    produce(replica, 0, verify(replica))
    plain = batch(1, producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
    assert replica.as_leader.append(plain, NOW).error == ErrorCode.INVALID_TXN_STATE
    newer = batch(1, producer_id=PRODUCER, producer_epoch=1, base_sequence=0)
    assert replica.as_leader.append(newer, NOW).error == ErrorCode.INVALID_TXN_STATE
    end(replica)
    plain = batch(1, producer_id=PRODUCER, producer_epoch=0, base_sequence=1)
    assert replica.as_leader.append(plain, NOW).error == ErrorCode.NONE


def test_coordinators_batches_need_the_guard_and_the_epoch_but_no_sequence(replica: Replica) -> None:
    offsets = {"producer_id": PRODUCER, "producer_epoch": 1, "transactional": True}
    as_leader = replica.as_leader
    assert as_leader.append(batch(1, **offsets), NOW, from_client=False).error == ErrorCode.INVALID_TXN_STATE
    guard = verify(replica, -1, epoch=1)
    for _ in range(2):
        assert (
            as_leader.append(batch(1, **offsets), NOW, from_client=False, guard=guard).error == ErrorCode.NONE
        )
    stale = batch(1, **offsets | {"producer_epoch": 0})
    assert as_leader.append(stale, NOW, from_client=False).error == ErrorCode.INVALID_PRODUCER_EPOCH


def test_verifications_are_bounded_and_expire(replica: Replica) -> None:
    guard, producers = verify(replica), replica.log.producers
    for producer in range(100, 100 + VERIFICATIONS_MAX):
        verify(replica, producer=producer)
    assert len(producers.verifications) == VERIFICATIONS_MAX
    assert produce(replica, 0, guard).error == ErrorCode.INVALID_TXN_STATE, "the oldest was dropped"
    producers.expire(1_000, 500)
    guard = verify(replica)
    producers.expire(1_499, 500)
    assert len(producers.verifications) == VERIFICATIONS_MAX
    producers.expire(1_500, 500)
    assert len(producers.verifications) == 1
    assert produce(replica, 0, guard).error == ErrorCode.NONE


def test_follower_verifies_nothing_and_appends_no_marker(replica: Replica) -> None:
    replica.become_follower(2, 1, 1)
    found = replica.as_leader.begin_verification(PRODUCER, 0, 0)
    assert isinstance(found, Rejection) and found.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert end(replica) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("truncated", [False, True])
def test_guard_does_not_outlive_the_leadership(replica: Replica, truncated: bool) -> None:
    replica.as_leader.append(batch(2), NOW)
    guard = verify(replica)
    replica.become_follower(2, 1, 1)
    if truncated:
        replica.as_follower.truncate_to(0, NOW)
    replica.become_leader(2, 2, [1])
    assert produce(replica, 0, guard).error == ErrorCode.INVALID_TXN_STATE
    assert produce(replica, 0, verify(replica)).error == ErrorCode.NONE


def test_marker_of_an_older_producer_epoch_is_refused(replica: Replica) -> None:
    produce(replica, 0, verify(replica, epoch=3), epoch=3)
    for version in (V1, V2):
        assert end(replica, epoch=2, version=version) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert replica.log_end_offset == 1
    assert end(replica, epoch=3) == ErrorCode.NONE
    assert replica.last_stable_offset == 2


def test_marker_of_protocol_v2_needs_a_higher_epoch_than_the_data(replica: Replica) -> None:
    produce(replica, 0, verify(replica, v2=True))
    assert end(replica, epoch=0, version=V2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(replica, epoch=1, version=V2) == ErrorCode.NONE
    assert end(replica, epoch=1, version=V2) == ErrorCode.NONE, "a retry"
    produce(replica, 0, verify(replica, epoch=1, v2=True), epoch=1)
    assert end(replica, ABORT, epoch=1, version=V2) == ErrorCode.INVALID_PRODUCER_EPOCH, "a late retry"
    assert replica.last_stable_offset == 3, "the second transaction is still open"


def test_marker_of_a_former_coordinator_is_refused(replica: Replica) -> None:
    produce(replica, 0, verify(replica))
    assert end(replica, EndMarker(True, 5)) == ErrorCode.NONE
    produce(replica, 1, verify(replica, 1))
    assert end(replica, EndMarker(False, 4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert end(replica, EndMarker(False, 5)) == ErrorCode.NONE


def test_retried_marker_is_written_again_and_ends_nothing(replica: Replica) -> None:
    produce(replica, 0, verify(replica))
    for _ in range(2):
        assert end(replica, ABORT) == ErrorCode.NONE
    assert replica.log_end_offset == replica.last_stable_offset == 3
    assert [(txn.first_offset, txn.last_offset) for txn in replica.log.aborted(0, 3)] == [(0, 1)]


def test_marker_is_refused_below_min_insync_replicas(tmp_path: Path) -> None:
    replica = open_replica(tmp_path, TopicConfig(min_insync_replicas=2))
    replica.become_leader(1, 1, [1], [1, 2])
    assert end(replica) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert replica.log_end_offset == 0


def test_marker_holds_the_last_stable_offset_until_it_is_committed(replica: Replica) -> None:
    replica.become_leader(1, 1, [1, 2], [1, 2])
    produce(replica, 0, verify(replica))
    replica.as_leader.follower_fetched(2, 1, 1, NOW)
    end(replica)
    assert (replica.last_stable_offset, replica.high_watermark) == (0, 1)
    replica.as_leader.follower_fetched(2, 1, 2, NOW)
    assert (replica.last_stable_offset, replica.high_watermark) == (2, 2)


def test_active_producers_show_their_transaction(replica: Replica) -> None:
    produce(replica, 0, verify(replica))
    produce(replica, 1)
    replica.as_leader.append(batch(3, producer_id=8, producer_epoch=2, base_sequence=0), NOW)
    assert list(replica.active_producers()) == [
        ActiveProducer(PRODUCER, 0, 1, NOW, -1, 0),
        ActiveProducer(8, 2, 2, NOW, -1, -1),
    ]
    end(replica, EndMarker(True, 6), epoch=1, version=V2)
    assert next(replica.active_producers()) == ActiveProducer(PRODUCER, 1, -1, NOW, 6, -1)
