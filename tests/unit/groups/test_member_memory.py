"""The memory limit for members of all groups, and when memory is released."""

import tracemalloc

import pytest

from tierlog.broker.groups.core.classic.group import MEMBER_OVERHEAD_BYTES, PROTOCOL_OVERHEAD_BYTES
from tierlog.broker.groups.core.events import Leaver
from tierlog.protocol.errors import ErrorCode as E

LARGE = (("range", b"x" * 1_000_000),)
ENOUGH = {"protocols": LARGE, "free_bytes": 2_000_000}


def test_member_over_the_memory_limit_is_rejected(bench):
    b = bench()
    assert b.error(b.join(protocols=LARGE, free_bytes=1_000_000)) == E.COORDINATOR_NOT_AVAILABLE
    assert b.core.member_bytes == 0 and b.core.list_groups() == []
    first = b.join(**ENOUGH)
    assert b.core.member_bytes > 1_000_000
    b.fire_due_timers()
    assert b.error(first) == E.NONE


def test_many_protocols_with_short_names_count_as_the_memory_they_take(bench):
    b = bench()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        b.join(protocols=tuple((f"{number}", bytes(2)) for number in range(1_000)))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert b.core.member_bytes > held / 2


@pytest.mark.parametrize("version_4", [True, False])
def test_names_of_a_group_count_as_memory_of_its_members(bench, version_4):
    b = bench()
    name, kind = "g" * 30_000, "k" * 20_000
    refused = b.join(group=name, protocol_type=kind, free_bytes=51_000, member_id_required=version_4)
    assert b.error(refused) == E.COORDINATOR_NOT_AVAILABLE
    assert b.core.member_bytes == 0
    b.join(group=name, protocol_type=kind, free_bytes=60_000, member_id_required=version_4)
    assert b.core.member_bytes > (30_000 if version_4 else 50_000)
    b.advance(400_000)  # no member syncs or sends heartbeats
    assert b.core.member_bytes == 0


def test_join_costs_the_same_in_a_large_group(bench):
    b = bench()
    b.stable()  # m1 does not join again, so that all others wait
    b.core.check = lambda: None  # it looks at every member
    hashed = []

    class Name(str):
        def __hash__(self):
            hashed.append(self)
            return super().__hash__()

    def cost():
        hashed.clear()
        b.join(protocols=((Name("range"), b""),))
        return len(hashed)

    first = cost()
    assert [cost() for _ in range(20)] == [first] * 20


def test_rejoining_member_needs_memory_only_for_what_is_new(bench):
    b = bench()
    b.join(**ENOUGH)
    b.fire_due_timers()
    again = b.join("m1", protocols=(("range", b"y" * 1_000_000),), free_bytes=0)
    b.fire_due_timers()
    assert b.error(again) == E.NONE
    assert b.error(b.join("m1", protocols=(("range", b"y" * 1_000_001),), free_bytes=0)) == (
        E.COORDINATOR_NOT_AVAILABLE
    )
    assert b.error(b.beat("m1", 2)) == E.NONE  # it is a member all the same


def test_restarted_static_member_needs_no_memory(bench):
    b = bench()
    b.join(**ENOUGH, instance="i")
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"mine"})
    again = b.join(protocols=LARGE, instance="i", free_bytes=0)
    b.fire_due_timers()
    assert b.error(again) == E.NONE


def test_pending_member_that_joins_needs_no_memory_for_its_id(bench):
    b = bench()
    b.join(member_id_required=True)
    again = b.join("m1", protocols=(("range", b""),), free_bytes=PROTOCOL_OVERHEAD_BYTES + len("range"))
    b.fire_due_timers()
    assert b.error(again) == E.NONE


def test_assignments_need_memory(bench):
    b = bench()
    b.join()
    b.fire_due_timers()
    before = b.core.member_bytes
    refused = b.sync("m1", 1, {"m1": b"a" * 1_000}, free_bytes=999)
    assert b.error(refused) == E.COORDINATOR_NOT_AVAILABLE
    assert b.error(b.sync("m1", 1, {"m1": b"a" * 1_000}, free_bytes=1_000)) == E.NONE
    assert b.core.member_bytes == before + 1_000


@pytest.mark.parametrize("version_4", [True, False])
def test_member_whose_connection_closed_releases_its_memory_with_its_session(bench, version_4):
    b = bench(group_initial_rebalance_delay_ms=3_000)
    b.join(**ENOUGH, member_id_required=version_4)
    assert b.core.member_bytes >= MEMBER_OVERHEAD_BYTES
    b.advance(400_000)  # no member syncs or sends heartbeats
    assert b.core.member_bytes == 0


@pytest.mark.parametrize("version_4", [True, False])
def test_silent_new_member_holds_memory_for_a_minute_at_most(bench, version_4):
    b = bench()
    longest = {"session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 2**31 - 1}
    b.join(**ENOUGH, **longest, member_id_required=version_4)
    b.fire_due_timers()
    b.advance(b.settings.new_member_response_timeout_ms)
    assert b.core.member_bytes == 0


def test_member_has_its_session_timeout_after_its_first_request(bench):
    b = bench()
    b.join(**ENOUGH, session_timeout_ms=1_800_000)
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"mine"})
    b.advance(1_799_000)
    assert b.error(b.beat("m1", 1)) == E.NONE


def test_member_that_leaves_releases_its_memory(bench):
    b = bench()
    b.join(**ENOUGH, instance="i")
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"mine"})
    b.leave(Leaver("", "i"))
    assert b.core.member_bytes == 0


def test_restarted_coordinator_counts_loaded_members(bench):
    b = bench()
    b.join(**ENOUGH)
    b.fire_due_timers()
    b.sync("m1", 1, {"m1": b"mine"})
    held = b.core.member_bytes
    b.restart()
    assert b.core.member_bytes == held
