"""The bound over what members of all groups hold in memory, and when each part of it is given back."""

import pytest

from tierlog.broker.coordinator.events import Leaver
from tierlog.broker.coordinator.group import MEMBER_OVERHEAD_BYTES
from tierlog.broker.wire.errors import ErrorCode as E

LARGE = (("range", b"x" * 1_000_000),)
ROOM = {"protocols": LARGE, "room_bytes": 2_000_000}


def test_a_member_for_which_there_is_no_room_is_refused(bench):
    b = bench()
    assert b.error(b.join(protocols=LARGE, room_bytes=1_000_000)) == E.GROUP_MAX_SIZE_REACHED
    assert b.core.member_bytes == 0 and b.core.list_groups() == []
    first = b.join(**ROOM)
    assert b.core.member_bytes > 1_000_000
    b.settle()
    assert b.error(first) == E.NONE


def test_a_member_that_joins_again_needs_room_only_for_what_is_new(bench):
    b = bench()
    b.join(**ROOM)
    b.settle()
    again = b.join("m1", protocols=(("range", b"y" * 1_000_000),), room_bytes=0)
    b.settle()
    assert b.error(again) == E.NONE
    assert b.error(b.join("m1", protocols=(("range", b"y" * 1_000_001),), room_bytes=0)) == (
        E.GROUP_MAX_SIZE_REACHED
    )


def test_assignments_need_room_too(bench):
    b = bench()
    b.join()
    b.settle()
    before = b.core.member_bytes
    refused = b.sync("m1", 1, {"m1": b"a" * 1_000}, room_bytes=999)
    assert b.error(refused) == E.GROUP_MAX_SIZE_REACHED
    assert b.error(b.sync("m1", 1, {"m1": b"a" * 1_000}, room_bytes=1_000)) == E.NONE
    assert b.core.member_bytes == before + 1_000


@pytest.mark.parametrize("version_4", [True, False])
def test_a_member_whose_connection_closed_gives_its_memory_back_with_its_session(bench, version_4):
    b = bench(group_initial_rebalance_delay_ms=3_000)
    b.join(**ROOM, member_id_required=version_4)
    assert b.core.member_bytes >= MEMBER_OVERHEAD_BYTES
    b.advance(400_000)  # nobody syncs or sends heartbeats
    assert b.core.member_bytes == 0


def test_a_member_that_leaves_gives_its_memory_back(bench):
    b = bench()
    b.join(**ROOM, instance="i")
    b.settle()
    b.sync("m1", 1, {"m1": b"mine"})
    b.leave(Leaver("", "i"))
    assert b.core.member_bytes == 0


def test_a_restarted_coordinator_counts_what_it_loaded(bench):
    b = bench()
    b.join(**ROOM)
    b.settle()
    b.sync("m1", 1, {"m1": b"mine"})
    held = b.core.member_bytes
    b.restart()
    assert b.core.member_bytes == held
