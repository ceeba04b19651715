"""Fetch session handler: requests of an incremental fetch session (KIP-227)."""

import random
import uuid

from tierlog.broker.handlers.fetch_sessions import FetchContext, FetchSessions, SessionPartition
from tierlog.broker.replication.core.follower import FetchPosition
from tierlog.broker.replication.fetch_session_handler import LAST_EPOCH, FetchSessionHandler, FetchState
from tierlog.protocol.messages.fetch import FetchRequest

TOPIC = uuid.UUID(int=7)
ONE, TWO = (TOPIC, 0), (TOPIC, 1)


def at(offset: int) -> FetchState:
    return FetchState(FetchPosition(offset, 3, 4), log_start_offset=1)


def filled(
    session: FetchSessionHandler, changed: dict[tuple[uuid.UUID, int], FetchState], *gone: object
) -> FetchRequest:
    request = FetchRequest()
    session.fill(request, changed, gone)  # type: ignore[arg-type]
    return request


def named(request: FetchRequest) -> dict[int, int]:
    return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}


def test_first_request_names_all_partitions_and_the_next_only_changed_ones() -> None:
    session = FetchSessionHandler(1000)
    first = filled(session, {ONE: at(5), TWO: at(9)})
    assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0: 5, 1: 9})
    sent = first.topics[0].partitions[0]
    assert (sent.current_leader_epoch, sent.last_fetched_epoch, sent.log_start_offset) == (4, 3, 1)
    session.handle_response(77)
    second = filled(session, {ONE: at(6), TWO: at(9)})
    assert (second.session_id, second.session_epoch, named(second)) == (77, 1, {0: 6})
    assert session.session_partitions == {ONE: at(6), TWO: at(9)}


def test_removed_partition_is_forgotten_once() -> None:
    session = FetchSessionHandler(1000)
    filled(session, {ONE: at(5), TWO: at(9)})
    session.handle_response(77)
    request = filled(session, {}, TWO, TWO)
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data] == [(TOPIC, [1])]
    assert list(session.session_partitions) == [ONE]


def test_every_request_is_full_if_the_leader_opens_no_session() -> None:
    session = FetchSessionHandler(1000)
    filled(session, {ONE: at(5)})
    session.handle_response(0)
    assert not session.is_open and session.session_partitions == {}
    assert named(filled(session, {ONE: at(5)})) == {0: 5}


def test_session_epoch_wraps_to_one() -> None:
    session = FetchSessionHandler(1000)
    session.handle_response(77)
    session._epoch = LAST_EPOCH
    session.handle_response(77)
    assert filled(session, {ONE: at(5)}).session_epoch == 1


def test_reset_names_the_old_session_so_that_the_leader_drops_it() -> None:
    leader = FetchSessions(10, random.Random(1))
    session = FetchSessionHandler(1000)
    for _ in range(3):
        request = filled(session, {ONE: at(5)})
        assert (request.session_epoch, named(request)) == (0, {0: 5})
        partitions = [SessionPartition(TOPIC, number, 0, 1000) for number in named(request)]
        fetch_context = leader.begin(request.session_id, 0, partitions, [], uses_topic_ids=True, now_ms=0)
        assert isinstance(fetch_context, FetchContext) and fetch_context.may_open
        session.handle_response(leader.open(partitions, is_follower=True, uses_topic_ids=True, now_ms=0))
        assert session.is_open
        session.reset()
        assert not session.is_open
    assert len(leader) == 1
