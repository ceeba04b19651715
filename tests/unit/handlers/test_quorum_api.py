"""DescribeQuorum, of a single voter and of several."""

import uuid
from typing import Any

import pytest
from admin_cluster import AdminCluster

from tierlog.broker.handlers.quorum import described
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.status import FollowerContacts, NodeStatus, PeerStatus
from tierlog.protocol.errors import ErrorCode as E

TOPIC = "__cluster_metadata"


async def ask(cluster: AdminCluster, version: int, *topics: tuple[str, list[int]]) -> Any:
    requested = [
        {"topic_name": name, "partitions": [{"partition_index": number} for number in numbers]}
        for name, numbers in topics
    ]
    return await cluster.ask("DescribeQuorum", version, topics=requested)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_quorum_of_one(cluster: AdminCluster, version: int) -> None:
    answer = await ask(cluster, version, (TOPIC, [0]))
    assert answer.error_code == E.NONE
    [topic] = answer.topics
    [partition] = topic.partitions
    [voter] = partition.current_voters
    status = cluster.node.status()
    assert (topic.topic_name, partition.leader_id, partition.leader_epoch) == (TOPIC, 1, status.term)
    assert partition.high_watermark == cluster.metadata.image.index + 1
    assert (voter.replica_id, voter.log_end_offset) == (1, status.last_index + 1)
    assert voter.last_caught_up_timestamp == voter.last_fetch_timestamp
    assert (voter.last_fetch_timestamp > 0) == (version >= 1)
    assert partition.observers == []
    if version == 2:
        assert voter.replica_directory_id == cluster.node.directory_id
        [node] = answer.nodes
        [listener] = node.listeners
        assert (node.node_id, listener.name, listener.host, listener.port) == (1, "CONTROLLER", "one", 9644)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_only_the_metadata_partition_is_described(cluster: AdminCluster, version: int) -> None:
    for topics in ([("t", [0])], [(TOPIC, [1])], [(TOPIC, [0, 1])], [(TOPIC, [0]), ("t", [0])]):
        answer = await ask(cluster, version, *topics)
        assert answer.error_code == E.NONE
        reported = [
            (topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in answer.topics
        ]
        assert reported == topics
        codes = {one.error_code for topic in answer.topics for one in topic.partitions}
        assert codes == {E.UNKNOWN_TOPIC_OR_PARTITION}


async def test_without_a_leader_the_addresses_of_the_voters_are_in_the_error(
    cluster: AdminCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(timeout_s: float = 30.0) -> NodeStatus:
        raise MetadataUnavailable("no quorum", applied_unknown=False)

    monkeypatch.setattr(cluster.metadata, "quorum", unavailable)
    answer = await ask(cluster, 2, (TOPIC, [0]))
    assert (answer.error_code, answer.error_message) == (E.NOT_CONTROLLER, "no quorum")
    assert [(node.node_id, node.listeners[0].host) for node in answer.nodes] == [(1, "one")]
    assert (await ask(cluster, 0, (TOPIC, [0]))).error_code == E.NOT_CONTROLLER


def test_members_are_described_as_the_leader_sees_them() -> None:
    directory = uuid.UUID(int=5)
    heard = {"match_index": 9, "last_heard_ms": 100, "last_caught_up_ms": 90}
    status = NodeStatus(
        node_id=1,
        cluster_id="c",
        directory_id=directory,
        role="leader",
        leader=1,
        term=4,
        applied_index=9,
        commit_index=9,
        last_index=11,
        snapshot_index=0,
        voters={},
        learners={},
        members=(
            PeerStatus(node_id=1, url="http://[::1]:9", voter=True, directory_id=directory, **heard),
            PeerStatus(node_id=2, url="", voter=True, match_index=0),
            PeerStatus(node_id=3, url="http://c:1", voter=False, **heard),
        ),
        observers=(PeerStatus(node_id=9, url="", voter=False, match_index=8, last_heard_ms=70),),
    )
    answer = described(status)
    [partition] = answer.topics[0].partitions
    states = [
        (one.replica_id, one.log_end_offset, one.last_fetch_timestamp, one.last_caught_up_timestamp)
        for one in (*partition.current_voters, *partition.observers)
    ]
    assert states == [(1, 10, 100, 90), (2, -1, -1, -1), (3, 10, 100, 90), (9, 9, 70, -1)]
    assert [one.replica_directory_id.int for one in partition.current_voters] == [5, 0]
    assert [(node.node_id, [one.host for one in node.listeners]) for node in answer.nodes] == [
        (1, ["::1"]),
        (2, []),
    ]


def test_follower_is_caught_up_when_it_reaches_the_leaders_previous_end() -> None:
    contacts = FollowerContacts()

    def caught_up(index: int, leader_end: int, now_ms: int, term: int = 1) -> int | None:
        contacts.record(term, 2, index, leader_end, now_ms)
        contact = contacts.get(term, 2)
        assert contact is not None
        return contact.caught_up_ms

    assert caught_up(3, 10, 100) is None
    assert caught_up(9, 20, 200) is None
    assert caught_up(20, 30, 300) == 200  # the end at the previous contact
    assert caught_up(25, 40, 400) == 200
    assert caught_up(40, 40, 500) == 500
    assert caught_up(3, 50, 600, term=2) is None  # contacts of an earlier term do not count
    assert contacts.get(1, 2) is None
    assert contacts.recent(2, [2, 3], 700).keys() == {2}
    assert contacts.recent(2, [2, 3], 600 + 300_000) == {}
