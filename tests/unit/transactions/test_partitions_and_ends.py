"""AddPartitionsToTxn, its verification, and EndTxn in each state and version."""

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.transactions.core.events import MarkersWritten
from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.protocol.errors import ErrorCode as E

LAST = 32_766
COMPLETE = {True: S.COMPLETE_COMMIT, False: S.COMPLETE_ABORT}

# ---- partitions ----


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((1, 0), E.PRODUCER_FENCED),
        ((1, 2), E.PRODUCER_FENCED),
        ((2, 1), E.INVALID_PRODUCER_ID_MAPPING),
        ((1, 1), E.NONE),
    ],
)
@pytest.mark.parametrize("verify_only", [False, True])
def test_only_the_current_producer_may_add_or_verify(bench, producer, error, verify_only):
    b = bench()
    b.init()
    b.open("a-0")
    assert b.error(b.add(producer, "a-0", verify_only=verify_only)) == error


def test_unknown_id_has_no_partitions(bench):
    b = bench()
    assert b.error(b.add((1, 0), "a-0")) == E.INVALID_PRODUCER_ID_MAPPING
    assert b.error(b.commit((1, 0))) == E.INVALID_PRODUCER_ID_MAPPING
    assert list(b.core.transactions()) == [] and b.log == []


def test_partitions_that_are_in_the_transaction_are_not_stored_again(bench):
    b = bench()
    producer = b.open("a-0", "b-1")
    stored = len(b.log)
    assert b.error(b.add(producer, "b-1")) == E.NONE
    assert b.error(b.add(producer)) == E.NONE
    assert len(b.log) == stored
    assert b.error(b.add(producer, "b-1", "b-2")) == E.NONE
    assert b.core.find("t").partitions == {TopicPartition("a", 0), *(TopicPartition("b", n) for n in (1, 2))}


def test_verification_names_the_partitions_that_are_missing(bench):
    b = bench()
    producer = b.open("a-0")
    stored = len(b.log)
    assert b.response(b.verify(producer, "a-0")).failed == frozenset()
    assert b.response(b.verify(producer, "a-0", "a-1")).failed == {TopicPartition("a", 1)}
    b.commit(producer)
    assert b.response(b.verify((1, 1), "a-0")).failed == {TopicPartition("a", 0)}
    assert len(b.log) == stored + 2  # only the two records that end it


def test_next_transaction_begins_without_the_partitions_of_the_last(bench):
    b = bench()
    b.commit(b.open("a-0"))
    b.advance(10)
    b.add((1, 1), "b-0")
    known = b.core.find("t")
    assert known.partitions == {TopicPartition("b", 0)}
    assert known.started_ms == b.now_ms


def test_added_partitions_are_answered_once_durable(bench):
    b = bench()
    producer = b.producer(b.init())
    b.hold_appends = True
    token = b.add(producer, "a-0")
    again = b.add(producer, "a-0")
    assert b.waiting == [token, again]
    b.hold_appends = False
    b.release()
    assert b.error(token) == b.error(again) == E.NONE


@pytest.mark.parametrize("error", [E.NONE, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_late_addition_may_still_take_effect(bench, error):
    b = bench()
    producer = b.producer(b.init())
    b.hold_appends = True
    token = b.add(producer, "a-0")
    b.late()
    assert b.error(token) == E.COORDINATOR_NOT_AVAILABLE
    b.hold_appends = False
    b.release(error)
    assert b.state is (S.ONGOING if error == E.NONE else S.EMPTY)
    assert b.error(b.add(producer, "a-0")) == E.NONE


# ---- the end of an open transaction ----


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_open_transaction_ends(bench, version, commit):
    b = bench()
    producer = b.open("a-0", "b-1", version=version)
    end = b.commit if commit else b.abort
    after = (1, 1) if version == 2 else (1, 0)
    assert b.producer(end(producer, version=version)) == after
    assert b.state is COMPLETE[commit]
    [markers] = b.markers
    assert (markers.commit, markers.client_version) == (commit, version)
    assert markers.partitions == {TopicPartition("a", 0), TopicPartition("b", 1)}


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("producer", [(1, 0), (1, 2), (77, 1)])
def test_others_cannot_end_a_transaction(bench, version, producer):
    b = bench()
    b.init()
    b.open("a-0", version=version)
    expected = E.PRODUCER_FENCED if producer[0] == 1 else E.INVALID_PRODUCER_ID_MAPPING
    assert b.error(b.commit(producer, version=version)) == expected
    assert b.error(b.abort(producer, version=version)) == expected
    assert b.state is S.ONGOING


RETRIED, CURRENT = -1, 0
ENDS_V2 = {  # (state, commit, epoch of the request) -> error, as in Kafka
    (S.EMPTY, True, RETRIED): E.PRODUCER_FENCED,
    (S.EMPTY, False, RETRIED): E.PRODUCER_FENCED,
    (S.EMPTY, True, CURRENT): E.INVALID_TXN_STATE,
    (S.EMPTY, False, CURRENT): E.NONE,
    (S.COMPLETE_COMMIT, True, RETRIED): E.NONE,
    (S.COMPLETE_COMMIT, False, RETRIED): E.INVALID_TXN_STATE,
    (S.COMPLETE_COMMIT, True, CURRENT): E.INVALID_TXN_STATE,
    (S.COMPLETE_COMMIT, False, CURRENT): E.NONE,
    (S.COMPLETE_ABORT, True, RETRIED): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False, RETRIED): E.NONE,
    (S.COMPLETE_ABORT, True, CURRENT): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False, CURRENT): E.NONE,
}


@pytest.mark.parametrize(("case", "error"), ENDS_V2.items())
def test_version_2_without_an_open_transaction(bench, case, error):
    state, commit, epoch = case
    b = bench()
    b.store(state=state, producer_epoch=5, client_version=2)
    token = (b.commit if commit else b.abort)((1, 5 + epoch))
    assert b.error(token) == error
    if error == E.NONE and epoch == RETRIED:
        assert b.producer(token) == (1, 5) and b.markers == []
    elif error == E.NONE:  # an abort without a partition
        assert b.producer(token) == (1, 6) and b.state is S.COMPLETE_ABORT
        assert b.markers[-1].partitions == frozenset()


ENDS_V0 = {
    (S.EMPTY, True): E.INVALID_TXN_STATE,
    (S.EMPTY, False): E.INVALID_TXN_STATE,
    (S.COMPLETE_COMMIT, True): E.NONE,
    (S.COMPLETE_COMMIT, False): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, True): E.INVALID_TXN_STATE,
    (S.COMPLETE_ABORT, False): E.NONE,
}


@pytest.mark.parametrize(("case", "error"), ENDS_V0.items())
def test_version_0_without_an_open_transaction(bench, case, error):
    state, commit = case
    b = bench()
    b.store(state=state, producer_epoch=5)
    end = b.commit if commit else b.abort
    assert b.error(end((1, 5), version=0)) == error
    assert b.error(end((1, 4), version=0)) == E.PRODUCER_FENCED
    assert b.markers == []


def test_zombie_of_version_2_does_not_take_the_end_of_an_older_client_for_its_own(bench):
    b = bench()
    zombie = b.producer(b.init())
    b.commit(b.open("a-0", version=0), version=0)
    assert b.error(b.commit(zombie)) == E.PRODUCER_FENCED


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("commit", [True, False])
def test_retry_waits_for_the_markers_and_learns_the_outcome(bench, version, state, commit):
    b = bench()
    b.hold_markers = True
    b.store(
        state=state, producer_epoch=5, client_version=version, partitions=frozenset([TopicPartition("a", 0)])
    )
    token = (b.commit if commit else b.abort)((1, 4 if version == 2 else 5), version=version)
    assert b.waiting == [token]
    b.write_markers()
    same = commit == (state is S.PREPARE_COMMIT)
    assert b.error(token) == (E.NONE if same else E.INVALID_TXN_STATE)


# ---- exhausted epochs ----


@pytest.mark.parametrize("commit", [True, False])
def test_exhausted_producer_of_version_2_gets_a_new_id_and_may_retry(bench, commit):
    b = bench()
    b.store(producer_epoch=LAST)
    b.add((1, LAST), "a-0")
    end = b.commit if commit else b.abort
    assert b.producer(end((1, LAST))) == (2, 0)
    assert (b.markers[-1].producer_id, b.markers[-1].producer_epoch) == (1, LAST + 1)
    assert b.producer(end((1, LAST))) == (2, 0)
    b.restart()
    assert b.producer(end((1, LAST))) == (2, 0)
    assert b.error((b.abort if commit else b.commit)((1, LAST))) == E.INVALID_TXN_STATE


def test_exhausted_producer_of_version_0_keeps_its_id_until_it_begins_again(bench):
    b = bench()
    b.store(producer_epoch=LAST)
    b.add((1, LAST), "a-0", client_version=0)
    assert b.producer(b.commit((1, LAST), version=0)) == (1, LAST)
    assert b.producer(b.init())[1] == 0
    assert b.core.find("t").producer_id != 1


def test_end_that_waited_until_the_epochs_ran_out_is_tried_again(bench):
    b = bench()
    b.store(producer_epoch=LAST - 1)
    b.hold_appends = True
    b.init()
    b.add((1, LAST), "a-0")
    token = b.commit((1, LAST))
    b.hold_appends = False
    b.release()
    assert b.error(token) == E.CONCURRENT_TRANSACTIONS
    assert b.producer(b.commit((1, LAST))) == (2, 0)


# ---- appends that fail ----


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.KAFKA_STORAGE_ERROR, E.MESSAGE_TOO_LARGE])
def test_end_that_fails_leaves_the_transaction_open(bench, error):
    b = bench()
    producer = b.open("a-0")
    b.append_error = error
    assert b.error(b.commit(producer)) != E.NONE
    assert b.state is S.ONGOING and b.markers == []
    b.append_error = E.NONE
    assert b.producer(b.abort(producer)) == (1, 1)


def test_markers_of_another_epoch_end_nothing(bench):
    b = bench()
    b.hold_markers = True
    b.commit(b.open("a-0"))
    [real] = b.held_markers
    b.held_markers.clear()
    b.send(MarkersWritten(transactional_id="t", producer_id=1, producer_epoch=0))
    b.send(MarkersWritten(transactional_id="u", producer_id=1, producer_epoch=1))
    assert b.state is S.PREPARE_COMMIT
    b.held_markers.append(real)
    b.write_markers()
    assert b.state is S.COMPLETE_COMMIT
    b.send(MarkersWritten(transactional_id="t", producer_id=1, producer_epoch=1))
    assert b.state is S.COMPLETE_COMMIT
