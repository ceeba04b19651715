"""Replicas around a bulk load: when appends are refused, and how a log moves to the end of the load."""

import random
import uuid
from pathlib import Path
from typing import Any

import pytest
from immutables import Map
from opened_replica import opened_replica
from remote_segments import remote_segment

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_loader import advance_to_remote_end
from tierlog.config.topic import TopicConfig
from tierlog.metadata.image import ClusterImage, Load, RemotePartition
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

NAME, TOPIC = TopicPartition("t", 0), uuid.UUID(int=1)
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig.parse({"remote.storage.enable": "true"})
RETRIED = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}


def opened(directory: Path, *, clean: bool = True) -> Replica:
    arguments = NAME, TOPIC, 1, directory, CONFIG, OsFiles(), NOW_MS
    return opened_replica(*arguments, clean=clean, rng=random.Random(1), has_been_tiered=True)


@pytest.fixture
def leader(tmp_path: Path) -> Replica:
    """The leader of epoch 3 with a record at offset 0, whose replicas are 1 and 2, and in sync are both."""
    replica = opened(tmp_path / "t-0")
    replica.become_leader(3, 1, (1, 2), (1, 2))
    assert append(replica, **RETRIED).base_offset == 0
    return replica


def append(replica: Replica, **producer: Any) -> Any:
    batch = encode_batch([NewRecord(NOW_MS, None, b"value", ())], **producer)
    return replica.as_leader.append(memoryview(batch), NOW_MS)


def loaded(*loads: Load) -> ClusterImage:
    entries = tuple(
        remote_segment(one.base_offset, one.end_offset - 1, leader_epoch=one.leader_epoch) for one in loads
    )
    remote = RemotePartition(entries=entries, copied_end_offset=entries[-1].end_offset, loads=loads)
    return ClusterImage(cluster_id="c", remote=Map({(TOPIC, 0): remote}))


def load(base_offset: int, end_offset: int, leader_epoch: int = 3) -> Load:
    return Load(
        load_id=uuid.UUID(int=7), base_offset=base_offset, end_offset=end_offset, leader_epoch=leader_epoch
    )


def test_partition_is_closed_only_while_all_in_sync_replicas_end_at_the_load(leader: Replica) -> None:
    assert not leader.as_leader.close_for_load(1), "replica 2 has not fetched the record"
    leader.as_leader.follower_fetched(2, 5, 1, 0)
    assert not leader.as_leader.close_for_load(0)
    assert leader.as_leader.close_for_load(1)
    assert append(leader).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.as_leader.reopen()
    assert append(leader).error is ErrorCode.NONE
    assert not leader.as_leader.close_for_load(2), "replica 2 is behind"


def test_open_transaction_prevents_the_closing(leader: Replica) -> None:
    batch = encode_batch(
        [NewRecord(NOW_MS, None, b"v", ())],
        producer_id=4,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    result = leader.as_leader.append(memoryview(batch), NOW_MS, must_verify=False)
    assert result.error is ErrorCode.NONE
    leader.as_leader.follower_fetched(2, 5, 2, 0)
    assert leader.high_watermark == 2
    assert not leader.as_leader.close_for_load(2)


def test_partition_stays_closed_in_its_leader_epoch_and_opens_in_the_next(leader: Replica) -> None:
    leader.as_leader.follower_fetched(2, 5, 1, 0)
    assert leader.as_leader.close_for_load(1)
    leader.become_leader(3, 2, (1, 2), (1, 2))
    assert append(leader).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.become_leader(4, 3, (1, 2), (1, 2))
    assert append(leader).error is ErrorCode.NONE


def test_leader_moves_its_log_to_the_end_of_the_load_and_keeps_its_producers(
    leader: Replica, tmp_path: Path
) -> None:
    advance_to_remote_end(loaded(load(1, 11)), leader, NOW_MS)
    assert not leader.is_elected
    assert (leader.log_end_offset, leader.high_watermark, leader.local_log_start_offset) == (11, 11, 11)
    leader.become_leader(4, 2, (1,), (1,))
    assert append(leader, **RETRIED).base_offset == 0, "a retry is written again"
    assert append(leader, **RETRIED | {"base_sequence": 1}).base_offset == 11
    leader.close(clean=False)
    again = opened(tmp_path / "t-0", clean=False)
    assert (again.log.segments[0].base_offset, again.log_end_offset) == (11, 12)
    again.become_leader(5, 3, (1,), (1,))
    assert append(again, **RETRIED).base_offset == 0
    assert [tuple(entry) for entry in again.log.epochs.entries] == [(3, 0), (4, 11), (5, 12)]


def test_moved_log_without_records_is_there_after_a_crash(leader: Replica, tmp_path: Path) -> None:
    advance_to_remote_end(loaded(load(1, 11)), leader, NOW_MS)
    again = opened(tmp_path / "t-0", clean=False)
    assert again.log_end_offset == 11
    again.become_leader(4, 2, (1,), (1,))
    assert append(again, **RETRIED).base_offset == 0


def test_follower_that_is_elected_before_it_moved_continues_after_the_load(leader: Replica) -> None:
    leader.become_follower(2, 4, 2)
    advance_to_remote_end(loaded(load(1, 11)), leader, NOW_MS)
    leader.become_leader(5, 3, (1,), (1,))
    assert append(leader, **RETRIED).base_offset == 0
    assert append(leader).base_offset == 11


def test_offsets_of_a_load_in_the_same_epoch_have_that_epoch(leader: Replica) -> None:
    leader.become_follower(2, 4, 2)
    advance_to_remote_end(loaded(load(1, 11, leader_epoch=4)), leader, NOW_MS)
    assert leader.end_offset_for_epoch(3).end_offset == 1
    assert leader.end_offset_for_epoch(4).end_offset == 11


@pytest.mark.parametrize("is_unclean", [False, True])
def test_log_that_may_lack_records_before_the_load_has_no_producers(
    leader: Replica, is_unclean: bool
) -> None:
    leader.become_follower(2, 4, 2)
    base = 1 if is_unclean else 2
    advance_to_remote_end(loaded(load(base, 11)), leader, NOW_MS, is_unclean=is_unclean)
    assert leader.log_end_offset == 11
    assert list(leader.active_producers()) == []


def test_log_at_the_end_of_a_load_stays_as_it_is(leader: Replica) -> None:
    advance_to_remote_end(loaded(load(0, 1)), leader, NOW_MS)
    assert leader.is_elected
