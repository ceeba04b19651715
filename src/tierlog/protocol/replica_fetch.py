"""Hand-written codec of a follower's Fetch v17: encodes requests, decodes responses.

Bytes and classes equal the general codec's. A replicated cluster exchanges thousands of these two messages a
second, so this module is compiled (.ci/compile_hot.py). Rare parts use the general codec: tagged fields (a
diverging epoch, a new leader), aborted transactions, malformed bytes. Called by broker connections.
"""

import struct

from tierlog.protocol.api import APIS, FETCH_KEY, decode_response, encode_request
from tierlog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from tierlog.protocol.primitives import read_uuid, read_uvarint, uvarint
from tierlog.protocol.schema import ZERO_UUID

VERSION = 17

_HEADER = struct.Struct(">ihhih").pack  # without its size
_HEADER_SIZE = 10
_FIRST = struct.Struct(">iiibii").pack
_PARTITION = struct.Struct(">iiqiqiB").pack  # without tags
_REPLICA_STATE = struct.Struct(">BBBiqB").pack  # one tag, its number and size; replica id and epoch, no tags
_REPLICA_STATE_SIZE = 13
_NO_TAGS = b"\0"

_ENVELOPE = struct.Struct(">iBihi").unpack_from  # correlation id, no tags, throttle time, error, session id
_ENVELOPE_SIZE = 15
_TOPIC_SIZE = 17  # topic id; one byte for the number of partitions
_PARTITION_DATA = struct.Struct(">ihqqqBi").unpack_from  # partition; one byte for aborted transactions
_PARTITION_DATA_SIZE = 35

_AGREES, _SAME_LEADER, _NO_SNAPSHOT = EpochEndOffset(), LeaderIdAndEpoch(), SnapshotId()
"""Shared by all responses without these fields; decoded messages are never modified."""


def encode_fetch_request(correlation_id: int, client_id: str, request: FetchRequest) -> bytes:
    """A whole frame, size prefix included."""
    pieces = [
        _FIRST(
            request.max_wait_ms,
            request.min_bytes,
            request.max_bytes,
            request.isolation_level,
            request.session_id,
            request.session_epoch,
        ),
        uvarint(len(request.topics) + 1),
    ]
    state = request.replica_state
    plain = request.cluster_id is None and state.replica_id >= 0
    for topic in request.topics:
        plain = _put_topic(pieces, topic) and plain
    pieces.append(uvarint(len(request.forgotten_topics_data) + 1))
    for forgotten in request.forgotten_topics_data:
        numbers = forgotten.partitions
        pieces += (forgotten.topic_id.bytes, uvarint(len(numbers) + 1))
        pieces += (struct.pack(f">{len(numbers)}i", *numbers), _NO_TAGS)
    if not plain:
        return encode_request(APIS[FETCH_KEY], VERSION, correlation_id, client_id, request)
    rack = request.rack_id.encode()
    pieces += (uvarint(len(rack) + 1), rack)
    pieces.append(_REPLICA_STATE(1, 1, _REPLICA_STATE_SIZE, state.replica_id, state.replica_epoch, 0))
    name = client_id.encode()
    body = b"".join(pieces)
    size = _HEADER_SIZE + len(name) + len(_NO_TAGS) + len(body)
    header = _HEADER(size, FETCH_KEY, VERSION, correlation_id, len(name))
    return b"".join((header, name, _NO_TAGS, body))


def _put_topic(pieces: list[bytes], topic: FetchTopic) -> bool:
    """Whether this codec covers the whole message."""
    plain = True
    pieces += (topic.topic_id.bytes, uvarint(len(topic.partitions) + 1))
    for partition in topic.partitions:
        plain = plain and partition.replica_directory_id is ZERO_UUID
        pieces.append(
            _PARTITION(
                partition.partition,
                partition.current_leader_epoch,
                partition.fetch_offset,
                partition.last_fetched_epoch,
                partition.log_start_offset,
                partition.partition_max_bytes,
                0,
            )
        )
    pieces.append(_NO_TAGS)
    return plain


def decode_fetch_response(view: memoryview, at: int, end: int) -> tuple[int, FetchResponse]:
    """(correlation id, message) of the response in view[at:end], without its size. Raises MalformedFrame.
    Records are views.
    """
    try:
        found = _decode(view, at, end)
    except (struct.error, IndexError):
        found = None  # it ends too early, as does anything after it in the buffer
    if found is not None:
        return found
    return decode_response(APIS[FETCH_KEY], VERSION, view, at, end)


def _decode(view: memoryview, at: int, end: int) -> tuple[int, FetchResponse] | None:
    """None: use the general codec. Reads past the end are noticed at the end."""
    if end - at < _ENVELOPE_SIZE:
        return None
    correlation_id, tags, throttle_time_ms, error_code, session_id = _ENVELOPE(view, at)
    if tags:
        return None
    topics: list[FetchableTopicResponse] = []
    count = view[at + _ENVELOPE_SIZE]
    at += _ENVELOPE_SIZE + 1
    if not 0 < count < 0x80:
        return None
    for _ in range(count - 1):
        if end - at < _TOPIC_SIZE:
            return None
        topic_id = read_uuid(bytes(view[at : at + 16]))
        many = view[at + 16]
        at += _TOPIC_SIZE
        if not 0 < many < 0x80:
            return None
        partitions: list[PartitionData] = []
        for _ in range(many - 1):
            index, error, high_watermark, stable, start, aborted, preferred = _PARTITION_DATA(view, at)
            size, at = read_uvarint(view, at + _PARTITION_DATA_SIZE)
            stop = at + size - 1
            if aborted > 1 or not size or stop >= end or view[stop]:
                return None
            partitions.append(
                PartitionData(
                    partition_index=index,
                    error_code=error,
                    high_watermark=high_watermark,
                    last_stable_offset=stable,
                    log_start_offset=start,
                    diverging_epoch=_AGREES,
                    current_leader=_SAME_LEADER,
                    snapshot_id=_NO_SNAPSHOT,
                    aborted_transactions=None if not aborted else [],
                    preferred_read_replica=preferred,
                    records=view[at:stop],
                )
            )
            at = stop + 1
        if view[at]:
            return None
        at += 1
        topics.append(FetchableTopicResponse(topic_id=topic_id, partitions=partitions))
    if at != end - 1 or view[at]:
        return None
    response = FetchResponse(
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        responses=topics,
    )
    return correlation_id, response
