"""InitProducerId: new ids, retries (KIP-360), exhausted epochs, fencing of an open transaction."""

import pytest

from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.protocol.errors import ErrorCode as E

LAST = 32_766  # the last epoch that a client gets
VERSIONS = (0, 2)


def test_each_initialization_gets_the_next_epoch(bench):
    b = bench()
    assert [b.producer(b.init()) for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]
    assert b.producer(b.init("another")) == (2, 0)
    assert b.state is S.EMPTY


def test_initialization_replaces_the_timeout(bench):
    b = bench()
    b.init(timeout_ms=5_000)
    b.init(timeout_ms=7_000)
    assert b.core.find("t").timeout_ms == 7_000


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_beyond_the_limits_is_refused(bench, timeout_ms):
    b = bench()
    assert b.error(b.init(timeout_ms=timeout_ms)) == E.INVALID_TRANSACTION_TIMEOUT
    assert b.core.find("t") is None and b.log == []
    assert b.producer(b.init(timeout_ms=900_000)) == (2, 0)


def test_two_phase_commit_needs_its_setting_and_has_no_timeout(bench):
    b = bench()
    assert b.error(b.init(two_phase_commit=True)) == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    b = bench(two_phase_commit=True)
    producer = b.open(two_phase_commit=True, timeout_ms=1)
    b.advance(10**9)
    b.restart()
    b.advance(10**9)
    assert b.state is S.ONGOING
    assert b.error(b.commit(producer)) == E.NONE


# ---- retries (KIP-360) ----


def test_producer_continues_with_its_current_epoch_and_may_retry(bench):
    b = bench()
    producer = b.producer(b.init())
    assert b.producer(b.init(expected=producer)) == (1, 1)
    assert b.producer(b.init(expected=producer)) == (1, 1)
    assert b.producer(b.init(expected=(1, 1))) == (1, 2)
    assert b.error(b.init(expected=producer)) == E.PRODUCER_FENCED


def test_retry_after_another_producer_came_is_fenced(bench):
    b = bench()
    producer = b.producer(b.init())
    assert b.producer(b.init(expected=producer)) == (1, 1)
    assert b.producer(b.init()) == (1, 2)
    assert b.error(b.init(expected=producer)) == E.PRODUCER_FENCED
    assert b.error(b.init(expected=(1, 1))) == E.PRODUCER_FENCED


def test_retry_at_a_new_coordinator_is_fenced(bench):
    """The last epoch is not stored, as in Kafka."""
    b = bench()
    b.init()
    b.init(expected=(1, 0))
    b.restart()
    assert b.error(b.init(expected=(1, 0))) == E.PRODUCER_FENCED
    assert b.producer(b.init(expected=(1, 1))) == (1, 2)


def test_foreign_producer_id_is_fenced(bench):
    b = bench()
    b.init()
    assert b.error(b.init(expected=(77, 0))) == E.PRODUCER_FENCED
    assert b.core.find("t").producer_epoch == 0


def test_unknown_id_is_created_whatever_the_producer_expects(bench):
    """It expired: its producer begins again."""
    b = bench()
    assert b.producer(b.init(expected=(77, 3))) == (1, 0)


def test_producer_that_ended_its_transaction_without_hearing_so_gets_its_new_epoch(bench):
    b = bench()
    producer = b.open()
    b.commit(producer)
    assert b.producer(b.init(expected=producer)) == (1, 1)


# ---- exhausted epochs ----


def test_exhausted_producer_gets_a_new_id(bench):
    b = bench()
    b.store(producer_epoch=LAST)
    assert b.producer(b.init()) == (2, 0)
    assert b.error(b.init(expected=(1, LAST))) == E.PRODUCER_FENCED


def test_exhausted_producer_that_continues_may_retry_with_its_previous_id(bench):
    b = bench()
    b.store(producer_epoch=LAST)
    assert b.producer(b.init(expected=(1, LAST))) == (2, 0)
    assert b.producer(b.init(expected=(1, LAST))) == (2, 0)
    assert b.producer(b.init(expected=(2, 0))) == (2, 1)
    assert b.error(b.init(expected=(1, LAST))) == E.PRODUCER_FENCED


def test_last_epoch_but_one_is_followed_by_the_last(bench):
    b = bench()
    b.store(producer_epoch=LAST - 1)
    assert b.producer(b.init()) == (1, LAST)
    assert b.producer(b.init()) == (2, 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("epoch", [LAST - 1, LAST])
def test_fencing_an_exhausted_producer_brings_a_new_id(bench, version, epoch):
    b = bench()
    b.store(producer_epoch=epoch)
    b.add((1, epoch), "a-0", client_version=version)
    first = b.init()
    if epoch == LAST - 1:
        # The epochs ran out while the request waited, so that its retry brings the id.
        assert b.error(first) == E.CONCURRENT_TRANSACTIONS
        first = b.init()
    producer = b.producer(first)
    assert producer[0] > 1 and producer[1] in (0, 1)
    assert [each.producer_epoch for each in b.markers] == [epoch + 1]
    assert b.error(b.add((1, epoch), "a-0")) == E.INVALID_PRODUCER_ID_MAPPING
    assert b.error(b.add(producer, "a-0")) == E.NONE


@pytest.mark.parametrize("version", VERSIONS)
def test_timeout_of_an_exhausted_producer_fences_it(bench, version):
    """No client gets the epoch of the markers, which is the highest there is."""
    b = bench()
    b.store(producer_epoch=LAST)
    b.add((1, LAST), "a-0", client_version=version)
    b.advance(60_000)
    assert (b.state, b.markers[-1].producer_epoch) == (S.COMPLETE_ABORT, LAST + 1)
    for token in (
        b.abort((1, LAST), version=version),
        b.init(expected=(1, LAST)),
        b.add((1, LAST + 1), "a-0"),
        b.abort((1, LAST + 1), version=version),
    ):
        assert b.error(token) == E.PRODUCER_FENCED
    assert b.producer(b.init())[1] == 0


# ---- open transactions ----


@pytest.mark.parametrize("version", VERSIONS)
def test_new_producer_waits_for_the_abort_of_an_open_transaction(bench, version):
    b = bench()
    producer = b.open("a-0", version=version)
    b.hold_markers = True
    token = b.init()
    assert b.waiting == [token] and b.state is S.PREPARE_ABORT
    b.write_markers()
    assert b.producer(token) == (1, 2)
    assert [(each.commit, each.producer_epoch) for each in b.markers] == [(False, 1)]
    assert b.error(b.commit(producer, version=version)) == E.PRODUCER_FENCED


def test_new_producer_that_waits_too_long_tries_again(bench):
    b = bench()
    b.open("a-0")
    b.hold_markers = True
    token = b.init()
    b.advance(2_000)
    assert b.error(token) == E.CONCURRENT_TRANSACTIONS
    b.write_markers()
    assert b.producer(b.init()) == (1, 2)


def test_fenced_producer_cannot_abort_an_open_transaction(bench):
    b = bench()
    b.open("a-0")
    for expected in ((1, 5), (77, 0)):
        assert b.error(b.init(expected=expected)) == E.PRODUCER_FENCED
    assert b.state is S.ONGOING


def test_producer_that_continues_aborts_its_own_transaction(bench):
    """With version 0 the abort takes its epoch, as in Kafka: the producer has to begin again."""
    b = bench()
    producer = b.open("a-0", version=2)
    assert b.producer(b.init(expected=producer)) == (1, 1)
    b = bench()
    producer = b.open("a-0", version=0)
    assert b.error(b.init(expected=producer)) == E.PRODUCER_FENCED
    assert b.state is S.COMPLETE_ABORT


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.NOT_LEADER_OR_FOLLOWER])
def test_fence_that_cannot_be_stored_fails_the_request(bench, error):
    b = bench()
    producer = b.open("a-0")
    b.append_error = error
    token = b.init()
    expected = {E.NOT_ENOUGH_REPLICAS: E.COORDINATOR_NOT_AVAILABLE}.get(error, E.NOT_COORDINATOR)
    assert b.error(token) == expected
    b.append_error = E.NONE
    assert b.producer(b.commit(producer)) == (1, 1)


def test_requests_behind_a_fence_that_fails_are_handled(bench):
    b = bench()
    producer = b.open("a-0")
    b.hold_appends = True
    fence, commit = b.init(), b.commit(producer)
    b.hold_appends = False
    b.release(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert b.error(fence) == E.COORDINATOR_NOT_AVAILABLE
    assert b.producer(commit) == (1, 1)


def test_late_fence_still_takes_effect(bench):
    b = bench()
    b.open("a-0")
    b.hold_appends = True
    token = b.init()
    b.late()
    assert b.error(token) == E.COORDINATOR_NOT_AVAILABLE
    b.hold_appends = False
    b.release()
    assert b.state is S.COMPLETE_ABORT
    assert b.producer(b.init()) == (1, 2)


# ---- appends ----


def test_initialization_that_fails_changes_nothing(bench):
    b = bench()
    b.append_error = E.NOT_ENOUGH_REPLICAS
    assert b.error(b.init()) == E.COORDINATOR_NOT_AVAILABLE
    assert b.core.find("t") is None
    b.append_error = E.NONE
    assert b.producer(b.init()) == (2, 0)


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_late_initialization_is_answered_once(bench, error):
    b = bench()
    b.hold_appends = True
    token = b.init()
    b.late()
    assert b.error(token) == E.COORDINATOR_NOT_AVAILABLE
    b.hold_appends = False
    b.release(error)
    assert (b.core.find("t") is None) == (error != E.NONE)
    assert b.producer(b.init())[1] == (1 if error == E.NONE else 0)


def test_initializations_at_the_same_time_follow_each_other(bench):
    b = bench()
    b.hold_appends = True
    tokens = [b.init(spare_producer_id=9) for _ in range(3)]
    b.hold_appends = False
    b.release()
    assert [b.producer(each) for each in tokens] == [(9, 0), (9, 1), (9, 2)]


def test_requests_beyond_the_limit_do_not_wait(bench):
    b = bench()
    b.hold_appends = True
    tokens = [b.init(spare_producer_id=9) for _ in range(103)]
    assert [b.error(each) for each in tokens if b.response(each)] == [E.CONCURRENT_TRANSACTIONS] * 2
