"""A quorum that grows, shrinks and loses members, over real HTTP on loopback; every wait is for an event."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from metadata_quorum import Quorum, has, register, topic

from tierlog.metadata.quorum.api import QUORUM_PATH
from tierlog.metadata.quorum.node import MetadataUnavailable, NotTheLeader
from tierlog.metadata.raft.core import Role
from tierlog.metadata.raft.membership import ChangeRefused
from tierlog.metadata.raft.settings import RaftSettings

NEVER_BY_SILENCE = RaftSettings(election_ticks=1_000_000)


@asynccontextmanager
async def running(directory: Path, voters: tuple[int, ...], *start: int) -> AsyncIterator[Quorum]:
    quorum = Quorum(directory, voters)
    try:
        for node_id in start or voters:
            await quorum.start(node_id)
        yield quorum
    finally:
        await quorum.close()
    assert quorum.failures == []


async def grown(quorum: Quorum, *nodes: int) -> None:
    for node_id in nodes:
        if node_id not in quorum.running:
            await quorum.start(node_id)
        await quorum.add_voter(node_id)


@pytest.mark.parametrize("voters", [(1,), ()], ids=["named", "alone"])
async def test_one_node_becomes_three_and_lives_without_the_first(
    tmp_path: Path, voters: tuple[int, ...]
) -> None:
    async with running(tmp_path, voters, 1) as quorum:
        first = quorum.running[1]
        await first.client.submit(register())
        await first.client.submit(topic("alone"))
        await grown(quorum, 2, 3)
        for member in quorum.running.values():
            await member.client.wait_for(has("alone"))
            assert member.node.voters == {n: quorum.urls[n] for n in (1, 2, 3)}
        status = first.node.status()
        assert (status.members[0].node_id, status.members[0].voter, status.members[0].lag) == (1, True, 0)
        await quorum.kill(1)
        await quorum.running[2].client.submit(topic("without"))
        assert has("without")(quorum.running[2].client.image)
        back = await quorum.start(1)  # its settings still say that it is alone; its log knows better
        await back.client.wait_for(has("without"))
        assert set(back.node.voters) == {1, 2, 3}


async def test_a_node_that_was_away_for_snapshots_joins(tmp_path: Path) -> None:
    async with running(tmp_path, (1,)) as quorum:
        await quorum.kill(1)
        quorum.snapshot_entries = 5
        first = await quorum.start(1)
        await first.client.submit(register())
        for number in range(20):
            await first.client.submit(topic(f"t{number}"))
        await grown(quorum, 2)
        await quorum.kill(2)
        again = await quorum.start(2)
        await again.client.wait_for(has("t19"))
        assert set(again.node.voters) == {1, 2}


async def test_three_become_one(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        client = quorum.running[leader].client
        await client.submit(register())
        for node_id in [n for n in (1, 2, 3) if n != leader]:
            await quorum.remove_voter(node_id)
            await quorum.kill(node_id)
        await client.submit(topic("t"))
        assert quorum.running[leader].node.voters == {leader: quorum.urls[leader]}
        with pytest.raises(ChangeRefused, match="last voter"):
            await quorum.running[leader].node.remove_voter(leader)
        await quorum.kill(leader)
        alone = await quorum.start(leader)  # by its settings there are three
        assert alone.node.is_leader
        assert has("t")(alone.client.image)


async def test_a_leader_that_removes_itself_hands_over(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        await quorum.remove_voter(leader)
        await quorum.kill(leader)
        assert await quorum.leader() != leader
        others = next(iter(quorum.running.values()))
        await others.client.submit(register())
        await others.client.submit(topic("t"))
        assert leader not in others.node.voters


async def test_a_removed_voter_follows_on_and_votes_when_it_is_added_again(tmp_path: Path) -> None:
    """As an observer does (KIP-853), whoever leads, and after a restart: its own log says that it is none."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        removed = await quorum.leader()
        client = quorum.running[removed].client
        await client.submit(register())
        await quorum.remove_voter(removed)
        first = quorum.running[await quorum.leader()]
        await first.client.submit(topic("without"))
        await client.wait_for(has("without"))
        await first.node.hand_over(30)
        await client.submit(topic("asked"))
        assert has("asked")(client.image)

        await quorum.kill(removed)
        await first.client.submit(topic("away"))
        back = await quorum.start(removed)
        await back.client.wait_for(has("away"))
        assert (back.node.status().role, set(back.node.voters)) == ("no member", {1, 2, 3} - {removed})

        await quorum.add_voter(removed)
        await quorum.kill(next(n for n in quorum.running if n != removed))
        await back.client.submit(topic("by its vote"))


async def test_a_voter_that_is_not_told_of_its_removal_finds_out(tmp_path: Path) -> None:
    """It hears of no leader any more; so it reads what is committed."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        client = quorum.running[leader].client
        await client.submit(register())
        removed = next(n for n in quorum.running if n != leader)
        quorum.cut_off = {removed}
        await quorum.remove_voter(removed)
        gone = quorum.running[removed]
        await gone.node.status_when(lambda status: status.role == "no member")
        await client.submit(topic("t"))
        await gone.client.wait_for(has("t"))
        await gone.client.submit(topic("asked"))
        assert gone.node.core.role is Role.FOLLOWER


async def test_a_voter_that_was_removed_while_it_was_away_reads_a_snapshot(tmp_path: Path) -> None:
    """Its log ends before what the others still have, and takes it for a voter."""
    async with running(tmp_path, ()) as quorum:
        quorum.snapshot_entries = 5
        await quorum.start(1)
        await grown(quorum, 2, 3)
        client = quorum.running[1].client
        await client.submit(register())
        await quorum.running[3].node.status_when(lambda status: status.role == "follower")
        await quorum.kill(3)
        await quorum.remove_voter(3)
        for number in range(20):
            await client.submit(topic(f"t{number}"))
        back = await quorum.start(3)
        await back.client.wait_for(has("t19"))
        assert set(back.node.voters) == {1, 2}
        await quorum.add_voter(3)
        await back.client.submit(topic("again"))
        assert set(back.node.voters) == {1, 2, 3}


async def acquainted(quorum: Quorum) -> int:
    """The leader, once all members have it in their logs which directory each has."""
    leader = await quorum.leader()
    node = quorum.running[leader].node
    await node.status_when(lambda status: all(peer.directory_id for peer in status.members))
    index = node.core.log.last_index
    for member in quorum.running.values():
        await member.node.status_when(lambda status: status.commit_index >= index)
    return leader


async def replaced(quorum: Quorum, node_id: int) -> None:
    """By one with an empty disk."""
    await quorum.remove_voter(node_id)
    await quorum.kill(node_id)
    quorum.wipe(node_id)
    await grown(quorum, node_id)


async def test_a_voter_that_was_removed_while_it_was_away_knows_none_of_the_others_disks(
    tmp_path: Path,
) -> None:
    """All were replaced since: by their old ids, and at their old addresses."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await acquainted(quorum)
        away = next(n for n in quorum.running if n != leader)
        await quorum.kill(away)
        await quorum.remove_voter(away)
        for other in set(quorum.running):
            await replaced(quorum, other)
        back = await quorum.start(away)
        assert not any(back.node.admits(n, quorum.running[n].node.directory_id) for n in {1, 2, 3} - {away})
        await back.node.status_when(lambda status: status.role == "no member")
        assert set(back.node.voters) == {1, 2, 3} - {away}


async def test_a_voter_whose_voters_are_all_gone_finds_those_that_its_settings_name(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await acquainted(quorum)
        away = next(n for n in quorum.running if n != leader)
        await quorum.kill(away)
        await quorum.remove_voter(away)
        await grown(quorum, 4)
        for other in {1, 2, 3} - {away}:
            await quorum.remove_voter(other)
            await quorum.kill(other)
        quorum.voters = (1, 2, 3, 4)
        back = await quorum.start(away)
        assert set(back.node.voters) == {1, 2, 3}
        await back.node.status_when(lambda status: status.role == "no member")
        assert set(back.node.voters) == {4}
        await quorum.running[4].client.submit(register())
        await back.client.wait_for(lambda image: 1 in image.brokers)


async def test_only_the_leader_changes_members_and_says_who_it_is(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        other = next(n for n in quorum.running if n != leader)
        with pytest.raises(NotTheLeader) as told:
            await quorum.running[other].node.remove_voter(3)
        assert (told.value.leader, told.value.url) == (leader, quorum.urls[leader])


async def test_a_node_that_does_not_answer_stays_a_learner_and_holds_nothing_up(tmp_path: Path) -> None:
    async with running(tmp_path, (1,)) as quorum:
        node = quorum.running[1].node
        with pytest.raises(MetadataUnavailable, match="remains a learner"):
            await node.add_voter(4, quorum.urls[4], timeout_s=0.2)
        await quorum.running[1].client.submit(register())
        assert set(node.voters) == {1}
        assert set(node.status().learners) == {4}
        await node.remove_voter(4)
        assert node.status().learners == {}


async def test_a_voter_with_a_wiped_directory_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """Its votes and acknowledgements are forgotten: it may come back only as a new member (KIP-853)."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        node = quorum.running[leader].node
        await node.status_when(lambda status: all(peer.directory_id for peer in status.members))
        wiped = next(n for n in (1, 2, 3) if n != leader)
        await quorum.kill(wiped)
        quorum.wipe(wiped)
        back = await quorum.start(wiped)
        assert not node.admits(wiped, back.node.directory_id)
        for number in range(3):
            await quorum.running[leader].client.submit(register(number))
        other = next(n for n in quorum.running if n not in (leader, wiped))
        await quorum.kill(other)  # the wiped one makes no majority
        with pytest.raises(MetadataUnavailable):
            await quorum.running[leader].client.submit(topic("t"), timeout_s=0.2)
        assert back.node.core.log.last_index == 0
        await quorum.start(other)
        assert await quorum.leader() in (leader, other)
        await quorum.remove_voter(wiped)
        await quorum.add_voter(wiped)
        node = quorum.running[await quorum.leader()].node
        await back.client.wait_for(lambda image: 1 in image.brokers)
        assert set(node.voters) == {1, 2, 3}


async def _led_by(quorum: Quorum, node_id: int) -> int:
    """A vote may be lost while connections are made, and by silence nobody asks again here."""
    while True:
        quorum.running[node_id].node.core.campaign()
        quorum.running[node_id].node.receive(())
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(quorum.leader(), 1)


async def test_a_refused_connection_proves_the_leader_dead(tmp_path: Path) -> None:
    """Nobody would notice its silence here; the ports that its death closed tell."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        first = await quorum.leader()
        await quorum.running[first].client.submit(register())
        for node_id in list(quorum.running):  # the same nodes, now deaf to silence
            await quorum.kill(node_id)
        quorum.settings = NEVER_BY_SILENCE
        for node_id in (1, 2, 3):
            await quorum.start(node_id)
        cores = {n: member.node.core for n, member in quorum.running.items()}
        leader = max(cores, key=lambda n: (cores[n].log.last_term, cores[n].log.last_index))
        assert await _led_by(quorum, leader) == leader  # whose log is the longest
        await quorum.running[leader].node.status_when(lambda status: all(p.lag == 0 for p in status.members))
        await quorum.watched()
        await quorum.kill(leader)
        assert await quorum.leader() != leader


async def test_a_leader_that_stops_hands_over(tmp_path: Path) -> None:
    """Nobody else would stand: silence elects nobody here, and the leader still runs when another leads."""
    async with running(tmp_path, ()) as quorum:
        quorum.settings = NEVER_BY_SILENCE
        await quorum.start(1)
        await grown(quorum, 2, 3)
        first = quorum.running[1]
        await first.client.submit(register())
        assert first.node.is_leader
        term = first.node.core.term
        assert await first.node.hand_over(30)
        heir = first.node.leader
        assert heir in (2, 3)
        assert first.node.core.term == term + 1
        await first.client.submit(topic("after"))
        await quorum.kill(1)
        await quorum.running[heir].client.submit(topic("without"))
        assert quorum.running[heir].node.core.term == term + 1


async def test_a_leader_without_anyone_to_hand_over_to_stops_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, ()) as quorum:
        quorum.settings = NEVER_BY_SILENCE  # nor does it give up leading for want of a majority
        await quorum.start(1)
        await grown(quorum, 2, 3)
        for node_id in (2, 3):
            await quorum.kill(node_id)
        assert not await quorum.running[1].node.hand_over(30)
        assert quorum.running[1].node.is_leader


async def test_a_voter_moves_to_another_address(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        moved = next(n for n in quorum.running if n != leader)
        await quorum.kill(moved)
        quorum.move(moved)
        await quorum.running[leader].node.add_voter(moved, quorum.urls[moved])
        back = await quorum.start(moved)
        await quorum.running[leader].client.submit(register())
        await back.client.wait_for(lambda image: 1 in image.brokers)
        assert set(back.node.voters) == {1, 2, 3}


async def test_operators_change_members_by_asking_any_node(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum, aiohttp.ClientSession() as session:
        await quorum.start(4)
        leader = await quorum.leader()
        asked = quorum.urls[next(n for n in (1, 2, 3) if n != leader)] + QUORUM_PATH
        added = await session.post(f"{asked}/voters", json={"id": 4, "url": quorum.urls[4]})
        assert added.status == 200
        assert sorted((await added.json())["voters"]) == ["1", "2", "3", "4"]
        removed = await session.delete(f"{asked}/voters/4")
        assert removed.status == 200
        told = await removed.json()
        assert (told["role"], sorted(told["voters"])) == ("leader", ["1", "2", "3"])
        assert {member["node_id"] for member in told["members"]} == {1, 2, 3}
        unnamed = await session.post(f"{asked}/voters", json={"id": 4, "url": ""})
        assert (unnamed.status, await unnamed.text()) == (400, "'' is not of the form http://host:port")
        assert (await session.post(f"{asked}/voters", data=b"{")).status == 400
        assert (await session.delete(f"{asked}/voters/four")).status == 400
