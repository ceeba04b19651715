"""A quorum that grows, shrinks and loses members, over real HTTP on loopback; every wait is for an event."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from awaited_image import image_when
from metadata_quorum import Quorum, has, register, topic

from tierlog.metadata.quorum.api import QUORUM_PATH
from tierlog.metadata.quorum.peers import MetadataUnavailable, NotTheLeader
from tierlog.metadata.raft.core import Role
from tierlog.metadata.raft.membership import ChangeRefused
from tierlog.metadata.raft.messages import NO_NODE
from tierlog.metadata.raft.settings import RaftSettings

NO_ELECTION_TIMEOUT = RaftSettings(election_ticks=1_000_000)


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


async def add_voters(quorum: Quorum, *nodes: int) -> None:
    for node_id in nodes:
        if node_id not in quorum.running:
            await quorum.start(node_id)
        await quorum.add_voter(node_id)


@pytest.mark.parametrize("voters", [(1,), ()], ids=["named", "no voters"])
async def test_quorum_grows_from_one_to_three_and_survives_the_first(
    tmp_path: Path, voters: tuple[int, ...]
) -> None:
    async with running(tmp_path, voters, 1) as quorum:
        first = quorum.running[1]
        await first.client.submit(register())
        await first.client.submit(topic("alone"))
        await add_voters(quorum, 2, 3)
        for member in quorum.running.values():
            await image_when(member.client, has("alone"))
            assert member.node.voters == {n: quorum.urls[n] for n in (1, 2, 3)}
        status = first.node.status()
        assert (status.members[0].node_id, status.members[0].voter, status.members[0].lag) == (1, True, 0)
        await quorum.kill(1)
        await quorum.running[2].client.submit(topic("without"))
        assert has("without")(quorum.running[2].client.image)
        back = await quorum.start(1)  # its settings still name it alone; its log takes precedence
        await image_when(back.client, has("without"))
        assert set(back.node.voters) == {1, 2, 3}


async def test_node_joins_by_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path, (1,)) as quorum:
        await quorum.kill(1)
        quorum.snapshot_entries = 5
        first = await quorum.start(1)
        await first.client.submit(register())
        for number in range(20):
            await first.client.submit(topic(f"t{number}"))
        await add_voters(quorum, 2)
        await quorum.kill(2)
        again = await quorum.start(2)
        await image_when(again.client, has("t19"))
        assert set(again.node.voters) == {1, 2}


async def test_quorum_shrinks_from_three_to_one(tmp_path: Path) -> None:
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
            await quorum.running[leader].node.membership.remove_voter(leader)
        await quorum.kill(leader)
        single = await quorum.start(leader)  # its settings name three
        assert single.node.is_leader
        assert has("t")(single.client.image)


async def test_change_waits_for_an_election(tmp_path: Path) -> None:
    """A leader that lost its majority for a moment repeats the change once it leads again."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        node, others = quorum.running[leader].node, [n for n in (1, 2, 3) if n != leader]
        for node_id in others:
            await quorum.kill(node_id)
        await node.membership.status_when(lambda status: status.leader == NO_NODE)
        changing = asyncio.ensure_future(node.membership.add_voter(others[0], quorum.urls[others[0]]))
        quorum.settings = NO_ELECTION_TIMEOUT  # so that the other one wins
        await quorum.start(others[0])
        await changing
        assert node.is_leader


async def test_leader_that_removes_itself_hands_over(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        await quorum.remove_voter(leader)
        await quorum.kill(leader)
        assert await quorum.leader() != leader
        others = next(iter(quorum.running.values()))
        await others.client.submit(register())
        await others.client.submit(topic("t"))
        assert leader not in others.node.voters


async def test_removed_voter_continues_as_an_observer_and_can_be_added_again(tmp_path: Path) -> None:
    """KIP-853: it reads the log from any leader, and after a restart, since its own log has the removal."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        removed = await quorum.leader()
        client = quorum.running[removed].client
        await client.submit(register())
        await quorum.remove_voter(removed)
        first = quorum.running[await quorum.leader()]
        await first.client.submit(topic("without"))
        await image_when(client, has("without"))
        await first.node.membership.hand_over(30)
        await client.submit(topic("asked"))
        assert has("asked")(client.image)

        await quorum.kill(removed)
        await first.client.submit(topic("away"))
        back = await quorum.start(removed)
        await image_when(back.client, has("away"))
        assert (back.node.status().role, set(back.node.voters)) == ("no member", {1, 2, 3} - {removed})

        await quorum.add_voter(removed)
        await quorum.kill(next(n for n in quorum.running if n != removed))
        await back.client.submit(topic("by its vote"))


async def test_voter_finds_out_that_it_was_removed(tmp_path: Path) -> None:
    """It has no leader any more, so it reads the committed log."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        client = quorum.running[leader].client
        await client.submit(register())
        removed = next(n for n in quorum.running if n != leader)
        quorum.cut_off = {removed}
        await quorum.remove_voter(removed)
        gone = quorum.running[removed]
        await gone.node.membership.status_when(lambda status: status.role == "no member")
        await client.submit(topic("t"))
        await image_when(gone.client, has("t"))
        await gone.client.submit(topic("asked"))
        assert gone.node.core.role is Role.FOLLOWER


async def test_voter_removed_while_down_reads_a_snapshot(tmp_path: Path) -> None:
    """Its log ends before the first entry of the others, and names it as a voter."""
    async with running(tmp_path, ()) as quorum:
        quorum.snapshot_entries = 5
        await quorum.start(1)
        await add_voters(quorum, 2, 3)
        client = quorum.running[1].client
        await client.submit(register())
        await quorum.running[3].node.membership.status_when(lambda status: status.role == "follower")
        await quorum.kill(3)
        await quorum.remove_voter(3)
        for number in range(20):
            await client.submit(topic(f"t{number}"))
        back = await quorum.start(3)
        await image_when(back.client, has("t19"))
        assert set(back.node.voters) == {1, 2}
        await quorum.add_voter(3)
        await back.client.submit(topic("again"))
        assert set(back.node.voters) == {1, 2, 3}


async def directories_known(quorum: Quorum) -> int:
    """The leader, once the log of each member names the directories of all."""
    leader = await quorum.leader()
    node = quorum.running[leader].node
    await node.membership.status_when(lambda status: all(peer.directory_id for peer in status.members))
    index = node.core.log.last_index
    for member in quorum.running.values():
        await member.node.membership.status_when(lambda status: status.commit_index >= index)
    return leader


async def replace(quorum: Quorum, node_id: int) -> None:
    """Replace the node by one with an empty disk."""
    await quorum.remove_voter(node_id)
    await quorum.kill(node_id)
    quorum.wipe(node_id)
    await add_voters(quorum, node_id)


async def test_voter_removed_while_down_reads_from_nodes_with_replaced_disks(
    tmp_path: Path,
) -> None:
    """All others were replaced under their old ids, and at their old addresses."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await directories_known(quorum)
        away = next(n for n in quorum.running if n != leader)
        await quorum.kill(away)
        await quorum.remove_voter(away)
        for other in set(quorum.running):
            await replace(quorum, other)
        back = await quorum.start(away)
        assert not any(
            back.node.membership.admits(n, quorum.running[n].node.directory_id) for n in {1, 2, 3} - {away}
        )
        await back.node.membership.status_when(lambda status: status.role == "no member")
        assert set(back.node.voters) == {1, 2, 3} - {away}


async def test_voter_whose_voters_are_all_removed_reads_from_nodes_in_its_settings(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await directories_known(quorum)
        away = next(n for n in quorum.running if n != leader)
        await quorum.kill(away)
        await quorum.remove_voter(away)
        await add_voters(quorum, 4)
        for other in {1, 2, 3} - {away}:
            await quorum.remove_voter(other)
            await quorum.kill(other)
        quorum.voters = (1, 2, 3, 4)
        back = await quorum.start(away)
        assert set(back.node.voters) == {1, 2, 3}
        await back.node.membership.status_when(lambda status: status.role == "no member")
        assert set(back.node.voters) == {4}
        await quorum.running[4].client.submit(register())
        await image_when(back.client, lambda image: 1 in image.brokers)


async def test_only_the_leader_changes_members_and_others_name_it(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        other = next(n for n in quorum.running if n != leader)
        with pytest.raises(NotTheLeader) as refused:
            await quorum.running[other].node.membership.remove_voter(3)
        assert (refused.value.leader, refused.value.url) == (leader, quorum.urls[leader])


async def test_unresponsive_node_remains_a_learner_and_delays_no_commit(tmp_path: Path) -> None:
    async with running(tmp_path, (1,)) as quorum:
        node = quorum.running[1].node
        with pytest.raises(MetadataUnavailable, match="remains a learner"):
            await node.membership.add_voter(4, quorum.urls[4], timeout_s=0.2)
        await quorum.running[1].client.submit(register())
        assert set(node.voters) == {1}
        assert set(node.status().learners) == {4}
        await node.membership.remove_voter(4)
        assert node.status().learners == {}


async def test_voter_with_a_wiped_directory_is_rejected_until_added_again(tmp_path: Path) -> None:
    """Its votes and acknowledgements are lost, so it may only come back as a new member (KIP-853)."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        node = quorum.running[leader].node
        await node.membership.status_when(lambda status: all(peer.directory_id for peer in status.members))
        wiped = next(n for n in (1, 2, 3) if n != leader)
        await quorum.kill(wiped)
        quorum.wipe(wiped)
        back = await quorum.start(wiped)
        assert not node.membership.admits(wiped, back.node.directory_id)
        for number in range(3):
            await quorum.running[leader].client.submit(register(number))
        other = next(n for n in quorum.running if n not in (leader, wiped))
        await quorum.kill(other)  # the wiped one does not count for a majority
        with pytest.raises(MetadataUnavailable):
            await quorum.running[leader].client.submit(topic("t"), timeout_s=0.2)
        assert back.node.core.log.last_index == 0
        await quorum.start(other)
        assert await quorum.leader() in (leader, other)
        await quorum.remove_voter(wiped)
        await quorum.add_voter(wiped)
        node = quorum.running[await quorum.leader()].node
        await image_when(back.client, lambda image: 1 in image.brokers)
        assert set(node.voters) == {1, 2, 3}


async def _led_by(quorum: Quorum, node_id: int) -> int:
    """Repeats the campaign: a vote may be lost while connections are established, and there is no timeout."""
    while True:
        quorum.running[node_id].node.core.campaign()
        quorum.running[node_id].node.receive(())
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(quorum.leader(), 1)


async def test_refused_connection_starts_an_election(tmp_path: Path) -> None:
    """Elections never time out here, so only the refused connection can start one."""
    async with running(tmp_path, (1, 2, 3)) as quorum:
        first = await quorum.leader()
        await quorum.running[first].client.submit(register())
        for node_id in list(quorum.running):  # restart the same nodes without an election timeout
            await quorum.kill(node_id)
        quorum.settings = NO_ELECTION_TIMEOUT
        for node_id in (1, 2, 3):
            await quorum.start(node_id)
        cores = {n: member.node.core for n, member in quorum.running.items()}
        leader = max(cores, key=lambda n: (cores[n].log.last_term, cores[n].log.last_index))
        assert await _led_by(quorum, leader) == leader  # its log is the longest
        await quorum.running[leader].node.membership.status_when(
            lambda status: all(p.lag == 0 for p in status.members)
        )
        await quorum.watched()
        await quorum.kill(leader)
        assert await quorum.leader() != leader


async def test_leader_that_stops_hands_over(tmp_path: Path) -> None:
    """Elections never time out here, and the old leader still runs when another takes over."""
    async with running(tmp_path, ()) as quorum:
        quorum.settings = NO_ELECTION_TIMEOUT
        await quorum.start(1)
        await add_voters(quorum, 2, 3)
        first = quorum.running[1]
        await first.client.submit(register())
        assert first.node.is_leader
        term = first.node.core.term
        assert await first.node.membership.hand_over(30)
        new_leader = first.node.leader
        assert new_leader in (2, 3)
        assert first.node.core.term == term + 1
        await first.client.submit(topic("after"))
        await quorum.kill(1)
        await quorum.running[new_leader].client.submit(topic("without"))
        assert quorum.running[new_leader].node.core.term == term + 1


async def test_leader_without_a_transfer_target_stops_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, ()) as quorum:
        quorum.settings = NO_ELECTION_TIMEOUT  # and it does not step down without a majority
        await quorum.start(1)
        await add_voters(quorum, 2, 3)
        for node_id in (2, 3):
            await quorum.kill(node_id)
        assert not await quorum.running[1].node.membership.hand_over(30)
        assert quorum.running[1].node.is_leader


async def test_voter_moves_to_another_address(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum:
        leader = await quorum.leader()
        moved = next(n for n in quorum.running if n != leader)
        await quorum.kill(moved)
        quorum.move(moved)
        await quorum.running[leader].node.membership.add_voter(moved, quorum.urls[moved])
        back = await quorum.start(moved)
        await quorum.running[leader].client.submit(register())
        await image_when(back.client, lambda image: 1 in image.brokers)
        assert set(back.node.voters) == {1, 2, 3}


async def test_operators_change_members_through_any_node(tmp_path: Path) -> None:
    async with running(tmp_path, (1, 2, 3)) as quorum, aiohttp.ClientSession() as session:
        await quorum.start(4)
        leader = await quorum.leader()
        url = quorum.urls[next(n for n in (1, 2, 3) if n != leader)] + QUORUM_PATH
        added = await session.post(f"{url}/voters", json={"id": 4, "url": quorum.urls[4]})
        assert added.status == 200
        assert sorted((await added.json())["voters"]) == ["1", "2", "3", "4"]
        removed = await session.delete(f"{url}/voters/4")
        assert removed.status == 200
        status = await removed.json()
        assert (status["role"], sorted(status["voters"])) == ("leader", ["1", "2", "3"])
        assert {member["node_id"] for member in status["members"]} == {1, 2, 3}
        unnamed = await session.post(f"{url}/voters", json={"id": 4, "url": ""})
        assert (unnamed.status, await unnamed.text()) == (400, "'' is not of the form http://host:port")
        assert (await session.post(f"{url}/voters", data=b"{")).status == 400
        assert (await session.delete(f"{url}/voters/four")).status == 400
