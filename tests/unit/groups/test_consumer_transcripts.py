"""The consumer protocol as transcripts: the time in ms, `#n` a request, and later `#n` its answer."""

from textwrap import dedent

from tierlog.broker.groups.core.turn import ConsumerSettings
from tierlog.protocol.errors import ErrorCode as E


def same(got: str, want: str) -> bool:
    assert got == dedent(want).strip(), got
    return True


def test_second_member_gets_partitions_once_the_first_has_given_them_up(bench):
    b = bench()
    b.consume("a")
    b.consume("b")
    b.consume("a", 2)
    b.consume("b", 3)
    b.consume("a", 2, owned="t0 t1")
    b.consume("b", 3)
    b.consume("a", 3)
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume b 0 topics=t
            append +member/g/b, +group/g, +current/g/b
            append +target/g/a, +target/g/b, +targets/g, +current/g/b
            #2 member b epoch=3 []
        0 #3 consume a 2
            append +current/g/a
            #3 member a epoch=2 [t0 t1]
        0 #4 consume b 3
            #4 member b epoch=3
        0 #5 consume a 2 owned=[t0 t1]
            append +current/g/a
            #5 member a epoch=3
        0 #6 consume b 3
            append +current/g/b
            #6 member b epoch=3 [t2]
        0 #7 consume a 3
            #7 member a epoch=3
        """,
    )


def test_assignment_whose_response_may_be_lost_is_repeated_until_it_is_confirmed(bench):
    """librdkafka 2.16 leaves the fields out after a lost response, too."""
    b = bench()
    b.consume("a")
    b.consume("b")
    b.consume("a", 2)
    b.consume("a", 2)
    b.consume("a", 2, owned="t0 t1")
    b.consume("a", 3)
    b.consume("b", 3)
    b.consume("b", 3)
    b.consume("b", 3, owned="t2")
    b.consume("b", 3)
    shown = [line for line in b.transcript.splitlines() if " member " in line]
    assert same(
        "\n".join(line.strip() for line in shown[2:]),
        """
        #3 member a epoch=2 [t0 t1]
        #4 member a epoch=2 [t0 t1]
        #5 member a epoch=3
        #6 member a epoch=3
        #7 member b epoch=3 [t2]
        #8 member b epoch=3 [t2]
        #9 member b epoch=3
        #10 member b epoch=3
        """,
    )


def test_unconfirmed_assignment_is_repeated_in_the_next_epoch(bench):
    """The response with the assignment was lost, and the next one brings another epoch."""
    b = bench()
    b.consume("a")
    b.consume("b")
    b.consume("a", 2)
    b.consume("a", 2, owned="t0 t1")
    lost = b.response(b.consume("b", 3))
    b.consume("c")
    next_one = b.response(b.consume("b", 3))
    assert (lost.member_epoch, next_one.member_epoch) == (3, 4)
    assert next_one.assignment == lost.assignment == {b.topics["t"]: {2}}


def test_late_copy_of_a_heartbeat_of_the_previous_epoch_gives_nothing_up(bench):
    b = bench()
    b.consume("a")
    b.consume("b")
    b.consume("a", 2)
    b.consume("a", 2, owned="t0 t1")
    b.consume("c")
    b.consume("a", 2, owned="")
    b.consume("c", 4)
    b.consume("a", 3, owned="t0")
    b.consume("c", 4)
    assert same(
        b.transcript[b.transcript.index("0 #5") :],
        """
        0 #5 consume c 0 topics=t
            append +member/g/c, +group/g, +current/g/c
            append +target/g/a, +target/g/c, +targets/g, +current/g/c
            #5 member c epoch=4 []
        0 #6 consume a 2 owned=[]
            append +current/g/a
            #6 member a epoch=3 [t0]
        0 #7 consume c 4
            #7 member c epoch=4
        0 #8 consume a 3 owned=[t0]
            append +current/g/a
            #8 member a epoch=4
        0 #9 consume c 4
            append +current/g/c
            #9 member c epoch=4 [t1]
        """,
    )


def test_member_that_does_not_give_its_partitions_up_is_removed(bench):
    b = bench()
    b.consume("a")
    b.consume("b")
    b.consume("a", 2)
    b.advance(29_999)
    b.consume("a", 2, owned="t0 t1 t2")
    b.advance(1)
    b.consume("b", 3)
    b.consume("a", 2, owned="t0 t1")
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume b 0 topics=t
            append +member/g/b, +group/g, +current/g/b
            append +target/g/a, +target/g/b, +targets/g, +current/g/b
            #2 member b epoch=3 []
        0 #3 consume a 2
            append +current/g/a
            #3 member a epoch=2 [t0 t1]
        29999 #4 consume a 2 owned=[t0 t1 t2]
            #4 member a epoch=2 [t0 t1]
        30000 revocation timer a
            append -current/g/a, -target/g/a, -member/g/a, +group/g
            append +target/g/b, +targets/g
        30000 #5 consume b 3
            append +current/g/b
            #5 member b epoch=4 [t0 t1 t2]
        30000 #6 consume a 2 owned=[t0 t1]
            #6 UNKNOWN_MEMBER_ID
        """,
    )


def test_static_member_restarts_without_a_rebalance(bench):
    b = bench()
    b.consume("a", instance_id="i")
    b.consume("a", -2, instance_id="i")
    b.consume("b", instance_id="i")
    b.consume("a", 2, instance_id="i")
    b.advance(45_000)
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 instance_id=i topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume a -2 instance_id=i
            append +current/g/a
            #2 member a epoch=-2
        0 #3 consume b 0 instance_id=i topics=t
            append -current/g/a, -target/g/a, -member/g/a, +member/g/b, +target/g/b, +current/g/b
            #3 member b epoch=2 [t0 t1 t2]
        0 #4 consume a 2 instance_id=i
            #4 FENCED_INSTANCE_ID
        45000 session timer b
            append -current/g/b, -target/g/b, -member/g/b, +group/g
        """,
    )


def test_members_that_start_together_share_one_target_assignment(bench):
    b = bench(consumer=ConsumerSettings(assignment_interval_ms=1_000))
    b.consume("a")
    b.consume("b")
    b.consume("c")
    b.consume("a", 2)
    b.advance(1_000)
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume b 0 topics=t
            append +member/g/b, +group/g, +current/g/b
        0 #3 consume c 0 topics=t
            append +member/g/c, +group/g, +current/g/c
        0 #4 consume a 2
            #4 member a epoch=2
        1000 assignment timer
            append +target/g/a, +target/g/b, +target/g/c, +targets/g, +current/g/b
            append +current/g/c
            #2 member b epoch=4 []
            #3 member c epoch=4 []
        """,
    )


def test_regular_expression_is_resolved_and_then_assigned(bench):
    b = bench()
    b.consume("a", subscribed_regex="[tu]")
    b.consume("a", 2)
    b.consume("a", 3, subscribed_regex="")
    b.consume("a", 3, owned="")
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 subscribed_regex=[tu]
            append +member/g/a, +group/g, +current/g/a
            append +regex/g/[tu], +group/g
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 []
            append +target/g/a, +targets/g
        0 #2 consume a 2
            append +current/g/a
            #2 member a epoch=3 [t0 t1 t2 u0 u1 u2]
        0 #3 consume a 3 subscribed_regex=
            append -regex/g/[tu], +member/g/a, +group/g
            append +target/g/a, +targets/g, +current/g/a
            #3 member a epoch=3 []
        0 #4 consume a 3 owned=[]
            append +current/g/a
            #4 member a epoch=4
        """,
    )


def test_new_topic_is_matched_with_regular_expressions_ten_seconds_after_the_last_time(bench):
    b = bench()
    b.consume("a", subscribed_regex="[tx]")
    b.consume("a", 2)
    b.topics["x"], b.partitions["x"] = b.new_id(), 1
    b.send_topics()
    b.advance(9_999)
    b.consume("a", 3)
    b.advance(1)
    b.consume("a", 3)
    b.consume("a", 3)
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 subscribed_regex=[tx]
            append +member/g/a, +group/g, +current/g/a
            append +regex/g/[tx], +group/g
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 []
            append +target/g/a, +targets/g
        0 #2 consume a 2
            append +current/g/a
            #2 member a epoch=3 [t0 t1 t2]
        9999 #3 consume a 3
            #3 member a epoch=3
        10000 #4 consume a 3
            #4 member a epoch=3
            append +regex/g/[tx], +group/g
            append +target/g/a, +targets/g
        10000 #5 consume a 3
            append +current/g/a
            #5 member a epoch=4 [t0 t1 t2 x0]
        """,
    )


def test_topic_with_more_partitions_is_assigned_again(bench):
    b = bench()
    b.consume("a")
    b.partitions["t"] = 5
    b.send_topics()
    b.consume("a", 2)
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume a 2
            append +group/g
            append +target/g/a, +targets/g, +current/g/a
            #2 member a epoch=3 [t0 t1 t2 t3 t4]
        """,
    )


def test_responses_wait_for_the_log_and_a_failed_append_is_written_again(bench):
    b = bench()
    b.hold_appends = True
    b.consume("a")
    b.release()
    b.release()
    b.consume("b")
    b.release(E.NOT_ENOUGH_REPLICAS)
    b.consume("b", owned="")
    b.hold_appends = False
    b.release()
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 consume b 0 topics=t
            append +member/g/b, +group/g, +current/g/b
            append +target/g/a, +target/g/b, +targets/g, +current/g/b
            #2 COORDINATOR_NOT_AVAILABLE
        0 #3 consume b 0 topics=t
            append +member/g/b, +group/g, +target/g/a, +target/g/b, +targets/g, +current/g/b
            #3 member b epoch=3 []
        """,
    )


def test_last_member_leaves_and_the_group_is_deleted(bench):
    b = bench()
    b.consume("a")
    b.delete()
    b.consume("a", -1)
    b.delete()
    assert b.core.list_groups() == []
    assert same(
        b.transcript,
        """
        0 #1 consume a 0 topics=t
            append +member/g/a, +group/g, +current/g/a
            append +target/g/a, +targets/g, +current/g/a
            #1 member a epoch=2 [t0 t1 t2]
        0 #2 delete g
            #2 NON_EMPTY_GROUP
        0 #3 consume a -1
            append -current/g/a, -target/g/a, -member/g/a, +group/g
            #3 member a epoch=-1
        0 #4 delete g
            append -targets/g, -group/g
            #4 ok
        """,
    )
