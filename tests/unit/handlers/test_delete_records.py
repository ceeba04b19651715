"""DeleteRecords waits for the replicas that could lead next (Kafka's DelayedDeleteRecords)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from fetch_node import EPOCH, FOLLOWED, LED, TOPIC, Node, fetch_node

from tierlog.broker.handlers.context import Connection, RequestContext
from tierlog.broker.handlers.delete_records import _Deletion, delete_records_handler
from tierlog.broker.handlers.purgatory import DELETE_RECORDS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import delete_records, fetch

LONG_MS = 600_000
RECORDS, DELETED = 10, 6
ALIVE = (2, 3, 4)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Broker 1 leads ten records that all others have; 4 is alive and not in sync."""
    async with fetch_node(tmp_path) as made:
        made.lead(RECORDS)
        for follower in ALIVE:
            made.hear(follower, RECORDS)
        yield made


def start_delete(
    node: Node, timeout_ms: int = LONG_MS, partitions: Sequence[int] = (LED,), offset: int = DELETED
) -> "asyncio.Task[Any]":
    requested = [
        delete_records.DeleteRecordsPartition(partition_index=one, offset=offset) for one in partitions
    ]
    topic = delete_records.DeleteRecordsTopic(name="t", partitions=requested)
    context = RequestContext(21, 2, 1, "test", Connection(1, "127.0.0.1", 5000))
    request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
    return asyncio.ensure_future(delete_records_handler(node.deps)(context, request))  # type: ignore[arg-type]


def answer_of(task: "asyncio.Task[Any]") -> tuple[int, int]:
    result = task.result().topics[0].partitions[0]
    return result.error_code, result.low_watermark


async def waits(node: Node) -> None:
    await until(lambda: node.purgatory.waiting[DELETE_RECORDS] == 1)


async def test_delete_records_completes_when_all_live_replicas_have_the_log_start(node: Node) -> None:
    answer = start_delete(node)
    await waits(node)
    assert node.replica(LED).log_start_offset == DELETED
    for follower in ALIVE:
        await asyncio.sleep(0)
        assert not answer.done(), f"broker {follower} may lead next and has the records"
        node.hear(follower, RECORDS, DELETED)
    await answer
    assert answer_of(answer) == (ErrorCode.NONE, DELETED)


@pytest.mark.parametrize("offset", [-2, RECORDS + 1])
async def test_no_record_is_deleted_at_an_offset_outside_of_the_log(node: Node, offset: int) -> None:
    answer = start_delete(node, offset=offset)
    await answer
    assert answer_of(answer)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.replica(LED).log_start_offset == 0


async def test_offset_minus_one_deletes_up_to_the_high_watermark(node: Node) -> None:
    for follower in ALIVE:
        node.hear(follower, RECORDS, RECORDS)
    answer = start_delete(node, offset=-1)
    await answer
    assert answer_of(answer) == (ErrorCode.NONE, RECORDS)


async def test_timed_out_delete_records_has_the_low_watermark(node: Node) -> None:
    for follower in ALIVE:
        node.hear(follower, RECORDS, 2)
    answer = start_delete(node, timeout_ms=1)
    await answer
    assert answer_of(answer) == (ErrorCode.REQUEST_TIMED_OUT, 2)


async def test_delete_records_does_not_wait_for_a_dead_broker(node: Node) -> None:
    answer = start_delete(node)
    await waits(node)
    node.hear(2, RECORDS, DELETED)
    node.hear(3, RECORDS, DELETED)
    node.replica(LED).as_leader.set_live({1: 1, 2: 2, 3: 3})
    await answer
    assert answer_of(answer) == (ErrorCode.NONE, DELETED)


async def test_log_start_of_a_restarted_follower_counts(node: Node) -> None:
    """Its log start is unchanged since its previous process; only the broker epoch of its fetch is new."""
    for follower in ALIVE:
        node.hear(follower, RECORDS, DELETED)
    node.replica(LED).as_leader.set_live({1: 1, 2: 22, 3: 3, 4: 4})
    answer = start_delete(node)
    await waits(node)
    node.replica(LED).as_leader.follower_fetched(2, 22, RECORDS, 0, DELETED)
    await until(answer.done)
    assert answer_of(answer) == (ErrorCode.NONE, DELETED)


async def test_completed_deletions_of_a_large_request_are_not_checked_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name ten thousand partitions, and each fetch of a follower may have moved one."""
    node.take_lead(FOLLOWED, EPOCH + 1)
    other = node.replica(FOLLOWED)
    node.lead(RECORDS, FOLLOWED)
    for follower in ALIVE:
        other.as_leader.follower_fetched(follower, follower, RECORDS, 0)
    answer = start_delete(node, partitions=[FOLLOWED, *[LED] * 100])
    await waits(node)
    for follower in ALIVE:
        node.hear(follower, RECORDS, DELETED)
    await asyncio.sleep(0)
    looked = list[_Deletion]()
    check_done = _Deletion.check_done
    monkeypatch.setattr(_Deletion, "check_done", lambda self: looked.append(self) or check_done(self))
    for follower in ALIVE:
        other.as_leader.follower_fetched(follower, follower, RECORDS, 0, DELETED)
        await asyncio.sleep(0)
    await until(answer.done)
    assert len(looked) <= len(ALIVE)
    results = answer.result().topics[0].partitions
    assert {(one.error_code, one.low_watermark) for one in results} == {(ErrorCode.NONE, DELETED)}


async def test_former_leader_has_no_low_watermark(node: Node) -> None:
    answer = start_delete(node)
    await waits(node)
    node.replica(LED).become_follower(2, EPOCH + 1, 1)
    await answer
    assert answer_of(answer) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_new_log_start_completes_a_followers_fetch(node: Node) -> None:
    def request(epoch: int, session: int, wait_ms: int) -> fetch.FetchRequest:
        place = fetch.FetchPartition(
            partition=LED, fetch_offset=RECORDS, partition_max_bytes=1000, current_leader_epoch=EPOCH
        )
        topics = [fetch.FetchTopic(topic_id=TOPIC, partitions=[place])]
        return fetch.FetchRequest(
            session_id=session,
            session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            topics=[] if session else topics,
            replica_state=fetch.ReplicaState(replica_id=2, replica_epoch=2),
        )

    opened = await node.ask(request(0, 0, 0))
    waiting = asyncio.ensure_future(node.ask(request(1, opened.session_id, LONG_MS)))
    await until(lambda: len(node.purgatory) == 1)
    deletion = start_delete(node)
    reported = await waiting
    assert reported.responses[0].partitions[0].log_start_offset == DELETED
    deletion.cancel()
