"""Timeouts, expiry of ids, and a coordinator that replays its partition in each state."""

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.stored import FormatError
from tierlog.broker.transactions.core.formats import decode_value, encode_key, encode_value
from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.protocol.errors import ErrorCode as E

DAY_MS = 24 * 3_600_000
PARTITIONS = frozenset([TopicPartition("a", 0), TopicPartition("b", 3)])

# ---- timeouts ----


@pytest.mark.parametrize("version", [0, 2])
def test_timeout_aborts_with_another_epoch(bench, version):
    b = bench()
    producer = b.open("a-0", version=version, timeout_ms=5_000)
    b.advance(4_999)
    assert b.state is S.ONGOING
    b.advance(1)
    assert b.state is S.COMPLETE_ABORT
    [markers] = b.markers
    assert (markers.commit, markers.producer_epoch, markers.client_version) == (False, 1, version)
    assert b.error(b.add(producer, "a-0", client_version=version)) == E.PRODUCER_FENCED
    assert b.error(b.commit(producer, version=version)) in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    assert b.producer(b.init()) == (1, 2)


def test_ended_transaction_has_no_timeout(bench):
    b = bench()
    b.commit(b.open(timeout_ms=5_000))
    b.advance(4_000)
    b.add((1, 1), "a-0")
    b.advance(4_999)
    assert b.state is S.ONGOING
    b.advance(1)
    assert b.state is S.COMPLETE_ABORT


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR])
def test_abort_that_fails_is_tried_again(bench, error):
    b = bench(abort_retry_ms=10_000)
    b.open(timeout_ms=5_000)
    b.append_error = error
    b.advance(15_000)
    assert b.state is S.ONGOING
    b.append_error = E.NONE
    b.advance(10_000)
    assert b.state is S.COMPLETE_ABORT


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_late_abort_takes_effect_or_is_tried_again(bench, error):
    b = bench(abort_retry_ms=10_000)
    b.open(timeout_ms=5_000)
    b.hold_appends = True
    b.advance(5_000)
    b.late()
    b.hold_appends = False
    b.release(error)
    assert b.state is (S.COMPLETE_ABORT if error == E.NONE else S.ONGOING)
    b.advance(10_000)
    assert b.state is S.COMPLETE_ABORT
    assert len(b.markers) == 1


def test_timeout_during_another_change_comes_back(bench):
    b = bench(abort_retry_ms=10_000)
    producer = b.open("a-0", timeout_ms=5_000)
    b.hold_appends = True
    b.add(producer, "a-1")
    b.advance(5_000)
    b.hold_appends = False
    b.release()
    b.advance(10_000)
    assert b.state is S.COMPLETE_ABORT
    assert b.markers[-1].partitions == {TopicPartition("a", 0), TopicPartition("a", 1)}


# ---- failover ----


def test_open_transaction_gets_the_rest_of_its_timeout(bench):
    b = bench()
    producer = b.open("a-0", timeout_ms=5_000)
    b.advance(3_000)
    b.restart()
    b.advance(1_999)
    assert b.error(b.add(producer, "a-1")) == E.NONE
    b.advance(1)
    assert b.state is S.COMPLETE_ABORT


def test_clock_of_a_new_coordinator_may_be_behind(bench):
    b = bench()
    b.open("a-0", timeout_ms=5_000)
    b.now_ms -= 1_000_000
    b.restart()
    b.advance(5_000)
    assert b.state is S.COMPLETE_ABORT


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock_that_jumps_changes_no_timeout(bench, hours):
    b = bench()
    producer = b.open("a-0", timeout_ms=5_000)
    b.advance(3_000)
    b.now_ms += hours * 3_600_000
    b.timers = {key: at_ms + hours * 3_600_000 for key, at_ms in b.timers.items()}  # by another clock
    assert b.error(b.add(producer, "a-1")) == E.NONE
    b.advance(1_999)
    assert b.state is S.ONGOING
    b.advance(1)
    assert b.state is S.COMPLETE_ABORT


def test_transaction_that_timed_out_without_a_coordinator_is_aborted_at_once(bench):
    b = bench()
    b.open("a-0", timeout_ms=5_000)
    b.timers.clear()
    b.advance(60_000)
    b.restart()
    b.advance(0)
    assert b.state is S.COMPLETE_ABORT


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_state_at_rest_is_replayed_without_an_effect(bench, state):
    b = bench()
    stored = b.store(state=state, producer_epoch=5)
    assert (b.lines, b.timers, b.markers) == ([], {}, [])
    assert b.core.find("t") == stored
    assert b.error(b.add((1, 5), "a-0")) == E.NONE


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_prepared_transaction_is_completed_after_replay(bench, state, version):
    b = bench()
    b.store(state=state, producer_epoch=5, partitions=PARTITIONS, client_version=version)
    [markers] = b.markers
    assert (markers.commit, markers.partitions) == (state is S.PREPARE_COMMIT, PARTITIONS)
    assert (markers.producer_id, markers.producer_epoch, markers.client_version) == (1, 5, version)
    assert b.state is (S.COMPLETE_COMMIT if state is S.PREPARE_COMMIT else S.COMPLETE_ABORT)


def test_exhausted_producer_gets_its_new_id_after_replay(bench):
    b = bench()
    b.store(
        state=S.PREPARE_COMMIT,
        producer_epoch=32_767,
        next_producer_id=9,
        previous_producer_id=1,
        partitions=PARTITIONS,
        client_version=2,
    )
    assert b.producer(b.commit((1, 32_766))) == (9, 0)


def test_commit_that_was_not_durable_is_gone_after_a_failover(bench):
    for survivors, state in ((0, S.ONGOING), (1, S.COMPLETE_COMMIT)):
        b = bench()
        producer = b.open("a-0")
        b.hold_appends = True
        b.commit(producer)
        b.hold_appends = False
        b.restart(survivors)
        assert b.state is state
        assert b.producer(b.commit(producer)) == (1, 1)
        assert b.state is S.COMPLETE_COMMIT


# ---- expiry ----


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_unused_id_expires(bench, state):
    b = bench(transactional_id_expiration_ms=7 * DAY_MS)
    b.store(state=state)
    b.advance(7 * DAY_MS - 1)
    b.expire()
    assert b.state is state
    b.advance(1)
    b.expire()
    assert b.state is None and b.stored() is None
    b.restart()
    assert b.state is None
    assert b.error(b.add((1, 0), "a-0")) == E.INVALID_PRODUCER_ID_MAPPING
    assert b.producer(b.init()) == (2, 0)


def test_clock_that_jumps_takes_no_id(bench):
    b = bench()
    b.init()
    b.expire(rounds=10)
    b.advance(30 * DAY_MS)
    b.expire(rounds=10)
    assert b.producer(b.init()) == (1, 1)
    b.expire(rounds=24)
    b.advance(30 * DAY_MS)
    assert b.state is S.EMPTY
    b.expire(rounds=1)
    assert b.state is None


def test_new_coordinator_sees_an_id_unused_for_a_day_itself(bench):
    b = bench()
    b.init()
    b.advance(30 * DAY_MS)
    b.expire(rounds=24)
    b.restart()
    b.expire(rounds=24)
    assert b.state is S.EMPTY
    b.expire(rounds=1)
    assert b.state is None


def test_open_or_prepared_transactions_do_not_expire(bench):
    b = bench(two_phase_commit=True)
    producer = b.open(two_phase_commit=True)
    b.advance(30 * DAY_MS)
    b.expire()
    assert b.state is S.ONGOING
    b.hold_markers = True
    b.commit(producer)
    b.advance(30 * DAY_MS)
    b.expire()
    assert b.state is S.PREPARE_COMMIT


def test_request_behind_an_expiry_finds_a_new_id(bench):
    b = bench()
    b.init()
    b.advance(7 * DAY_MS)
    b.hold_appends = True
    b.expire()
    add, init = b.add((1, 0), "a-0"), b.init()
    b.hold_appends = False
    b.release()
    assert b.error(add) == E.INVALID_PRODUCER_ID_MAPPING
    assert b.error(init) == E.CONCURRENT_TRANSACTIONS  # it brought no producer id
    assert b.producer(b.init()) == (2, 0)


@pytest.mark.parametrize("late", [True, False])
def test_expiry_that_fails_keeps_the_id(bench, late):
    b = bench()
    producer = b.producer(b.init())
    b.advance(7 * DAY_MS)
    b.hold_appends = True
    b.expire()
    if late:
        b.late()
    b.hold_appends = False
    b.release(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert b.error(b.add(producer, "a-0")) == E.NONE
    assert b.waiting == []


# ---- records that no coordinator writes ----


@pytest.mark.parametrize("status", [6, 7, -1, 99])
def test_state_that_is_never_stored_is_refused(bench, status):
    value = bytearray(encode_value(bench().store()))
    at = 2 + 8 + 2 + 4  # version, producer id, epoch, timeout
    value[at] = status & 0xFF
    with pytest.raises(FormatError):
        decode_value("t", bytes(value))


def test_keys_of_later_versions_are_skipped(bench):
    b = bench()
    b.core.replay(b"\x00\x05" + encode_key("t")[2:], b"whatever")
    assert list(b.core.transactions()) == []
