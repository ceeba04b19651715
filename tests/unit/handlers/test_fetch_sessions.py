"""Fetch sessions (KIP-227): epochs, contents of incremental responses, and eviction."""

import random
import uuid

import pytest

from tierlog.broker.handlers.fetch_sessions import (
    EVICTION_MS,
    MAX_EPOCH,
    NO_SESSION,
    FetchContext,
    FetchSessions,
    SessionFault,
    SessionPartition,
)
from tierlog.protocol.errors import ErrorCode

TOPIC = uuid.UUID(int=1)
FAILED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def requested(*numbers: int, offset: int = 0) -> list[SessionPartition]:
    return [SessionPartition(TOPIC, number, offset, 1000) for number in numbers]


def opened(sessions: FetchSessions, *numbers: int, is_follower: bool = False, now_ms: int = 0) -> int:
    return sessions.open(requested(*numbers), is_follower=is_follower, uses_topic_ids=True, now_ms=now_ms)


def step(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    *numbers: int,
    forget: tuple[int, ...] = (),
    offset: int = 0,
) -> FetchContext | SessionFault:
    forgotten = [(TOPIC, number) for number in forget]
    return sessions.begin(
        session_id, epoch, requested(*numbers, offset=offset), forgotten, uses_topic_ids=True, now_ms=0
    )


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(2, random.Random(1))


def test_session_is_opened_by_epoch_zero_and_updated_by_the_next_request(sessions: FetchSessions) -> None:
    fetch_context = step(sessions, NO_SESSION, 0, 0, 1)
    assert isinstance(fetch_context, FetchContext)
    assert fetch_context.may_open
    session_id = opened(sessions, 0, 1)
    fetch_context = step(sessions, session_id, 1, 1, 2, forget=(0,), offset=5)
    assert isinstance(fetch_context, FetchContext)
    assert [(item.partition, item.fetch_offset) for item in fetch_context.partitions] == [(1, 5), (2, 5)]
    assert isinstance(step(sessions, session_id, 2), FetchContext)


@pytest.mark.parametrize(
    ("known", "epoch", "ids", "fault"),
    [
        (False, 1, True, SessionFault.ID_NOT_FOUND),
        (True, 2, True, SessionFault.INVALID_EPOCH),
        (True, 1, False, SessionFault.TOPIC_ID_MIX),
    ],
)
def test_mismatched_request_gets_a_session_error(
    sessions: FetchSessions, known: bool, epoch: int, ids: bool, fault: SessionFault
) -> None:
    session_id = opened(sessions, 0)
    wanted = session_id if known else session_id + 1
    assert sessions.begin(wanted, epoch, [], [], uses_topic_ids=ids, now_ms=0) is fault


def test_final_epoch_closes_the_session(sessions: FetchSessions) -> None:
    session_id = opened(sessions, 0)
    fetch_context = step(sessions, session_id, -1, 0)
    assert isinstance(fetch_context, FetchContext)
    assert not fetch_context.may_open
    assert step(sessions, session_id, 1) is SessionFault.ID_NOT_FOUND


def test_session_without_partitions_ends(sessions: FetchSessions) -> None:
    session_id = opened(sessions, 0)
    fetch_context = step(sessions, session_id, 1, forget=(0,))
    assert isinstance(fetch_context, FetchContext)
    assert fetch_context.session is None
    assert len(sessions) == 0


def test_session_epoch_wraps_to_one(sessions: FetchSessions) -> None:
    session_id = opened(sessions, 0)
    fetch_context = step(sessions, session_id, 1)
    assert isinstance(fetch_context, FetchContext)
    assert fetch_context.session is not None
    fetch_context.session.next_epoch = MAX_EPOCH
    step(sessions, session_id, MAX_EPOCH)
    assert fetch_context.session.next_epoch == 1


def test_responses_contain_only_changes() -> None:
    partition = SessionPartition(TOPIC, 0, 0, 1000)

    def is_sent(
        error: ErrorCode = ErrorCode.NONE, high_watermark: int = 5, log_start: int = 0, records: bool = False
    ) -> bool:
        return partition.record_response(
            error=error, high_watermark=high_watermark, log_start_offset=log_start, must_be_sent=records
        )

    assert is_sent()
    assert not is_sent()
    assert is_sent(records=True)
    assert is_sent(high_watermark=6)
    assert is_sent(high_watermark=6, log_start=1)
    assert is_sent(error=FAILED, high_watermark=6, log_start=1)
    assert is_sent(error=FAILED, high_watermark=6, log_start=1), "an error is repeated"
    assert is_sent(high_watermark=6, log_start=1), "the end of an error is sent"
    assert not is_sent(high_watermark=6, log_start=1)


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"), [(9, 4, True), (10, 5, True), (10, 4, False), (11, 4, False)]
)
def test_high_watermark_is_sent_again_after_truncation_or_a_new_epoch(
    offset: int, epoch: int, expected: bool
) -> None:
    partition = SessionPartition(TOPIC, 0, 10, 1000, 4)

    def is_sent() -> bool:
        return partition.record_response(
            error=ErrorCode.NONE, high_watermark=5, log_start_offset=0, must_be_sent=False
        )

    assert is_sent()
    partition.update(SessionPartition(TOPIC, 0, offset, 1000, epoch))
    assert is_sent() is expected


def test_partitions_with_records_move_to_the_end(sessions: FetchSessions) -> None:
    session_id = opened(sessions, 0, 1, 2)
    fetch_context = step(sessions, session_id, 1)
    assert isinstance(fetch_context, FetchContext)
    assert fetch_context.session is not None
    fetch_context.session.rotate([(TOPIC, 0)])
    fetch_context = step(sessions, session_id, 2)
    assert isinstance(fetch_context, FetchContext)
    assert [item.partition for item in fetch_context.partitions] == [1, 2, 0]


def test_full_cache_of_young_sessions_refuses_a_new_one(sessions: FetchSessions) -> None:
    opened(sessions, 0)
    opened(sessions, 0)
    assert opened(sessions, 0, 1, 2) == NO_SESSION


def test_stale_session_is_evicted(sessions: FetchSessions) -> None:
    stale = opened(sessions, 0, 1, 2)
    fresh = opened(sessions, 0, now_ms=EVICTION_MS)
    assert opened(sessions, 0, now_ms=EVICTION_MS + 1) != NO_SESSION
    assert step(sessions, stale, 1) is SessionFault.ID_NOT_FOUND
    assert isinstance(step(sessions, fresh, 1), FetchContext)


def test_a_follower_takes_the_slot_of_the_smallest_consumer(sessions: FetchSessions) -> None:
    small, large = opened(sessions, 0), opened(sessions, 0, 1)
    assert opened(sessions, 0, is_follower=True) != NO_SESSION
    assert step(sessions, small, 1) is SessionFault.ID_NOT_FOUND
    assert isinstance(step(sessions, large, 1), FetchContext)


def test_larger_session_evicts_a_smaller_old_one(sessions: FetchSessions) -> None:
    old = [opened(sessions, 0, 1), opened(sessions, 0, 1, 2)]
    late = EVICTION_MS + 1
    for session_id in old:  # used just now, so that neither is stale
        sessions.begin(session_id, 1, [], [], uses_topic_ids=True, now_ms=late)
    assert opened(sessions, 0, now_ms=late) == NO_SESSION
    assert opened(sessions, 0, 1, now_ms=late) != NO_SESSION
    assert sessions.evictions == 1


def test_no_slots_means_no_sessions() -> None:
    assert opened(FetchSessions(0, random.Random(1)), 0) == NO_SESSION


def test_partitions_of_all_sessions_are_limited() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=5)
    first, second = opened(sessions, 0, 1), opened(sessions, 0, 1)
    assert opened(sessions, 0, 1) == NO_SESSION
    assert (sessions.partitions, sessions.refused) == (4, 1)
    assert isinstance(step(sessions, first, 1, 2), FetchContext)
    assert step(sessions, second, 1, 2) is SessionFault.ID_NOT_FOUND, "one too many, and it is gone"
    assert (sessions.partitions, len(sessions)) == (3, 1)
    assert isinstance(step(sessions, first, 2, forget=(0,)), FetchContext)
    assert sessions.partitions == 2
    assert isinstance(step(sessions, first, -1), FetchContext)
    assert (sessions.partitions, len(sessions)) == (0, 0)


def test_stale_sessions_free_their_partitions() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=6)
    first, second = opened(sessions, 0, 1), opened(sessions, 0, 1, now_ms=1)
    assert opened(sessions, 0, 1, 2, now_ms=EVICTION_MS) == NO_SESSION
    assert opened(sessions, 0, 1, 2, now_ms=EVICTION_MS + 1) != NO_SESSION
    assert (sessions.partitions, sessions.evictions, sessions.refused) == (5, 1, 1)
    assert step(sessions, first, 1) is SessionFault.ID_NOT_FOUND, "the one unused for longest, and no more"
    assert isinstance(step(sessions, second, 1), FetchContext)


def test_no_session_is_evicted_for_one_that_is_too_large_anyway() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=4)
    stale, fresh = opened(sessions, 0, 1), opened(sessions, 0, 1, now_ms=EVICTION_MS)
    assert opened(sessions, 0, 1, 2, now_ms=EVICTION_MS + 1) == NO_SESSION
    assert isinstance(step(sessions, stale, 1), FetchContext)
    assert isinstance(step(sessions, fresh, 1), FetchContext)


def test_large_old_sessions_are_evicted() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=6)
    small, large = opened(sessions, 0, 1), opened(sessions, 0, 1, 2)
    late = EVICTION_MS + 1
    for session_id in (small, large):  # used just now, so that neither is stale
        sessions.begin(session_id, 1, [], [], uses_topic_ids=True, now_ms=late)
    assert opened(sessions, 0, 1, 2, now_ms=late) == NO_SESSION, "not larger than the newcomer"
    assert opened(sessions, 0, 1, now_ms=late) != NO_SESSION
    assert step(sessions, large, 2) is SessionFault.ID_NOT_FOUND
    assert isinstance(step(sessions, small, 2), FetchContext)


def test_follower_evicts_sessions_of_consumers() -> None:
    sessions = FetchSessions(10, random.Random(1), partitions_max=4)
    small, large = opened(sessions, 0), opened(sessions, 0, 1, 2)
    assert opened(sessions, 0, 1, is_follower=True) != NO_SESSION
    assert step(sessions, large, 1) is SessionFault.ID_NOT_FOUND
    assert isinstance(step(sessions, small, 1), FetchContext)


def test_one_session_can_have_only_a_share_of_the_partitions() -> None:
    sessions = FetchSessions(10, random.Random(1), session_partitions_max=2)
    assert opened(sessions, 0, 1, 2) == NO_SESSION
    session_id = opened(sessions, 0, 1)
    assert isinstance(step(sessions, session_id, 1, 2, forget=(0,)), FetchContext)
    assert step(sessions, session_id, 2, 3) is SessionFault.ID_NOT_FOUND
    assert (sessions.partitions, sessions.refused) == (0, 2)


def test_log_start_is_sent_until_the_follower_has_it() -> None:
    follower = SessionPartition("t", 0, 10, 1000, log_start_offset=0)
    reported = {"error": 0, "high_watermark": 10, "log_start_offset": 6, "must_be_sent": False}
    assert follower.record_response(**reported) and follower.record_response(**reported)
    follower.update(SessionPartition("t", 0, 10, 1000, log_start_offset=6))
    assert not follower.record_response(**reported)


def test_log_start_is_sent_to_a_consumer_once() -> None:
    consumer = SessionPartition("t", 0, 10, 1000)
    reported = {"error": 0, "high_watermark": 10, "log_start_offset": 6, "must_be_sent": False}
    assert consumer.record_response(**reported) and not consumer.record_response(**reported)
