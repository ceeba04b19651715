"""The hand-written paths of Produce and Fetch agree with the codec."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tierlog.broker.wire.codec import MalformedFrame, decode, encode
from tierlog.broker.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tierlog.broker.wire.produce import decode_produce_request, encode_produce_response
from tierlog.broker.wire.schema import ZERO_UUID

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
versions = st.integers(3, 13)
few = {"min_size": 1, "max_size": 2}

requests = st.builds(
    ProduceRequest,
    transactional_id=st.none() | st.text(max_size=200),
    acks=st.sampled_from([-1, 0, 1, 2]),
    timeout_ms=int32,
    topic_data=st.lists(
        st.builds(
            TopicProduceData,
            name=st.text(max_size=200),
            topic_id=st.uuids(),
            partition_data=st.lists(
                st.builds(PartitionProduceData, index=int32, records=st.none() | st.binary(max_size=300)),
                **few,
            ),
        ),
        **few,
    ),
)
responses = st.builds(
    ProduceResponse,
    throttle_time_ms=int32,
    node_endpoints=st.just([]) | st.just([NodeEndpoint(node_id=1, host="h", port=9)]),
    responses=st.lists(
        st.builds(
            TopicProduceResponse,
            name=st.text(max_size=200),
            topic_id=st.uuids(),
            partition_responses=st.lists(
                st.builds(
                    PartitionProduceResponse,
                    index=int32,
                    error_code=st.sampled_from([0, 0, 0, 6]),
                    base_offset=int64,
                    log_append_time_ms=int64,
                    log_start_offset=int64,
                    record_errors=st.just([]) | st.just([BatchIndexAndErrorMessage(batch_index=1)]),
                    error_message=st.none() | st.text(max_size=5),
                    current_leader=st.just(LeaderIdAndEpoch()) | st.just(LeaderIdAndEpoch(leader_id=4)),
                ),
                **few,
            ),
        ),
        **few,
    ),
)


def forget_what_the_version_lacks(request: ProduceRequest, version: int) -> ProduceRequest:
    for topic in request.topic_data:
        if version >= 13:
            topic.name = ""
        else:
            topic.topic_id = ZERO_UUID
    return request


@settings(max_examples=300, deadline=None, database=None)
@given(versions, requests)
def test_produce_requests(version: int, request: ProduceRequest) -> None:
    body = encode(request, version)
    buffer = bytearray(b"before" + body + b"after")
    found = decode_produce_request(version, buffer, 6, 6 + len(body))
    assert found == forget_what_the_version_lacks(request, version)
    for topic in found.topic_data:
        for partition in topic.partition_data:
            assert partition.records is None or not memoryview(partition.records).readonly


@settings(max_examples=300, deadline=None, database=None)
@given(versions, requests, st.data())
def test_produce_requests_changed(version: int, request: ProduceRequest, data: st.DataObject) -> None:
    """Cut, padded or with one byte changed: the same verdict as the codec's."""
    body = bytearray(encode(request, version))
    body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    padded = body + bytes(data.draw(st.integers(0, 3)))
    end = min(end + data.draw(st.integers(0, 1)), len(padded))
    assert verdict(lambda: decode_produce_request(version, padded, 0, end)) == verdict(
        lambda: decode(ProduceRequest, version, padded, 0, end)
    )


def verdict(read: Any) -> Any:
    try:
        return read()
    except MalformedFrame:
        return "malformed"


@settings(max_examples=300, deadline=None, database=None)
@given(versions, responses)
def test_produce_responses(version: int, response: ProduceResponse) -> None:
    assert encode_produce_response(version, response) == encode(response, version)
