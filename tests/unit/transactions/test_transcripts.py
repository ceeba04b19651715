"""The transaction coordinator as transcripts: the time in ms, `#n` a request, and later `#n` its answer."""

from textwrap import dedent

from tierlog.protocol.errors import ErrorCode as E


def same(got: str, want: str) -> bool:
    assert got == dedent(want).strip(), got
    return True


def test_version_2_transactions_have_an_epoch_each(bench):
    b = bench()
    b.init()
    b.add((1, 0), "a-0", "b-1")
    b.add((1, 0), "a-1")
    b.add((1, 0), "a-0")
    b.commit((1, 0))
    b.add((1, 1), "a-0")
    b.abort((1, 1))
    assert same(
        b.transcript,
        """
        0 #1 init t
            append t Empty 1/0 -
            #1 1/0
        0 #2 add t 1/0 a-0 b-1
            append t Ongoing 1/0 a-0,b-1
            #2 ok
        0 #3 add t 1/0 a-1
            append t Ongoing 1/0 a-0,a-1,b-1
            #3 ok
        0 #4 add t 1/0 a-0
            #4 ok
        0 #5 commit t 1/0 v2
            append t PrepareCommit 1/1 a-0,a-1,b-1
            #5 1/1
            markers commit t 1/1 a-0,a-1,b-1
            append t CompleteCommit 1/1 -
        0 #6 add t 1/1 a-0
            append t Ongoing 1/1 a-0
            #6 ok
        0 #7 abort t 1/1 v2
            append t PrepareAbort 1/2 a-0
            #7 1/2
            markers abort t 1/2 a-0
            append t CompleteAbort 1/2 -
        """,
    )


def test_version_0_transactions_share_the_epoch_of_their_producer(bench):
    b = bench()
    b.init()
    b.add((1, 0), "a-0", client_version=0)
    b.commit((1, 0), version=0)
    b.add((1, 0), "a-0", client_version=0)
    b.abort((1, 0), version=0)
    assert same(
        b.transcript,
        """
        0 #1 init t
            append t Empty 1/0 -
            #1 1/0
        0 #2 add t 1/0 a-0
            append t Ongoing 1/0 a-0
            #2 ok
        0 #3 commit t 1/0 v0
            append t PrepareCommit 1/0 a-0
            #3 1/0
            markers commit t 1/0 a-0
            append t CompleteCommit 1/0 -
        0 #4 add t 1/0 a-0
            append t Ongoing 1/0 a-0
            #4 ok
        0 #5 abort t 1/0 v0
            append t PrepareAbort 1/0 a-0
            #5 1/0
            markers abort t 1/0 a-0
            append t CompleteAbort 1/0 -
        """,
    )


def test_new_producer_aborts_the_transaction_of_the_old_one(bench):
    b = bench()
    b.open("a-0")
    b.lines.clear()
    b.hold_markers = True
    b.init()
    b.add((1, 0), "a-1")
    b.write_markers()
    assert same(
        b.transcript,
        """
        0 #3 init t
            append t PrepareAbort 1/1 a-0
            markers abort t 1/1 a-0
        0 #4 add t 1/0 a-1
            append t CompleteAbort 1/1 -
            append t Empty 1/2 -
            #3 1/2
            #4 PRODUCER_FENCED
        """,
    )


def test_transaction_is_aborted_after_its_timeout(bench):
    b = bench()
    b.init(timeout_ms=5_000)
    b.advance(1_000)
    b.add((1, 0), "a-0")
    b.advance(3_000)
    b.add((1, 0), "a-1")
    b.advance(2_000)
    b.commit((1, 0))
    b.add((1, 0), "a-0")
    b.abort((1, 0))
    assert same(
        b.transcript,
        """
        0 #1 init t
            append t Empty 1/0 -
            #1 1/0
        1000 #2 add t 1/0 a-0
            append t Ongoing 1/0 a-0
            #2 ok
        4000 #3 add t 1/0 a-1
            append t Ongoing 1/0 a-0,a-1
            #3 ok
        6000 transaction timer t
            append t PrepareAbort 1/1 a-0,a-1
            markers abort t 1/1 a-0,a-1
            append t CompleteAbort 1/1 -
        6000 #4 commit t 1/0 v2
            #4 INVALID_TXN_STATE
        6000 #5 add t 1/0 a-0
            #5 PRODUCER_FENCED
        6000 #6 abort t 1/0 v2
            #6 1/1
        """,
    )


def test_exhausted_producer_gets_another_id_with_the_end_of_its_transaction(bench):
    b = bench()
    b.store(producer_epoch=32_766)
    b.add((1, 32_766), "a-0")
    b.hold_markers = True
    b.commit((1, 32_766))
    b.add((2, 0), "a-0")
    b.write_markers()
    b.commit((1, 32_766))
    assert same(
        b.transcript,
        """
        0 #1 add t 1/32766 a-0
            append t Ongoing 1/32766 a-0
            #1 ok
        0 #2 commit t 1/32766 v2
            append t PrepareCommit 1/32767 a-0 next=2/0
            #2 2/0
            markers commit t 1/32767 a-0
        0 #3 add t 2/0 a-0
            append t CompleteCommit 2/0 -
            append t Ongoing 2/0 a-0
            #3 ok
        0 #4 commit t 1/32766 v2
            #4 INVALID_PRODUCER_ID_MAPPING
        """,
    )


def test_requests_wait_for_markers_and_time_out(bench):
    b = bench()
    b.open("a-0")
    b.lines.clear()
    b.hold_markers = True
    b.commit((1, 0))
    b.advance(500)
    b.add((1, 1), "a-0")
    b.advance(1_000)
    b.commit((1, 0))
    b.advance(1_000)
    b.write_markers()
    b.commit((1, 0))
    assert same(
        b.transcript,
        """
        0 #3 commit t 1/0 v2
            append t PrepareCommit 1/1 a-0
            #3 1/1
            markers commit t 1/1 a-0
        500 #4 add t 1/1 a-0
        1500 #5 commit t 1/0 v2
        2500 waiting timer t
            #4 CONCURRENT_TRANSACTIONS
            #5 CONCURRENT_TRANSACTIONS
            append t CompleteCommit 1/1 -
        2500 #6 commit t 1/0 v2
            #6 1/1
        """,
    )


def test_late_commit_is_answered_before_it_takes_effect(bench):
    b = bench()
    b.open("a-0")
    b.lines.clear()
    b.hold_appends = True
    b.commit((1, 0))
    b.late()
    b.commit((1, 0))
    b.hold_appends = False
    b.release()
    assert same(
        b.transcript,
        """
        0 #3 commit t 1/0 v2
            append t PrepareCommit 1/1 a-0
            late
            #3 COORDINATOR_NOT_AVAILABLE
        0 #4 commit t 1/0 v2
            markers commit t 1/1 a-0
            append t CompleteCommit 1/1 -
            #4 1/1
        """,
    )


def test_late_commit_that_fails_leaves_the_transaction_open(bench):
    b = bench()
    b.open("a-0")
    b.lines.clear()
    b.hold_appends = True
    b.commit((1, 0))
    b.late()
    b.release(E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    b.hold_appends = False
    b.abort((1, 0))
    assert same(
        b.transcript,
        """
        0 #3 commit t 1/0 v2
            append t PrepareCommit 1/1 a-0
            late
            #3 COORDINATOR_NOT_AVAILABLE
        0 #4 abort t 1/0 v2
            append t PrepareAbort 1/1 a-0
            #4 1/1
            markers abort t 1/1 a-0
            append t CompleteAbort 1/1 -
        """,
    )


def test_end_that_is_not_durable_is_tried_again_without_other_markers(bench):
    b = bench()
    b.open("a-0")
    b.lines.clear()
    b.hold_markers = True
    b.commit((1, 0))
    b.append_error = E.NOT_ENOUGH_REPLICAS
    b.write_markers()
    b.append_error = E.NONE
    b.hold_markers = False
    b.advance(10_000)
    assert same(
        b.transcript,
        """
        0 #3 commit t 1/0 v2
            append t PrepareCommit 1/1 a-0
            #3 1/1
            markers commit t 1/1 a-0
            append t CompleteCommit 1/1 -
        500 retry timer t
            append t CompleteCommit 1/1 -
        """,
    )


def test_new_coordinator_writes_the_markers_of_a_prepared_transaction(bench):
    b = bench()
    b.open("a-0", "b-2")
    b.hold_markers = True
    b.commit((1, 0))
    b.lines.clear()
    b.hold_markers = False
    b.restart()
    b.commit((1, 0))
    assert same(
        b.transcript,
        """
        0 restart
            markers commit t 1/1 a-0,b-2
            append t CompleteCommit 1/1 -
        0 #4 commit t 1/0 v2
            #4 1/1
        """,
    )
