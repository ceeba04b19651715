"""Follower core: where it fetches, and where it truncates its log."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tierlog.base.leader_epochs import EpochEnd, LeaderEpochs
from tierlog.broker.replication.core.follower import (
    APPEND,
    STALE,
    Fetched,
    FetchPosition,
    FollowerCore,
    Retry,
    StartAt,
    StartFromTier,
    Step,
    Truncate,
)
from tierlog.protocol.errors import ErrorCode


@dataclass
class FakeLog:
    log_end_offset: int
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    log_start_offset: int = 0
    local_log_start_offset: int = 0


def log_of(*records: int) -> FakeLog:
    """One record of each epoch given."""
    log = FakeLog(len(records))
    for offset, epoch in enumerate(records):
        log.epochs.assign(epoch, offset)
    return log


def follower(epoch: int = 9) -> FollowerCore:
    core = FollowerCore(2)
    assert core.follow(1, epoch)
    return core


def step(log: FakeLog, answer: Fetched) -> Step:
    core = follower()
    return core.on_fetched(core.position(log), answer, log)


def test_fetch_position_is_the_log_end_with_the_epoch_of_the_last_record() -> None:
    assert follower().position(log_of(3, 3, 5)) == FetchPosition(3, 5, 9)
    assert follower().position(FakeLog(0)) == FetchPosition(0, -1, 9)


def test_empty_log_has_no_last_fetched_epoch() -> None:
    log = FakeLog(7, LeaderEpochs([(3, 0)]), log_start_offset=7, local_log_start_offset=7)
    assert follower().position(log) == FetchPosition(7, -1, 9)


def test_older_leader_epoch_is_ignored() -> None:
    core = follower(5)
    assert not core.follow(3, 4) and (core.leader, core.leader_epoch) == (1, 5)
    assert core.follow(-1, 6) and not core.is_follower


def test_fetched_records_are_appended_if_the_logs_agree() -> None:
    assert step(log_of(3), Fetched(high_watermark=1)) == APPEND


def test_follower_truncates_where_its_last_epoch_ends_in_the_leaders_log() -> None:
    assert step(log_of(3, 3, 3, 3), Fetched(diverging=EpochEnd(3, 2))) == Truncate(2)


def test_follower_truncates_where_the_leaders_older_epoch_ends_in_its_own_log() -> None:
    """The leader does not know epoch 5, and has more records of epoch 3 than the follower."""
    assert step(log_of(3, 3, 5, 5), Fetched(diverging=EpochEnd(3, 9))) == Truncate(2)


def test_follower_truncates_an_epoch_unknown_to_the_leader_and_fetches_again() -> None:
    """The leader's epoch 4 is unknown here (KIP-279): what follows epoch 2 here is of epochs that the leader
    does not know."""
    assert step(log_of(2, 2, 5, 6), Fetched(diverging=EpochEnd(4, 3))) == Truncate(2)


def test_follower_without_epochs_truncates_at_the_leaders_offset() -> None:
    log = FakeLog(4)
    assert step(log, Fetched(diverging=EpochEnd(3, 2))) == Truncate(2)


def test_divergence_below_the_local_log_start_truncates_fully() -> None:
    log = FakeLog(9, LeaderEpochs([(5, 4)]), log_start_offset=4, local_log_start_offset=4)
    assert step(log, Fetched(diverging=EpochEnd(3, 2), log_start_offset=1)) == StartAt(1)


def test_divergence_at_the_local_log_start_truncates_to_it() -> None:
    log = FakeLog(9, LeaderEpochs([(5, 4)]), log_start_offset=4, local_log_start_offset=4)
    assert step(log, Fetched(diverging=EpochEnd(5, 4), log_start_offset=0)) == Truncate(4)


def test_invalid_diverging_epoch_truncates_nothing() -> None:
    assert isinstance(step(log_of(3, 3), Fetched(diverging=EpochEnd(3, 2))), Retry)


def test_follower_below_the_leaders_log_start_starts_at_it() -> None:
    answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=50, log_start_offset=40)
    assert step(log_of(1, 1), answer) == StartAt(40)


def test_empty_log_above_the_leaders_log_end_starts_at_the_leaders_log_start() -> None:
    log = FakeLog(100, log_start_offset=100, local_log_start_offset=100)
    answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)
    assert step(log, answer) == StartAt(0)


def test_response_without_a_log_start_truncates_nothing() -> None:
    for start in (-1, 0, 1):
        answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
        assert step(log_of(1, 1), answer) == Retry(ErrorCode.OFFSET_OUT_OF_RANGE)


def test_remote_offset_starts_the_follower_from_the_tier() -> None:
    answer = Fetched(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=3)
    assert step(log_of(1, 1), answer) == StartFromTier(3)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER],
)
def test_other_errors_are_retried(error: ErrorCode) -> None:
    assert step(log_of(1), Fetched(error)) == Retry(error)


@pytest.mark.parametrize(
    "answer",
    [
        Fetched(),
        Fetched(diverging=EpochEnd(1, 0)),
        Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=50),
        Fetched(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE),
    ],
)
def test_response_to_another_position_is_stale(answer: Fetched) -> None:
    core, log = follower(), log_of(1, 2)
    for requested in (FetchPosition(1, 1, 9), FetchPosition(2, 1, 9), FetchPosition(2, 2, 8)):
        assert core.on_fetched(requested, answer, log) == STALE
    requested = core.position(log)
    core.follow(-1, 10)
    assert core.on_fetched(requested, answer, log) == STALE


def agree(mine: Sequence[int], theirs: Sequence[int]) -> tuple[list[int], int]:
    """The rest of a log after fetching until it agrees with the leader's, and the number of truncations."""
    kept, leaders, cuts = list(mine), log_of(*theirs), 0
    while True:
        log = log_of(*kept)
        core = follower()
        requested = core.position(log)
        end = leaders.epochs.end_offset_for(requested.last_fetched_epoch, leaders.log_end_offset)
        disagree = end.epoch < requested.last_fetched_epoch or end.end_offset < requested.offset
        if requested.last_fetched_epoch < 0 or not disagree:
            return kept, cuts
        found = core.on_fetched(requested, Fetched(diverging=end, log_start_offset=0), log)
        assert isinstance(found, Truncate), found
        kept, cuts = kept[: found.offset], cuts + 1


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [
        ([1, 1, 1], [1, 1, 1, 4], 3),
        ([1, 1, 3, 3], [1, 1, 2, 4], 2),
        ([1, 2, 5], [1, 3, 4, 6], 1),
        ([1, 2, 2, 5, 7], [1, 2, 3, 6, 8], 2),
        ([2], [1, 3], 0),
        ([1, 3, 5, 7], [1, 2, 4, 6, 8], 1),
    ],
)
def test_repeated_truncations_end_at_the_common_prefix(
    mine: list[int], theirs: list[int], common: int
) -> None:
    """Offset and epoch identify a record: a leader writes one record at each offset."""
    kept, cuts = agree(mine, theirs)
    assert kept == theirs[:common] == mine[:common]
    assert cuts <= len(set(mine))
