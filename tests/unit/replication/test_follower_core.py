"""Follower core: where it fetches, and where it cuts its log so that both logs agree."""

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
        log.epochs.note(epoch, offset)
    return log


def follower(epoch: int = 9) -> FollowerCore:
    core = FollowerCore(2)
    assert core.follow(1, epoch)
    return core


def step(log: FakeLog, answer: Fetched) -> Step:
    core = follower()
    return core.on_fetched(core.position(log), answer, log)


def test_it_asks_from_its_log_end_with_the_epoch_of_its_last_record() -> None:
    assert follower().position(log_of(3, 3, 5)) == FetchPosition(3, 5, 9)
    assert follower().position(FakeLog(0)) == FetchPosition(0, -1, 9)


def test_a_log_whose_records_are_all_gone_tells_no_epoch() -> None:
    log = FakeLog(7, LeaderEpochs([(3, 0)]), log_start_offset=7, local_log_start_offset=7)
    assert follower().position(log) == FetchPosition(7, -1, 9)


def test_an_older_leader_epoch_is_not_followed() -> None:
    core = follower(5)
    assert not core.follow(3, 4) and (core.leader, core.leader_epoch) == (1, 5)
    assert core.follow(-1, 6) and not core.follows


def test_logs_that_agree_are_appended_to() -> None:
    assert step(log_of(3), Fetched(high_watermark=1)) == APPEND


def test_it_cuts_where_the_epoch_of_its_last_record_ends_in_the_leaders_log() -> None:
    assert step(log_of(3, 3, 3, 3), Fetched(diverging=EpochEnd(3, 2))) == Truncate(2)


def test_it_cuts_where_the_leaders_older_epoch_ends_here() -> None:
    """The leader does not know epoch 5, and has more records of epoch 3 than the follower."""
    assert step(log_of(3, 3, 5, 5), Fetched(diverging=EpochEnd(3, 9))) == Truncate(2)


def test_it_cuts_before_what_neither_can_compare_and_asks_again() -> None:
    """The leader's epoch 4 is unknown here (KIP-279): what follows epoch 2 here is of epochs that the leader
    does not know."""
    assert step(log_of(2, 2, 5, 6), Fetched(diverging=EpochEnd(4, 3))) == Truncate(2)


def test_with_no_epochs_of_its_own_it_cuts_where_the_leader_says() -> None:
    log = FakeLog(4)
    assert step(log, Fetched(diverging=EpochEnd(3, 2))) == Truncate(2)


def test_where_deleted_history_diverges_it_begins_anew() -> None:
    log = FakeLog(9, LeaderEpochs([(5, 4)]), log_start_offset=4, local_log_start_offset=4)
    assert step(log, Fetched(diverging=EpochEnd(3, 2), log_start_offset=1)) == StartAt(1)


def test_everything_local_may_diverge_and_what_was_deleted_agree() -> None:
    log = FakeLog(9, LeaderEpochs([(5, 4)]), log_start_offset=4, local_log_start_offset=4)
    assert step(log, Fetched(diverging=EpochEnd(5, 4), log_start_offset=0)) == Truncate(4)


def test_nonsense_cuts_nothing() -> None:
    assert isinstance(step(log_of(3, 3), Fetched(diverging=EpochEnd(3, 2))), Retry)


def test_behind_the_leaders_log_start_it_begins_anew_there() -> None:
    answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=50, log_start_offset=40)
    assert step(log_of(1, 1), answer) == StartAt(40)


def test_an_empty_log_that_begins_after_the_leaders_end_begins_anew() -> None:
    log = FakeLog(100, log_start_offset=100, local_log_start_offset=100)
    answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)
    assert step(log, answer) == StartAt(0)


def test_records_are_not_given_up_for_an_answer_that_says_nothing() -> None:
    for start in (-1, 0, 1):
        answer = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
        assert step(log_of(1, 1), answer) == Retry(ErrorCode.OFFSET_OUT_OF_RANGE)


def test_what_the_leader_has_in_the_remote_tier_alone_is_not_fetched() -> None:
    answer = Fetched(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=3)
    assert step(log_of(1, 1), answer) == StartFromTier(3)


@pytest.mark.parametrize(
    "error",
    [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER],
)
def test_other_errors_are_tried_again(error: ErrorCode) -> None:
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
def test_an_answer_to_another_question_is_stale(answer: Fetched) -> None:
    core, log = follower(), log_of(1, 2)
    for asked in (FetchPosition(1, 1, 9), FetchPosition(2, 1, 9), FetchPosition(2, 2, 8)):
        assert core.on_fetched(asked, answer, log) == STALE
    asked = core.position(log)
    core.follow(-1, 10)
    assert core.on_fetched(asked, answer, log) == STALE


def agree(mine: Sequence[int], theirs: Sequence[int]) -> tuple[list[int], int]:
    """What remains of a log after fetching from a leader until both agree, and how many cuts it took."""
    kept, leaders, cuts = list(mine), log_of(*theirs), 0
    while True:
        log = log_of(*kept)
        core = follower()
        asked = core.position(log)
        end = leaders.epochs.end_offset_for(asked.last_fetched_epoch, leaders.log_end_offset)
        disagree = end.epoch < asked.last_fetched_epoch or end.end_offset < asked.offset
        if asked.last_fetched_epoch < 0 or not disagree:
            return kept, cuts
        found = core.on_fetched(asked, Fetched(diverging=end, log_start_offset=0), log)
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
def test_repeated_cuts_end_at_the_common_part(mine: list[int], theirs: list[int], common: int) -> None:
    """A record is known by its offset and epoch: a leader writes one record at each offset."""
    kept, cuts = agree(mine, theirs)
    assert kept == theirs[:common] == mine[:common]
    assert cuts <= len(set(mine))
