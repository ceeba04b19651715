"""Loads between two samples, and voters that are missed."""

from uuid import UUID

from tierlog.base.types import TopicPartition
from tierlog.broker.maintenance.load_samples import Sample, loads_between
from tierlog.broker.maintenance.rebalancer import VOTER_SILENT_MS, silent_voters
from tierlog.metadata.controller.load_balance import Disks, PartitionLoad
from tierlog.metadata.quorum.status import NodeStatus, PeerStatus

ORDERS, EMPTY, NEW, SHRUNK = (TopicPartition("t", number) for number in range(4))


def test_rate_is_of_the_offsets_between_the_samples_at_the_size_of_those_on_disk() -> None:
    before = Sample(1_000, ends={ORDERS: 100, EMPTY: 0, SHRUNK: 50})
    after = Sample(
        11_000,
        disks={1: Disks(1000, 500)},
        sizes={ORDERS: 4_000, EMPTY: 0, NEW: 7, SHRUNK: 10},
        starts={ORDERS: 100, EMPTY: 0, NEW: 0, SHRUNK: 0},
        ends={ORDERS: 300, EMPTY: 0, NEW: 1, SHRUNK: 40},
    )
    found = loads_between(before, after)
    assert found.partitions == {
        ORDERS: PartitionLoad(4_000, 400),
        EMPTY: PartitionLoad(0, 0),
        SHRUNK: PartitionLoad(10, 0),
    }
    assert found.disks == {1: Disks(1000, 500)}


def status(heard: dict[int, int | None]) -> NodeStatus:
    members = tuple(
        PeerStatus(node_id=one, url="", voter=one < 9, last_heard_ms=at) for one, at in heard.items()
    )
    return NodeStatus(
        node_id=1,
        cluster_id="c",
        directory_id=UUID(int=1),
        role="leader",
        leader=1,
        term=1,
        applied_index=1,
        commit_index=1,
        last_index=1,
        snapshot_index=0,
        voters={},
        learners={},
        members=members,
    )


def test_voters_that_the_leader_does_not_hear_are_named() -> None:
    now = 1_000_000
    assert silent_voters(status({1: now, 2: now - VOTER_SILENT_MS, 3: now, 9: None})) == []
    found = silent_voters(status({1: now, 2: now - VOTER_SILENT_MS - 1, 3: None}))
    assert found == ["voter 2 does not follow the quorum", "voter 3 does not follow the quorum"]
