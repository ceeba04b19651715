"""What a leader answers followers with, written without the messages that the codec would write: a Fetch
response of v15 on in which no partition has an error, a diverging epoch or aborted transactions.

It is the same bytes as the codec's (tests/unit/handlers/test_follower_answer.py), for a third of the time; a
leader makes one for every few batches of acks=all. Called by `fetch`.
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


class Told:
    """One partition of an answer."""

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


def follower_answer(session_id: int, told: list[tuple[UUID, Told]]) -> RawReply:
    """Of each topic's id; partitions of one topic that follow each other share its entry."""
    topics: list[tuple[UUID, list[Told]]] = []
    for topic, one in told:
        if topics and topics[-1][0] == topic:
            topics[-1][1].append(one)
        else:
            topics.append((topic, [one]))
    parts: list[Part] = []
    pieces = [_HEAD(0, 0, session_id), uvarint(len(topics) + 1)]
    for topic, partitions in topics:
        pieces.append(topic.bytes)
        pieces.append(uvarint(len(partitions) + 1))
        for one in partitions:
            high, stable, start = one.high_watermark, one.last_stable_offset, one.log_start_offset
            pieces.append(_PARTITION(one.partition, 0, high, stable, start, _NULL, _LEADER_ITSELF))
            found = one.found
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
