"""Offsets of a stream: the next offset of each partition, by topic id. Pure.

Spark writes them to the checkpoint as JSON, and compares two of them as text::

    {"version": 1, "topics": {"flights": {"id": "…", "partitions": {"0": 23, "1": 17}}}}

They are the same whether records come from the bucket or from brokers. The topic's id makes a topic that was
deleted and created again an error instead of a silent gap.
"""

import uuid
import warnings
from collections.abc import Mapping
from typing import Any

from tierlog.spark.history.plan import OffsetRange, OffsetsUnavailable, Source

VERSION = 1

Offsets = dict[Source, int]


class TopicChanged(RuntimeError):
    """The topic of the checkpoint was deleted, and perhaps created again."""


def encode(offsets: Mapping[Source, int]) -> dict[str, Any]:
    """In one order, because Spark compares the text."""
    topics: dict[str, Any] = {}
    for source in sorted(offsets, key=lambda source: (source.topic, source.partition)):
        topic = topics.setdefault(source.topic, {"id": str(source.topic_id), "partitions": {}})
        topic["partitions"][str(source.partition)] = offsets[source]
    return {"version": VERSION, "topics": topics}


def decode(document: Mapping[str, Any]) -> Offsets:
    """Raises ValueError for offsets of another source or a later version."""
    if document.get("version") != VERSION:
        raise ValueError(
            f"the checkpoint has offsets that this version of the source did not write: {dict(document)}"
        )
    return {
        Source(name, uuid.UUID(topic["id"]), int(partition)): offset
        for name, topic in document["topics"].items()
        for partition, offset in topic["partitions"].items()
    }


def check_topics(start: Mapping[Source, int], current: Mapping[Source, int]) -> None:
    """Raise TopicChanged if a partition of `start` is not among the current ones."""
    ids = {source.topic: source.topic_id for source in current}
    for source in start:
        if source in current:
            continue
        found = ids.get(source.topic)
        if found is not None and found != source.topic_id:
            raise TopicChanged(
                f"topic {source.topic!r} was deleted and created again: the checkpoint has offsets of the id "
                f"{source.topic_id}, the topic has the id {found}; start the query with a new checkpoint"
            )
        raise TopicChanged(
            f"{source} is in the checkpoint, but it is not among the partitions to read; "
            "start the query with a new checkpoint"
        )


def limit(start: Mapping[Source, int], end: Mapping[Source, int], most: int) -> Offsets:
    """The end offsets of a micro-batch of about `most` records. Each partition gets a share in proportion to
    what it has, and at least one record, as in Spark's Kafka source."""
    sizes = {source: max(end[source] - start[source], 0) for source in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    return {
        source: start[source] + min(size, max(most * size // total, 1) if size else 0)
        for source, size in sizes.items()
    }


def at_least(first: Mapping[Source, int], second: Mapping[Source, int]) -> Offsets:
    """The larger of both for each partition of the second."""
    return {source: max(offset, first.get(source, offset)) for source, offset in second.items()}


def count(start: Mapping[Source, int], end: Mapping[Source, int]) -> int:
    return sum(max(end[source] - start.get(source, 0), 0) for source in end)


def behind(start: Mapping[Source, int], newest: Mapping[Source, int]) -> Offsets:
    """The newest offsets of the partitions that end before `start`: their logs have lost records."""
    return {source: end for source, end in newest.items() if end < start.get(source, 0)}


def report_loss(source: Source, end: int, needed: int, *, was_read: bool, fail_on_data_loss: bool) -> None:
    """Raise OffsetsUnavailable for a log that ends before the offset `needed`, or warn. `was_read`: whether
    the stream has read the lost records."""
    known = "the stream has read" if was_read else "the log had records"
    lost = (
        f"{source}: {known} up to offset {needed}, but the log ends at {end}: offsets {end} to {needed - 1} "
        "were lost, as in an unclean election, and later records get these offsets"
    )
    if fail_on_data_loss:
        raise OffsetsUnavailable(f"{lost}; set failOnDataLoss=false to continue at {end}")
    warnings.warn(f"{lost}. The stream continues at {end}", stacklevel=2)


def seam(offsets: OffsetRange, committed: OffsetRange) -> tuple[OffsetRange, OffsetRange]:
    """The part of a range that is read from the bucket, and the rest, which is read from brokers. The
    bucket's part is at the start of the range, or empty."""
    if not committed.start <= offsets.start:
        return OffsetRange(offsets.start, offsets.start), offsets
    at = min(max(committed.end, offsets.start), offsets.end)
    return OffsetRange(offsets.start, at), OffsetRange(at, offsets.end)


def available(source: Source, offsets: OffsetRange, earliest: int, fail_on_data_loss: bool) -> OffsetRange:
    """The range without records that retention has deleted. Raises OffsetsUnavailable if it should fail."""
    if offsets.start >= earliest:
        return offsets
    if fail_on_data_loss:
        raise OffsetsUnavailable(
            f"{source}: offset {offsets.start} was deleted before the stream read it: the log starts at "
            f"{earliest}; set failOnDataLoss=false to continue with the available offsets"
        )
    return OffsetRange(min(earliest, offsets.end), offsets.end)
