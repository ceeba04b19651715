"""Lookups by timestamp take several turns of the event loop, during which retention and elections may
happen."""

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loop_steps import LoopSteps
from opened_replica import opened_replica
from wire_client import message

from tierlog.base.files import OsFiles
from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.offsets import list_offsets_handler
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.lookups import FoundTimestamp, TimestampSearch, retry_if_replaced
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.topic import TopicConfig
from tierlog.metadata.image import RemotePartition
from tierlog.protocol.errors import ErrorCode as E
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
MAX_TIMESTAMP = -3
RECORDS = 50  # per batch
SEGMENTS = 4


def replica_in(directory: Path, number: int = 0) -> Replica:
    """A segment for each batch; each batch is newer than the one after it."""
    replica = opened_replica(
        TopicPartition("t", number),
        uuid.UUID(int=1),
        1,
        directory / f"t-{number}",
        TopicConfig(segment_bytes=1, file_delete_delay_ms=0),
        OsFiles(),
        NOW,
        clean=False,
        rng=random.Random(1),
    )
    replica.become_leader(0, 0, [1])
    for age in range(SEGMENTS):
        records = [NewRecord(NOW - age * 1000 + n, b"k", b"v" * 100) for n in range(RECORDS)]
        appended = replica.as_leader.append(memoryview(encode_batch(records, codec=Codec.GZIP)), NOW)
        assert appended.error is E.NONE
    return replica


def finish(search: TimestampSearch) -> FoundTimestamp | None:
    try:
        while True:
            step = next(search)
            if step is not None:
                step()
    except StopIteration as end:
        found: FoundTimestamp | None = end.value
        return found


@pytest.mark.parametrize(
    ("search", "offset"),
    [
        (lambda replica: replica.log.max_timestamp(), 2 * RECORDS + RECORDS - 1),
        (lambda replica: replica.offset_for_timestamp(NOW - 5000), 2 * RECORDS),
    ],
)
def test_segment_deleted_during_a_lookup_is_not_found(
    tmp_path: Path, search: Callable[[Replica], TimestampSearch], offset: int
) -> None:
    replica = replica_in(tmp_path)
    looking = search(replica)
    step = next(looking)
    assert step is not None
    step()
    assert replica.log.delete_local_before(2 * RECORDS, NOW) == 2
    for path in replica.log.take_due(NOW):
        path.unlink()
    found = finish(looking)
    assert found is not None and found.offset == offset


@pytest.mark.parametrize("fault", [OSError(), CorruptLog()])
def test_failed_lookup_is_not_retried_if_no_segment_was_deleted(fault: Exception) -> None:
    def search(_: object) -> TimestampSearch:
        yield None
        raise fault

    segment: Any = object()
    with pytest.raises(type(fault)):
        finish(retry_if_replaced(lambda: [segment], search))


def handler_of(*replicas: Replica) -> Callable[..., Any]:
    def find_leader(topic: str, partition: int) -> Replica | E:
        found = replicas[partition]
        return found if found.is_leader else E.NOT_LEADER_OR_FOLLOWER

    image = SimpleNamespace(remote_partition=lambda *_: RemotePartition())
    deps: Any = SimpleNamespace(
        find_leader=find_leader, metadata=SimpleNamespace(image=image), batch_validator=BatchValidator()
    )
    handle = list_offsets_handler(deps)
    partitions = [{"partition_index": n, "timestamp": MAX_TIMESTAMP} for n in range(len(replicas))]
    requested = message(
        "ListOffsets", {"replica_id": -1, "topics": [{"name": "t", "partitions": partitions}]}
    )
    context: Any = SimpleNamespace(version=8)
    return lambda: handle(context, requested)


@pytest.mark.parametrize("led_again", [False, True])
async def test_result_is_discarded_if_the_leader_epoch_changed_during_a_lookup(
    tmp_path: Path, led_again: bool
) -> None:
    replicas = [replica_in(tmp_path, number) for number in range(8)]
    waiting = handler_of(*replicas)()
    for replica in replicas:
        replica.become_follower(2, 1, 1)
        if led_again:
            replica.become_leader(2, 2, [1])
    answer = await waiting
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes[-1] == E.NOT_LEADER_OR_FOLLOWER and set(codes) <= {E.NONE, E.NOT_LEADER_OR_FOLLOWER}


async def test_partitions_of_one_request_are_searched_sequentially(tmp_path: Path) -> None:
    handle = handler_of(*(replica_in(tmp_path, number) for number in range(40)))
    with LoopSteps("records") as steps:
        answer = await handle()
    assert {each.error_code for each in answer.topics[0].partitions} == {E.NONE}
    assert {each.offset for each in answer.topics[0].partitions} == {RECORDS - 1}
    assert steps.most < steps.total / 5
