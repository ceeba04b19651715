"""What a follower tells the leader in an incremental fetch session (KIP-227)."""

import random
import uuid

from tierlog.broker.handlers.fetch_sessions import FetchScope, FetchSessions, SessionPartition
from tierlog.broker.replication.core.follower import FetchPosition
from tierlog.broker.replication.fetch_session_handler import LAST_EPOCH, Asked, FetchingSession
from tierlog.protocol.messages.fetch import FetchRequest

TOPIC = uuid.UUID(int=7)
ONE, TWO = (TOPIC, 0), (TOPIC, 1)


def at(offset: int) -> Asked:
    return Asked(FetchPosition(offset, 3, 4), log_start_offset=1)


def filled(
    session: FetchingSession, changed: dict[tuple[uuid.UUID, int], Asked], *gone: object
) -> FetchRequest:
    request = FetchRequest()
    session.fill(request, changed, gone)  # type: ignore[arg-type]
    return request


def named(request: FetchRequest) -> dict[int, int]:
    return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}


def test_the_first_request_names_all_and_the_next_only_what_moved() -> None:
    session = FetchingSession(1000)
    first = filled(session, {ONE: at(5), TWO: at(9)})
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0: 5, 1: 9})
    asked = first.topics[0].partitions[0]
    assert (asked.current_leader_epoch, asked.last_fetched_epoch, asked.log_start_offset) == (4, 3, 1)
    session.answered(77)
    second = filled(session, {ONE: at(6), TWO: at(9)})
    assert (second.session_id, second.session_epoch, named(second)) == (77, 1, {0: 6})
    assert session.asked == {ONE: at(6), TWO: at(9)}


def test_what_left_is_told_once() -> None:
    session = FetchingSession(1000)
    filled(session, {ONE: at(5), TWO: at(9)})
    session.answered(77)
    told = filled(session, {}, TWO, TWO)
    assert [(topic.topic_id, topic.partitions) for topic in told.forgotten_topics_data] == [(TOPIC, [1])]
    assert list(session.asked) == [ONE]


def test_a_leader_without_room_for_a_session_is_told_all_each_time() -> None:
    session = FetchingSession(1000)
    filled(session, {ONE: at(5)})
    session.answered(0)
    assert not session.is_open and session.asked == {}
    assert named(filled(session, {ONE: at(5)})) == {0: 5}


def test_epochs_begin_again_at_one() -> None:
    session = FetchingSession(1000)
    session.answered(77)
    session._epoch = LAST_EPOCH
    session.answered(77)
    assert filled(session, {ONE: at(5)}).session_epoch == 1


def test_who_begins_anew_names_the_old_session_so_that_the_leader_drops_it() -> None:
    leader = FetchSessions(10, random.Random(1))
    session = FetchingSession(1000)
    for _ in range(3):
        request = filled(session, {ONE: at(5)})
        assert (request.session_epoch, named(request)) == (0, {0: 5})
        asked = [SessionPartition(TOPIC, number, 0, 1000) for number in named(request)]
        scope = leader.begin(request.session_id, 0, asked, [], uses_topic_ids=True, now_ms=0)
        assert isinstance(scope, FetchScope) and scope.may_open
        session.answered(leader.open(asked, privileged=True, uses_topic_ids=True, now_ms=0))
        assert session.is_open
        session.reset()
        assert not session.is_open
    assert len(leader) == 1
