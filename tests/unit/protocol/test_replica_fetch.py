"""The hand-written codec of Fetch equals the general codec byte for byte."""

import uuid

import pytest

from tierlog.protocol.api import APIS, FETCH_KEY, decode_response, encode_request, encode_response
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.replica_fetch import VERSION, decode_fetch_response, encode_fetch_request

FETCH = APIS[FETCH_KEY]
ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2 << 100)
STATE = ReplicaState(replica_id=3, replica_epoch=2**40)


def requested(number: int, **fields: object) -> FetchPartition:
    return FetchPartition(
        partition=number,
        current_leader_epoch=4,
        fetch_offset=2**40 + number,
        last_fetched_epoch=-1,
        log_start_offset=7,
        partition_max_bytes=1 << 20,
        **fields,
    )


REQUESTS = {
    "nothing new": FetchRequest(
        replica_state=STATE, max_wait_ms=500, min_bytes=1, session_id=77, session_epoch=9
    ),
    "two topics": FetchRequest(
        replica_state=STATE,
        topics=[
            FetchTopic(topic_id=ONE, partitions=[requested(0), requested(1)]),
            FetchTopic(topic_id=OTHER, partitions=[requested(5)]),
        ],
    ),
    "more than one byte counts": FetchRequest(
        replica_state=STATE, topics=[FetchTopic(topic_id=ONE, partitions=[requested(n) for n in range(300)])]
    ),
    "some that left": FetchRequest(
        replica_state=STATE,
        forgotten_topics_data=[
            ForgottenTopic(topic_id=ONE, partitions=[1, 2]),
            ForgottenTopic(topic_id=OTHER, partitions=[]),
        ],
    ),
    "a rack": FetchRequest(replica_state=STATE, rack_id="zone/höst"),
    "no replica": FetchRequest(),
    "a cluster id": FetchRequest(replica_state=STATE, cluster_id="c"),
    "a directory": FetchRequest(
        replica_state=STATE,
        topics=[
            FetchTopic(topic_id=ONE, partitions=[requested(0), requested(1, replica_directory_id=OTHER)])
        ],
    ),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_requests_equal_the_codecs(request_: FetchRequest) -> None:
    expected = encode_request(FETCH, VERSION, 2**31 - 1, "replica-3", request_)
    assert encode_fetch_request(2**31 - 1, "replica-3", request_) == expected


def partition_data(number: int, records: bytes | None = b"", **fields: object) -> PartitionData:
    return PartitionData(
        partition_index=number,
        high_watermark=2**40,
        last_stable_offset=2**40 - 1,
        log_start_offset=5,
        records=records,
        **fields,
    )


def response(*partitions: PartitionData, **fields: object) -> FetchResponse:
    topics = [
        FetchableTopicResponse(topic_id=topic_id, partitions=list(partitions)) for topic_id in (ONE, OTHER)
    ]
    return FetchResponse(session_id=7, throttle_time_ms=3, responses=topics, **fields)


RESPONSES = {
    "nothing": FetchResponse(session_id=7),
    "an error": FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    "records": response(
        partition_data(0, b"r" * 40_000),
        partition_data(1, b"", aborted_transactions=None),
        partition_data(2, b"r" * 126),
    ),
    "an error of a partition": response(partition_data(0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    "null records": response(partition_data(0, None)),
    "an aborted transaction": response(
        partition_data(0, b"r", aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=2)])
    ),
    "a diverging epoch": response(
        partition_data(0), partition_data(1, diverging_epoch=EpochEndOffset(epoch=3, end_offset=2**35))
    ),
    "another leader": response(
        partition_data(
            0,
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
            current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
        ),
        node_endpoints=[NodeEndpoint(node_id=2, host="h", port=9092)],
    ),
    "more than one byte counts": response(*(partition_data(n, b"r" * n) for n in range(200))),
}


def frame(message: FetchResponse) -> bytes:
    return b"".join(map(bytes, encode_response(FETCH, VERSION, 99, message)))  # type: ignore[arg-type]


@pytest.mark.parametrize("message", RESPONSES.values(), ids=RESPONSES)
def test_responses_equal_the_codecs(message: FetchResponse) -> None:
    buffer = frame(message)
    view = memoryview(bytearray(b"before" + buffer + b"behind, of the next frame" * 20))
    start, end = 6 + 4, 6 + len(buffer)
    assert decode_fetch_response(view, start, end) == decode_response(FETCH, VERSION, buffer, 4)


@pytest.mark.parametrize("what", ["records", "a diverging epoch", "nothing"])
def test_truncated_response_is_malformed_with_any_bytes_after_it(what: str) -> None:
    buffer = frame(RESPONSES[what])
    view = memoryview(bytearray(buffer + buffer))
    for end in (*range(4, min(len(buffer), 400)), len(buffer) - 1):
        with pytest.raises(MalformedFrame):
            decode_fetch_response(view, 4, end)
    with pytest.raises(MalformedFrame):
        decode_fetch_response(view, 4, len(buffer) + 1)


@pytest.mark.parametrize("what", ["records", "a diverging epoch", "nothing"])
def test_truncated_response_is_malformed_at_the_end_of_the_buffer(what: str) -> None:
    buffer = frame(RESPONSES[what])
    for end in (*range(4, min(len(buffer), 400)), len(buffer) - 1):
        with pytest.raises(MalformedFrame):
            decode_fetch_response(memoryview(bytearray(buffer[:end])), 4, end)
