"""Fetch responses for followers, encoded without the codec's message classes.

Only for v15 and later, and only if no partition has an error, a diverging epoch or aborted transactions. The
bytes equal the codec's (tests/unit/handlers/test_follower_response.py) and take a third of the time; with
acks=all a leader sends one for every few batches. Called by `fetch`.
"""

from struct import Struct
from uuid import UUID

from tierlog.base.files import Part
from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.context import RawReply
from tierlog.protocol.primitives import uvarint

_HEAD = Struct(">ihi").pack  # throttle time, error, session
_PARTITION = Struct(">ihqqqBi").pack
"""Index, error, high watermark, last stable offset, log start, aborted transactions, preferred replica."""
_NULL, _LEADER_ITSELF = 0, -1
_NO_TAGS = b"\0"
_NO_RECORDS = b"\1"


class PartitionResponse:
    """One partition of a response. `found`: its records, if any."""

    __slots__ = ("found", "high_watermark", "last_stable_offset", "log_start_offset", "partition")

    def __init__(
        self,
        partition: int,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        found: LogSlice | None,
    ) -> None:
        self.partition = partition
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.found = found


def follower_response(session_id: int, responses: list[tuple[UUID, PartitionResponse]]) -> RawReply:
    """`responses`: topic id and partition. Consecutive partitions of a topic share its entry."""
    topics: list[tuple[UUID, list[PartitionResponse]]] = []
    for topic, response in responses:
        if topics and topics[-1][0] == topic:
            topics[-1][1].append(response)
        else:
            topics.append((topic, [response]))
    parts: list[Part] = []
    pieces = [_HEAD(0, 0, session_id), uvarint(len(topics) + 1)]
    for topic, partitions in topics:
        pieces.append(topic.bytes)
        pieces.append(uvarint(len(partitions) + 1))
        for response in partitions:
            high, stable, start = (
                response.high_watermark,
                response.last_stable_offset,
                response.log_start_offset,
            )
            pieces.append(_PARTITION(response.partition, 0, high, stable, start, _NULL, _LEADER_ITSELF))
            found = response.found
            if found is None:
                pieces.append(_NO_RECORDS)
            else:
                pieces.append(uvarint(found.size + 1))
                parts.append(b"".join(pieces))
                parts.extend(found.parts)
                pieces = []
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)
    pieces.append(_NO_TAGS)
    parts.append(b"".join(pieces))
    return RawReply(parts)
