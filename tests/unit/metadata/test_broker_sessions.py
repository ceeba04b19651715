"""Broker sessions and leases: when a broker is fenced, and that no lease outlives a session."""

from typing import Any

import pytest

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.protocol.errors import ErrorCode as E

World = Any
SESSION_MS = 3000


@pytest.fixture
def sessions() -> BrokerSessions:
    return BrokerSessions(SESSION_MS)


@pytest.fixture
def pair(world: World) -> World:
    world.brokers(1, 2)
    world.create("t", assignments=((0, (1, 2)),))
    return world


def beat(world: World, broker_id: int, **more: Any) -> c.Heartbeat:
    values = {"broker_epoch": world.image.brokers[broker_id].broker_epoch, "image_index": world.image.index}
    return c.Heartbeat(broker_id=broker_id, **(values | more))


def fenced(commands: tuple[c.FenceBroker, ...]) -> list[int]:
    assert all(command.fenced for command in commands)
    return [command.broker_id for command in commands]


def test_new_leader_gives_every_broker_a_full_session(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 10_000)
    assert sessions.fence_expired(pair.image, 12_999) == ()
    assert fenced(sessions.fence_expired(pair.image, 13_000)) == [1, 2]


def test_heartbeat_renews_the_session(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    heard = sessions.heartbeat(pair.image, beat(pair, 2), 2000)
    assert (heard.reply.error, heard.reply.fenced, heard.command) == (E.NONE, False, None)
    assert fenced(sessions.fence_expired(pair.image, 3000)) == [1]
    assert fenced(sessions.fence_expired(pair.image, 5000)) == [1, 2]  # until the image shows it


def test_lease_ends_before_the_session_of_the_same_heartbeat(pair: World, sessions: BrokerSessions) -> None:
    sent, received = 1990, 2000
    lease_ms = sessions.heartbeat(pair.image, beat(pair, 1), received).reply.lease_ms
    assert lease_ms > 0
    assert sessions.fence_expired(pair.image, sent + lease_ms) == ()


def test_broker_to_be_fenced_gets_no_lease(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    assert fenced(sessions.fence_expired(pair.image, 3000)) == [1, 2]
    late = sessions.heartbeat(pair.image, beat(pair, 1), 3001)
    assert (late.reply.fenced, late.reply.lease_ms) == (False, 0)
    assert 1 in fenced(sessions.fence_expired(pair.image, 3002))
    pair.fence(1)
    back = sessions.heartbeat(pair.image, beat(pair, 1), 3003)
    assert (back.reply.lease_ms, back.command.fenced) == (0, False)
    pair.do(back.command)
    assert sessions.reply(pair.image, beat(pair, 1)).lease_ms > 0
    assert fenced(sessions.fence_expired(pair.image, 3004)) == [2]


def test_session_of_a_process_that_ended_expires_at_once(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    sessions.on_process_ended(1, pair.image.brokers[1].broker_epoch)
    assert fenced(sessions.fence_expired(pair.image, 5)) == [1]


def test_session_of_a_process_that_ended_is_never_renewed(pair: World, sessions: BrokerSessions) -> None:
    """By a delayed heartbeat, or a pause of the leader."""
    sessions.on_leadership_gained(pair.image, 0)
    late = beat(pair, 1)
    sessions.on_process_ended(1, late.broker_epoch)
    assert sessions.heartbeat(pair.image, late, 1000).reply.lease_ms == 0
    sessions.extend_all(5000)
    assert sessions.in_session(pair.image, 1000) == {2}
    assert fenced(sessions.fence_expired(pair.image, 1000)) == [1]
    pair.fence(1)
    assert sessions.heartbeat(pair.image, beat(pair, 1), 2000).command is None, "it is not unfenced again"
    assert sessions.in_session(pair.image, 2000) == {2}


def test_notice_of_an_earlier_process_is_ignored(pair: World, sessions: BrokerSessions) -> None:
    old = beat(pair, 1)
    pair.register(1, incarnation=11)
    sessions.on_leadership_gained(pair.image, 0)
    sessions.on_process_ended(1, old.broker_epoch)
    assert sessions.fence_expired(pair.image, 5) == ()
    assert sessions.heartbeat(pair.image, old, 2999).reply.error == E.STALE_BROKER_EPOCH
    assert fenced(sessions.fence_expired(pair.image, 3000)) == [1, 2]
    stranger = c.Heartbeat(broker_id=9, broker_epoch=1, image_index=0)
    assert sessions.heartbeat(pair.image, stranger, 0).reply.error == E.BROKER_ID_NOT_REGISTERED


def test_broker_that_registers_later_has_a_full_session(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    pair.brokers(3)
    assert 3 not in fenced(sessions.fence_expired(pair.image, 3000))
    assert 3 not in fenced(sessions.fence_expired(pair.image, 5999))
    assert 3 in fenced(sessions.fence_expired(pair.image, 6000))


def test_broker_is_unfenced_once_its_image_has_its_registration(
    world: World, sessions: BrokerSessions
) -> None:
    world.register(1, start_fenced=True)
    behind = beat(world, 1, image_index=world.image.index - 1)
    assert sessions.heartbeat(world.image, behind, 0).command is None
    assert sessions.unfence_command(world.image, beat(world, 1, want_fence=True)) is None
    ready = sessions.heartbeat(world.image, beat(world, 1), 0)
    assert (ready.reply.fenced, ready.reply.lease_ms) == (True, 0)
    assert ready.command == sessions.unfence_command(world.image, beat(world, 1))
    world.do(ready.command)
    assert not sessions.reply(world.image, beat(world, 1)).fenced


def test_fenced_broker_is_unfenced_once_its_image_shows_the_fencing(
    pair: World, sessions: BrokerSessions
) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    before = pair.image.index
    sessions.fence_expired(pair.image, 3000)
    pair.fence(1)
    stale = beat(pair, 1, image_index=before)  # in that image it is still the leader
    assert sessions.heartbeat(pair.image, stale, 3001).command is None
    pair.brokers(3)
    assert sessions.heartbeat(pair.image, beat(pair, 1, image_index=before + 1), 3002).command is not None


def test_new_leader_unfences_a_broker_once_its_image_is_as_recent(
    pair: World, sessions: BrokerSessions
) -> None:
    pair.fence(1)
    sessions.on_leadership_gained(pair.image, 0)
    assert sessions.unfence_command(pair.image, beat(pair, 1, image_index=pair.image.index - 1)) is None
    assert sessions.unfence_command(pair.image, beat(pair, 1)) is not None


def test_late_heartbeat_with_want_fence_does_not_fence_an_active_broker(
    pair: World, sessions: BrokerSessions
) -> None:
    heard = sessions.heartbeat(pair.image, beat(pair, 1, want_fence=True), 0)
    assert (heard.command, heard.reply.fenced) == (None, False)


def test_controlled_shutdown_ends_when_no_broker_can_take_over(pair: World, sessions: BrokerSessions) -> None:
    pair.in_sync(1)
    first = sessions.heartbeat(pair.image, beat(pair, 1, want_stop=True), 0)
    assert isinstance(first.command, c.StopBroker)
    pair.do(first.command)
    again = sessions.heartbeat(pair.image, beat(pair, 1, want_stop=True), 0)
    assert (again.reply.may_stop, type(again.command)) == (False, c.StopBroker)
    pair.in_sync(1, 2)
    pair.do(again.command)
    last = sessions.heartbeat(pair.image, beat(pair, 1, want_stop=True), 0)
    assert (last.reply.may_stop, last.command.fenced) == (True, True)
    assert pair.partition().leader == 2
    pair.do(last.command)  # fenced before its session ends; a stopping broker is not unfenced
    assert sessions.heartbeat(pair.image, beat(pair, 1), 0).command is None
    assert sessions.reply(pair.image, beat(pair, 1, want_stop=True)).may_stop


def test_pause_of_the_leader_expires_no_session(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    sessions.extend_all(4000)
    assert sessions.fence_expired(pair.image, 6999) == ()
    assert fenced(sessions.fence_expired(pair.image, 7000)) == [1, 2]


def test_valid_session_blocks_the_registration_of_another_process(
    pair: World, sessions: BrokerSessions
) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    assert sessions.in_session(pair.image, 2999) == {
        1,
        2,
    }  # a new leader has heard from no broker, and assumes a session of each
    sessions.heartbeat(pair.image, beat(pair, 2), 2000)
    assert sessions.in_session(pair.image, 3000) == {2}
    sessions.on_process_ended(2, pair.image.brokers[2].broker_epoch)
    assert sessions.in_session(pair.image, 3500) == frozenset()


def test_fenced_broker_with_heartbeats_blocks_another_process(pair: World, sessions: BrokerSessions) -> None:
    """It is still opening its logs."""
    sessions.on_leadership_gained(pair.image, 0)
    pair.fence(1)
    assert sessions.in_session(pair.image, 1000) == {2}, "a new leader has not heard of it"
    for now_ms in range(1000, 20_000, 1000):
        sessions.heartbeat(pair.image, beat(pair, 1, want_fence=True), now_ms)
        sessions.heartbeat(pair.image, beat(pair, 2), now_ms)
        assert sessions.in_session(pair.image, now_ms + 999) == {1, 2}
    assert sessions.in_session(pair.image, 22_000) == frozenset()


def test_new_process_has_a_full_session(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    pair.register(2, incarnation=22, start_fenced=True)
    assert 2 in sessions.in_session(pair.image, 5000), "its first heartbeat is still to come"
    sessions.fence_expired(pair.image, 5000)
    assert sessions.in_session(pair.image, 7999) == {2}
    assert sessions.in_session(pair.image, 8000) == frozenset()


def test_stopped_broker_does_not_block_the_next_process(pair: World, sessions: BrokerSessions) -> None:
    sessions.on_leadership_gained(pair.image, 0)
    while (stops := sessions.heartbeat(pair.image, beat(pair, 2, want_stop=True), 1000)).command is not None:
        pair.do(stops.command)
    assert stops.reply.may_stop and pair.image.brokers[2].fenced
    assert sessions.in_session(pair.image, 1001) == {1}


def test_broker_that_stops_before_it_was_unfenced_does_not_block(
    world: World, sessions: BrokerSessions
) -> None:
    world.register(1, start_fenced=True)
    assert sessions.in_session(world.image, 0) == {1}
    assert sessions.heartbeat(world.image, beat(world, 1, want_stop=True), 1).command is None
    assert sessions.in_session(world.image, 1) == frozenset()
