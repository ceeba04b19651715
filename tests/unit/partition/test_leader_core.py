"""Leader core: high watermark, in-sync set, epochs."""

import pytest

from tierlog.broker.partition.leader import LeaderCore
from tierlog.broker.partition.producers import ProducerState, Refused
from tierlog.broker.ports.types import InvariantViolation
from tierlog.broker.records.batch import BatchHeader
from tierlog.broker.wire.errors import ErrorCode

HEADER = BatchHeader(0, 100, 0, 2, 0, 0, 0, 5, 5, -1, -1, -1, 1)


def test_alone_it_commits_what_it_appends() -> None:
    core = LeaderCore(1, 5, 0)
    assert core.become_leader(0, 0, [1]) and core.high_watermark == 5
    assert core.appended(8) and core.high_watermark == 8
    core.check()


def test_the_high_watermark_is_the_smallest_end_in_sync() -> None:
    core = LeaderCore(1, 0, 0)
    core.become_leader(0, 0, [1, 2, 3])
    assert not core.appended(10)
    assert not core.follower_fetched(2, 10)
    assert core.follower_fetched(3, 4) and core.high_watermark == 4
    assert not core.follower_fetched(3, 2)
    assert not core.follower_fetched(9, 10)
    assert core.become_leader(0, 1, [1, 2]) and core.high_watermark == 10


def test_it_never_goes_back_and_ignores_older_epochs() -> None:
    core = LeaderCore(1, 10, 0)
    core.become_leader(3, 5, [1])
    assert not core.become_leader(2, 6, [1, 2]) and core.leader_epoch == 3
    assert not core.become_leader(4, 6, [1, 2]) and core.high_watermark == 10
    core.appended(12)
    assert core.high_watermark == 10
    with pytest.raises(InvariantViolation):
        core.appended(11)


def test_who_does_not_lead_refuses() -> None:
    verdict = LeaderCore(1, 0, 0).decide_append(HEADER, ProducerState(), acks=1, min_in_sync=1)
    assert isinstance(verdict, Refused) and verdict.error == ErrorCode.NOT_LEADER_OR_FOLLOWER
