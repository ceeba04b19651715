"""The classic protocol as transcripts: the time in ms, `#n` a request, and later `#n` its answer."""

from textwrap import dedent


def same(got: str, want: str) -> bool:
    assert got == dedent(want).strip(), got
    return True


def test_two_members_join_get_assignments_and_one_leaves(bench):
    b = bench(group_initial_rebalance_delay_ms=3_000)
    b.join()
    b.advance(1_000)
    b.join()
    b.advance(6_000)
    b.sync("m2", 1)
    b.sync("m1", 1, {"m1": b"t0", "m2": b"t1"})
    b.beat("m2", 1)
    b.leave("m1")
    b.beat("m2", 1)
    b.join("m2")
    assert same(
        b.transcript,
        """
        0 #1 join ?
        1000 #2 join ?
        3000 join timer
        6000 join timer
            #1 joined m1 gen=1 leader=m1 [m1,m2]
            #2 joined m2 gen=1 leader=m1 []
        7000 #3 sync m2 1
        7000 #4 sync m1 1
            append +g
            #4 assigned t0
            #3 assigned t1
        7000 #5 heartbeat m2 1
            #5 ok
        7000 #6 leave m1
            #6 left m1:NONE
        7000 #7 heartbeat m2 1
            #7 REBALANCE_IN_PROGRESS
        7000 #8 join m2
            #8 joined m2 gen=2 leader=m2 [m2]
        """,
    )


def test_member_joins_twice_for_its_id_and_the_join_phase_waits_for_it(bench):
    b = bench()
    b.join(member_id_required=True)
    b.join("m1", member_id_required=True)
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"all"})
    b.join(member_id_required=True)
    b.join("m1")
    b.advance(9_999)
    b.beat("m1", 1)
    b.advance(1)
    assert same(
        b.transcript,
        """
        0 #1 join ?
            #1 MEMBER_ID_REQUIRED m1
        0 #2 join m1
        0 join timer
            #2 joined m1 gen=1 leader=m1 [m1]
        0 #3 sync m1 1
            append +g
            #3 assigned all
        0 #4 join ?
            #4 MEMBER_ID_REQUIRED m3
        0 #5 join m1
        9999 #6 heartbeat m1 1
            #6 REBALANCE_IN_PROGRESS
        10000 session timer m3
            #5 joined m1 gen=2 leader=m1 [m1]
        """,
    )


def test_killed_member_expires_and_its_partitions_are_reassigned(bench):
    b = bench()
    b.stable(2)
    b.lines.clear()
    b.advance(9_000)
    b.beat("m1", 1)
    b.advance(1_000)
    b.beat("m1", 1)
    b.join("m1")
    b.sync("m1", 2, {"m1": b"t0,t1"})
    b.beat("m2", 1)
    assert same(
        b.transcript,
        """
        9000 #5 heartbeat m1 1
            #5 ok
        10000 session timer m2
        10000 #6 heartbeat m1 1
            #6 REBALANCE_IN_PROGRESS
        10000 #7 join m1
            #7 joined m1 gen=2 leader=m1 [m1]
        10000 #8 sync m1 2
            append +g
            #8 assigned t0,t1
        10000 #9 heartbeat m2 1
            #9 UNKNOWN_MEMBER_ID
        """,
    )


def test_static_member_restarts_without_a_rebalance(bench):
    b = bench()
    first, second = b.join(instance="a"), b.join(instance="b")
    b.fire_due_timers()
    assert [b.response(token).member_id for token in (first, second)] == ["m1", "m2"]
    b.sync("m2", 1, group_instance_id="b")
    b.sync("m1", 1, {"m1": b"t0", "m2": b"t1"}, group_instance_id="a")
    b.lines.clear()
    b.join(instance="b")
    b.sync("m3", 1, group_instance_id="b")
    b.beat("m2", 1, group_instance_id="b")
    b.beat("m1", 1, group_instance_id="a")
    b.join(instance="a", may_skip_assignment=True)
    b.join(instance="a")
    assert same(
        b.transcript,
        """
        0 #5 join ? instance=b
            append +g
            #5 joined m3 gen=1 leader=m1 []
        0 #6 sync m3 1
            #6 assigned t1
        0 #7 heartbeat m2 1
            #7 FENCED_INSTANCE_ID
        0 #8 heartbeat m1 1
            #8 ok
        0 #9 join ? instance=a
            append +g
            #9 joined m4 gen=1 leader=m4 [m4,m3] skip
        0 #10 join ? instance=a
            append +g
            #10 joined m5 gen=1 leader=m4 []
        """,
    )


def test_members_that_do_not_rejoin_in_time_are_removed(bench):
    b = bench()
    b.stable(2)
    b.lines.clear()
    b.join()
    b.join("m1")
    for _ in range(4):
        b.advance(7_000)
        b.beat("m2", 1)
    b.advance(2_000)
    assert same(
        b.transcript,
        """
        0 #5 join ?
        0 #6 join m1
        7000 #7 heartbeat m2 1
            #7 REBALANCE_IN_PROGRESS
        10000 session timer m1
        14000 #8 heartbeat m2 1
            #8 REBALANCE_IN_PROGRESS
        21000 #9 heartbeat m2 1
            #9 REBALANCE_IN_PROGRESS
        28000 #10 heartbeat m2 1
            #10 REBALANCE_IN_PROGRESS
        30000 join timer
            #6 joined m1 gen=2 leader=m1 [m1,m3]
            #5 joined m3 gen=2 leader=m1 []
        """,
    )


def test_restart_keeps_members_and_their_assignments(bench):
    b = bench()
    b.stable(2)
    b.commit(17, member_id="m1", generation=1)
    b.restart()
    b.lines.clear()
    b.beat("m1", 1)
    b.sync("m2", 1)
    b.advance(10_000)
    assert b.core.offsets("g")[("t", 0)].offset == 17
    assert same(
        b.transcript,
        """
        0 #6 heartbeat m1 1
            #6 ok
        0 #7 sync m2 1
            #7 assigned m2
        10000 session timer m1
        10000 session timer m2
            append +g
        """,
    )
