"""InitProducerId that keeps an open transaction, so that its client ends it (KIP-939)."""

from textwrap import dedent

import pytest

from tierlog.broker.transactions.core.states import TransactionState as S
from tierlog.protocol.errors import ErrorCode as E

LAST = 32_766
COMPLETE = {True: S.COMPLETE_COMMIT, False: S.COMPLETE_ABORT}


def ongoing(b, token: int) -> tuple[int, int]:
    response = b.response(token)
    return response.ongoing_producer_id, response.ongoing_producer_epoch


def open_prepared(b, *partitions: str) -> tuple[int, int]:
    return b.open(*partitions, two_phase_commit=True)


@pytest.fixture
def b(bench):
    return bench(two_phase_commit=True)


def test_restarted_client_ends_the_transaction_of_its_predecessor(b):
    open_prepared(b, "a-0")
    b.lines.clear()
    b.init(keep=True, two_phase_commit=True)
    b.commit((1, 0))
    b.commit((1, 1))
    b.commit((1, 1))
    b.add((1, 2), "a-0")
    assert (
        b.transcript
        == dedent(
            """
            0 #3 init t keep
                append t Ongoing 1/0 a-0 next=1/1
                #3 1/1
            0 #4 commit t 1/0 v2
                #4 PRODUCER_FENCED
            0 #5 commit t 1/1 v2
                append t PrepareCommit 1/1 a-0 next=1/2
                #5 1/2
                markers commit t 1/1 a-0
                append t CompleteCommit 1/2 -
            0 #6 commit t 1/1 v2
                #6 1/2
            0 #7 add t 1/2 a-0
                append t Ongoing 1/2 a-0
                #7 ok
            """
        ).strip()
    ), b.transcript


def test_response_names_the_transaction_that_was_kept(b):
    producer = open_prepared(b)
    for epoch in (1, 2, 3):
        token = b.init(keep=True, two_phase_commit=True)
        assert b.producer(token) == (1, epoch)
        assert ongoing(b, token) == producer
    b.restart()
    assert ongoing(b, b.init(keep=True)) == producer
    assert b.producer(b.abort((1, 4))) == (1, 5)
    assert b.state is S.COMPLETE_ABORT
    assert b.markers[-1].producer_epoch == 1


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_without_an_open_transaction_nothing_is_kept(b, state):
    b.store(state=state)
    token = b.init(keep=True)
    assert (b.producer(token), ongoing(b, token)) == ((1, 1), (-1, -1))
    assert b.state is S.EMPTY


def test_decided_transaction_is_waited_for(b):
    b.hold_markers = True
    b.commit(open_prepared(b))
    token = b.init(keep=True)
    assert b.waiting == [token]
    b.write_markers()
    assert (b.producer(token), ongoing(b, token)) == ((1, 2), (-1, -1))


@pytest.mark.parametrize("producer", [(1, 0), (1, 1)])
def test_kept_transaction_takes_no_partitions(b, producer):
    """Records of the client's epoch would lie outside of it, and its predecessor is fenced."""
    open_prepared(b, "a-0")
    b.init(keep=True)
    error = E.PRODUCER_FENCED if producer == (1, 0) else E.INVALID_TXN_STATE
    assert b.error(b.add(producer, "a-1")) == error
    assert b.error(b.add(producer, "a-0")) == error
    assert b.error(b.verify(producer, "a-0")) == error
    assert len(b.core.find("t").partitions) == 1


def test_only_the_last_client_ends_a_kept_transaction(b):
    open_prepared(b)
    for _ in range(3):
        b.init(keep=True)
    for epoch in (0, 1, 2, 4):
        assert b.error(b.commit((1, epoch))) == E.PRODUCER_FENCED
    assert b.error(b.init(keep=True, expected=(1, 2))) == E.PRODUCER_FENCED
    assert b.producer(b.init(keep=True, expected=(1, 3))) == (1, 4)
    assert b.producer(b.commit((1, 4))) == (1, 5)


def test_client_that_does_not_keep_it_aborts_it(b):
    open_prepared(b)
    b.init(keep=True)
    assert b.producer(b.init()) == (1, 3)
    assert b.error(b.commit((1, 1))) == E.PRODUCER_FENCED
    assert [(each.commit, each.producer_epoch) for each in b.markers] == [(False, 1)]


@pytest.mark.parametrize("commit", [True, False])
def test_client_of_version_0_keeps_its_epoch(b, commit):
    b.open("a-0", version=0)
    b.init(keep=True)
    assert b.producer((b.commit if commit else b.abort)((1, 1), version=0)) == (1, 1)
    assert b.state is COMPLETE[commit]
    assert [(each.commit, each.producer_epoch) for each in b.markers] == [(commit, 0)]
    assert b.error(b.add((1, 1), "a-0", client_version=0)) == E.NONE


def test_fenced_client_of_version_0(b):
    b.open("a-0", version=0)
    b.init(keep=True)
    assert b.producer(b.init()) == (1, 3)
    assert b.error(b.commit((1, 1), version=0)) == E.PRODUCER_FENCED


# ---- timeouts ----


def test_timeout_of_a_kept_transaction_is_never_shorter_than_before(b):
    open_prepared(b)
    b.advance(600_000)
    b.init(keep=True, timeout_ms=5_000)
    b.advance(600_000)
    assert b.state is S.ONGOING


def test_client_with_two_phase_commit_takes_the_timeout_away(b):
    b.open(timeout_ms=5_000)
    b.init(keep=True, two_phase_commit=True)
    b.advance(600_000)
    b.restart()
    b.advance(600_000)
    assert b.state is S.ONGOING
    assert b.error(b.commit((1, 1))) == E.NONE


@pytest.mark.parametrize("version", [0, 2])
def test_kept_transaction_with_a_timeout_is_aborted(b, version):
    b.open(timeout_ms=5_000, version=version)
    b.advance(3_000)
    assert b.producer(b.init(keep=True, timeout_ms=5_000)) == (1, 1)
    b.advance(2_000)
    assert b.state is S.COMPLETE_ABORT
    assert b.error(b.commit((1, 1), version=version)) in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    assert b.producer(b.init()) == (1, 3)


# ---- exhausted epochs ----


def test_exhausted_epochs_bring_another_id_while_the_transaction_keeps_its_own(b):
    b.store(producer_epoch=LAST)
    b.add((1, LAST), "a-0")
    token = b.init(keep=True)
    assert (b.producer(token), ongoing(b, token)) == ((2, 0), (1, LAST))
    b.restart()
    assert b.producer(b.init(keep=True)) == (2, 1)
    assert b.error(b.commit((1, LAST))) == E.INVALID_PRODUCER_ID_MAPPING
    assert b.producer(b.commit((2, 1))) == (2, 2)
    assert [(each.producer_id, each.producer_epoch) for each in b.markers] == [(1, LAST + 1)]
    assert b.producer(b.commit((2, 1))) == (2, 2)


@pytest.mark.parametrize("commit", [True, False])
def test_epochs_that_run_out_with_the_end_of_a_kept_transaction(b, commit):
    b.store(producer_epoch=LAST - 1)
    b.add((1, LAST - 1), "a-0")
    assert b.producer(b.init(keep=True)) == (1, LAST)
    end = b.commit if commit else b.abort
    assert b.producer(end((1, LAST))) == (2, 0)
    assert b.producer(end((1, LAST))) == (2, 0)
    assert [(each.producer_id, each.producer_epoch) for each in b.markers] == [(1, LAST)]
    assert b.error(b.add((2, 0), "a-0")) == E.NONE


def test_request_without_a_producer_id_is_tried_again(b):
    b.store(producer_epoch=LAST)
    b.add((1, LAST), "a-0")
    assert b.error(b.init(keep=True, spare_producer_id=-1)) == E.CONCURRENT_TRANSACTIONS
    assert not b.core.find("t").is_kept


# ---- appends ----


def test_keeping_that_fails_changes_nothing(b):
    producer = open_prepared(b)
    b.append_error = E.NOT_ENOUGH_REPLICAS
    assert b.error(b.init(keep=True)) == E.COORDINATOR_NOT_AVAILABLE
    b.append_error = E.NONE
    assert b.producer(b.commit(producer)) == (1, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_new_coordinator_completes_a_kept_transaction(b, commit):
    open_prepared(b, "a-0")
    b.init(keep=True)
    b.hold_markers = True
    (b.commit if commit else b.abort)((1, 1))
    b.hold_markers = False
    b.restart()
    assert b.state is COMPLETE[commit]
    assert b.core.find("t").client == (1, 2)
