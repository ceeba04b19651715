"""Recovery after a majority lost its disks: one voter continues alone, and others join it again."""

import random
from contextlib import closing
from pathlib import Path

import pytest
from awaited_image import image_when
from metadata_quorum import CLUSTER_ID, Quorum, has, register, topic

from tierlog.base.files import OsFiles
from tierlog.base.types import random_uuid
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.recovery import TERM_GAP, NotRecoverable, Recovery
from tierlog.metadata.quorum.storage import LoadedMetadata, MetadataStorage

RNG = random.Random(5)


def recovery(directory: Path) -> "closing[Recovery]":
    return closing(Recovery(OsFiles(), directory, RNG))


def loaded(directory: Path, node_id: int) -> LoadedMetadata:
    storage = MetadataStorage(
        OsFiles(), directory, cluster_id=CLUSTER_ID, node_id=node_id, new_directory_id=random_uuid(RNG)
    )
    with closing(storage):
        return storage.open()


def replicated(name: str) -> c.CreateTopics:
    return c.CreateTopics(topics=(c.NewTopic(name=name, assignments=((0, (1, 2, 3)),)),))


def epochs(image: ClusterImage) -> dict[tuple[str, int], tuple[int, int]]:
    """Leader epoch and partition epoch of each partition."""
    return {
        (one.name, number): (partition.leader_epoch, partition.partition_epoch)
        for one in image.topics.values()
        for number, partition in enumerate(one.partitions)
    }


async def test_one_of_three_voters_is_recovered_and_others_join(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    for node_id in (1, 2, 3):
        await quorum.start(node_id)
    for broker_id in (1, 2, 3):
        await quorum.running[1].client.submit(register(broker_id))
    await quorum.running[1].client.submit(replicated("orders"))
    for number in range(3):
        await quorum.running[1].client.submit(topic(f"t{number}"))
    await image_when(quorum.running[3].client, has("t2"))
    before = quorum.running[3].client.image
    old_directory = quorum.running[3].node.directory_id
    observer = await quorum.observe(7, 3)
    await image_when(observer.client, has("t2"))
    for node_id in (1, 2, 3):
        await quorum.kill(node_id)
    for lost in (1, 2):
        quorum.wipe(lost)

    with recovery(tmp_path / "3") as recovering:
        summary = recovering.summary
        assert (summary.node_id, summary.cluster_id, summary.voters) == (3, CLUSTER_ID, (1, 2, 3))
        assert (summary.topics, summary.partitions) == (4, 7)
        assert summary.last_index >= before.index
        recovering.apply()

    single = await quorum.start(3)  # its settings name three
    assert single.node.is_leader
    assert set(single.node.voters) == {3}
    assert single.node.core.term > summary.term + TERM_GAP
    assert single.node.directory_id != old_directory
    after = single.client.image
    assert after.topic_ids == before.topic_ids
    assert [one for one in (1, 2, 3) if after.brokers[one].fenced] == [1, 2]
    orders = after.topic("orders")
    assert orders is not None
    assert (orders.partitions[0].leader, orders.partitions[0].in_sync) == (3, (3,))
    assert after.next_producer_id > before.next_producer_id
    now, then = epochs(after), epochs(before)
    assert now.keys() == then.keys()
    assert all(now[one][0] > then[one][0] and now[one][1] > then[one][1] for one in then)
    await single.client.submit(topic("after"))
    await image_when(observer.client, has("after"))  # even if it had read further than the remaining log

    for joining in (1, 2):
        await quorum.start(joining)
        await single.node.membership.add_voter(joining, quorum.urls[joining])
        await image_when(quorum.running[joining].client, has("after"))
    await quorum.kill(3)
    await quorum.running[1].client.submit(topic("without"))
    assert set(quorum.running[1].node.voters) == {1, 2, 3}
    await quorum.close()
    assert quorum.failures == []


async def test_lost_voter_that_returns_is_rejected(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path)
    for node_id in (1, 2, 3):
        await quorum.start(node_id)
    leader = quorum.running[await quorum.leader()].node
    await leader.membership.status_when(lambda status: all(peer.directory_id for peer in status.members))
    for member in quorum.running.values():
        index = leader.core.log.last_index
        await member.node.membership.status_when(lambda status, index=index: status.applied_index >= index)
    for node_id in (1, 2, 3):
        await quorum.kill(node_id)
    with recovery(tmp_path / "3") as recovering:
        recovering.apply()
    single, returned = await quorum.start(3), await quorum.start(1)
    assert not returned.node.membership.admits(3, single.node.directory_id)
    with pytest.raises(Exception, match="remains a learner"):
        await single.node.membership.add_voter(1, quorum.urls[1], timeout_s=0.5)
    assert set(returned.node.voters) == {1, 2, 3}
    await quorum.close()
    assert quorum.failures == []


async def test_directory_that_needs_no_recovery_is_unchanged(tmp_path: Path) -> None:
    quorum = Quorum(tmp_path, (1,))
    await quorum.start(1)
    await quorum.running[1].client.submit(register())
    await quorum.kill(1)
    with recovery(tmp_path / "1") as recovering:
        recovering.apply()
    before = loaded(tmp_path / "1", 1)
    with pytest.raises(NotRecoverable, match="already the only voter"):
        recovery(tmp_path / "1")
    assert loaded(tmp_path / "1", 1) == before
    with pytest.raises(NotRecoverable, match="contains no quorum metadata"):
        recovery(tmp_path)
    loaded(tmp_path / "2", 2)
    with pytest.raises(NotRecoverable, match="empty"):
        recovery(tmp_path / "2")
    await quorum.close()
