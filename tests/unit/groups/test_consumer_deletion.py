"""Deletion of consumer groups while they compute an assignment, and later groups with the same id."""

import pytest

from tierlog.broker.groups.core.turn import ConsumerSettings
from tierlog.protocol.errors import ErrorCode as E


def test_restored_group_assigns_although_its_timer_was_cancelled(bench):
    b = bench(consumer=ConsumerSettings(assignment_interval_ms=1_000))
    b.consume("a")
    b.consume("b")  # waits for the end of the interval
    b.consume("a", -1)
    b.consume("b", -1)
    assert b.error(fail_deletion(b)) == E.COORDINATOR_NOT_AVAILABLE
    joining = b.consume("c")
    b.advance(1_000)
    assert b.text_of(b.response(joining).assignment) == "t0 t1 t2"


def test_restored_group_assigns_although_a_computation_ended_while_it_was_deleted(bench):
    b = bench()
    b.hold_computations = True
    b.consume("a")
    b.consume("a", -1)
    b.hold_appends = True
    deletion = b.delete()
    b.compute()
    b.hold_appends = False
    b.release(E.NOT_ENOUGH_REPLICAS)
    assert b.error(deletion) == E.COORDINATOR_NOT_AVAILABLE
    joining = b.consume("c")
    b.compute()
    assert b.text_of(b.response(joining).assignment) == "t0 t1 t2"


def test_assignment_of_a_deleted_group_does_not_count_for_the_next_one(bench):
    b = bench()
    b.hold_computations = True
    b.consume("a")
    b.consume("a", -1)
    assert b.error(b.delete()) == E.NONE
    joining = b.consume("c")  # a new group, in the same epoch
    b.compute()
    assert b.text_of(b.response(joining).assignment) == "t0 t1 t2"


@pytest.mark.parametrize("moves", [False, True])
def test_records_of_a_deleted_group_do_not_come_back_when_a_classic_group_took_its_place(bench, moves):
    b = bench()
    b.consume("a")
    b.append_error = E.NOT_ENOUGH_REPLICAS
    b.consume("a", -1)  # the records of a remain in the log
    b.append_error = E.NONE
    b.hold_appends = True
    b.delete()
    b.join_cooperative()
    b.fire_due_timers()
    b.hold_appends = False
    b.release(E.NOT_ENOUGH_REPLICAS)
    b.sync("m1", 1, {"m1": b""})
    b.leave("m1")
    if moves:
        b.restart()
    b.consume("c")  # deletes the record of the classic group
    b.compact()
    b.restart()
    assert [member.member_id for member in b.core.describe_consumer("g").members] == ["c"]


def fail_deletion(b):
    b.hold_appends = True
    deletion = b.delete()
    b.hold_appends = False
    b.release(E.NOT_ENOUGH_REPLICAS)
    return deletion
