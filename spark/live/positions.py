"""Offsets of partitions as brokers report them: for the driver of a stream."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tierlog.client import ClientError, Cluster, TimedOut, Unreachable, error_name, is_retriable
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tierlog.spark.history.plan import Source
from tierlog.spark.live.connection import connect
from tierlog.spark.options import InvalidOption
from tierlog.spark.options.stream import LiveOptions, StreamOptions

if TYPE_CHECKING:
    from tierlog.protocol.messages.metadata import MetadataResponseTopic

LATEST, EARLIEST = -1, -2
TIMEOUTS = 2
"""How many timeouts a look-up may last: a paused broker takes more than one, and another may lead then."""
READ_COMMITTED = 1


class BrokerUnavailable(RuntimeError):
    """Brokers did not respond, or a partition had no leader, for as long as `kafka.request.timeout.ms`."""


class BrokerPositions:
    """Partitions and committed offsets, by Metadata and ListOffsets. It belongs to one thread."""

    def __init__(self, live: LiveOptions, options: StreamOptions) -> None:
        self._cluster = connect(live)
        self._options = options
        self._known: set[str] = set()

    def close(self) -> None:
        self._cluster.close()

    def sources(self) -> list[Source]:
        """The partitions that the options select, as of now. Raises InvalidOption and BrokerUnavailable."""
        read = self._options.read
        found = []
        for topic in self._topics():
            name = topic.name or ""
            wanted = read.partitions_of(name)
            count = len(topic.partitions)
            numbers = range(count) if wanted is None else sorted(wanted)
            if numbers and numbers[-1] >= count:
                option = "partitions" if read.assigned is None else "assign"
                raise InvalidOption(
                    f"`{option}`: topic {name!r} has no partition {numbers[-1]}, but {count} of them, "
                    "numbered from 0"
                )
            found += [Source(name, topic.topic_id, number) for number in numbers]
        return found

    def earliest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """Log start offsets, of both tiers."""
        return list_offsets(self._cluster, dict.fromkeys(sources, EARLIEST))

    def latest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """Last stable offsets: every transaction below them has ended."""
        return list_offsets(self._cluster, dict.fromkeys(sources, LATEST))

    def at_timestamps(self, timestamps: Mapping[Source, int]) -> dict[Source, int]:
        """The first offset with a partition's timestamp or a later one; the latest if there is none."""
        found = list_offsets(self._cluster, timestamps)
        absent = self.latest(source for source in timestamps if found[source] < 0)
        return {**found, **absent}

    def _topics(self) -> "Sequence[MetadataResponseTopic]":
        """The topics that the options select, as of now, in one request: a pattern may match new ones.

        A topic that was there before is looked for until the timeout, because a broker that has just started
        may not know it yet."""
        read = self._options.read
        pattern = None if read.pattern is None else re.compile(read.pattern)
        deadline = time.monotonic() + TIMEOUTS * self._cluster.timeout_s
        while True:
            try:
                topics = self._cluster.metadata(None if pattern else list(read.topics)).topics
            except (Unreachable, TimedOut) as failure:
                _refresh(self._cluster, (), deadline, str(failure))
                continue
            except ClientError as failure:
                raise BrokerUnavailable(f"cannot list topics: {failure}") from failure
            if pattern is not None:
                topics = [one for one in topics if not one.is_internal and pattern.fullmatch(one.name or "")]
            problem = self._problem(topics)
            if not problem:
                self._known.update(topic.name or "" for topic in topics)
                return sorted(topics, key=lambda topic: topic.name or "")
            _refresh(self._cluster, (), deadline, problem)

    def _problem(self, topics: "Iterable[MetadataResponseTopic]") -> str:
        """A problem with one of the named topics that may end by itself, or an empty text."""
        for topic in topics:
            name, code = topic.name or "", topic.error_code
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and name not in self._known:
                raise InvalidOption(
                    f"topic {name!r} does not exist on the brokers. List them with `tierlog topic list`"
                )
            if code and not is_retriable(code):
                raise BrokerUnavailable(f"topic {name!r}: {error_name(code)}")
            if code:
                return f"topic {name!r}: {error_name(code)}"
        return ""


def list_offsets(cluster: Cluster, timestamps: Mapping[Source, int]) -> dict[Source, int]:
    """The offset of each partition for its timestamp, LATEST or EARLIEST; -1 if there is none. Raises
    BrokerUnavailable."""
    found: dict[Source, int] = {}
    deadline = time.monotonic() + TIMEOUTS * cluster.timeout_s
    while missing := [source for source in timestamps if source not in found]:
        try:
            problem = _list_once(cluster, {source: timestamps[source] for source in missing}, found)
        except (Unreachable, TimedOut) as failure:
            problem = str(failure)
        except ClientError as failure:
            raise BrokerUnavailable(f"cannot list offsets: {failure}") from failure
        if problem:
            _refresh(cluster, {source.topic for source in missing}, deadline, problem)
    return found


def _list_once(cluster: Cluster, timestamps: Mapping[Source, int], found: dict[Source, int]) -> str:
    """One request to each leader. Adds to `found`; returns a problem that may end by itself."""
    by_leader: dict[int, list[Source]] = {}
    for source in timestamps:
        by_leader.setdefault(cluster.leader(source.topic, source.partition), []).append(source)
    problem = ""
    for leader, sources in by_leader.items():
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for source in sources:
            wanted = ListOffsetsPartition(partition_index=source.partition, timestamp=timestamps[source])
            topics.setdefault(source.topic, []).append(wanted)
        request = ListOffsetsRequest(
            isolation_level=READ_COMMITTED,
            topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
            timeout_ms=round(cluster.timeout_s * 1000),
        )
        response = cluster.call(request, leader)
        by_place = {(source.topic, source.partition): source for source in sources}
        for topic in response.topics:
            for row in topic.partitions:
                source = by_place[topic.name, row.partition_index]
                if row.error_code == ErrorCode.NONE:
                    found[source] = row.offset
                elif is_retriable(row.error_code):
                    problem = f"{source}: {error_name(row.error_code)}"
                else:
                    raise BrokerUnavailable(f"{source}: cannot list offsets: {error_name(row.error_code)}")
    return problem


def _refresh(cluster: Cluster, topics: Iterable[str], deadline: float, problem: str) -> None:
    """Pause, and look for the leaders again at the next request. After the deadline, raise."""
    try:
        cluster.refresh_all(topics, deadline, problem)
    except ClientError as failure:
        raise BrokerUnavailable(
            f"brokers did not report their offsets: {failure}. Check `kafka.bootstrap.servers`, and that "
            "they run"
        ) from failure
