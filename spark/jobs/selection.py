"""Selection of what a job reads: topics by name or pattern, and parts from where an earlier run ended.

Called on the driver by `backfill` and `audit`.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from tierlog.base.types import TopicIdPartition
from tierlog.spark.history.bucket import Bucket, open_bucket
from tierlog.spark.history.plan import OffsetsUnavailable, Part, Pruning, Source, check_bounds
from tierlog.spark.history.snapshot import (
    READS_AT_ONCE,
    PartitionView,
    documents_named,
    find_cluster,
    plan_parts,
    topic_documents,
)
from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed, Values, reader_options
from tierlog.spark.options import EARLIEST, LATEST, ReadOptions, parse_options
from tierlog.spark.options.table import similar
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import TopicDocument

Ends: TypeAlias = Mapping[TopicIdPartition, int]
"""The offset at which the next run begins, for each partition."""


def documents_of(bucket: Bucket, keys: Keys, values: Values) -> list[TopicDocument]:
    """The topics that --topic and --pattern select, by name. Raises JobFailed if there are none."""
    names, pattern = set(values["topic"] or ()), values["pattern"]
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        by_name = bool(names) and pattern is None
        documents = list(
            documents_named(bucket, keys, names, pool) if by_name else topic_documents(bucket, keys, pool)
        )
    if missing := names - {document.name for document in documents}:
        first = min(missing)
        near = similar(first, (document.name for document in documents))
        raise JobFailed(
            f"topic {first!r} is not in the bucket.{near} A topic is uploaded if it has "
            "remote.storage.enable=true"
        )
    try:
        wanted = re.compile(pattern or "(?!)")
    except re.error as error:
        raise InvalidArgument(f"--pattern {pattern!r} is not a regular expression: {error}") from None
    everything = not names and pattern is None
    found = [
        document
        for document in documents
        if everything or document.name in names or wanted.fullmatch(document.name)
    ]
    if not found:
        raise JobFailed(
            f"no topic in the bucket matches {pattern!r}" if pattern else "the bucket has no topic"
        )
    return sorted(found, key=lambda document: (document.name, str(document.topic_id)))


def cluster_keys(bucket: Bucket, values: Values) -> Keys:
    return Keys(find_cluster(bucket, values["cluster"]))


def sources_of(documents: Sequence[TopicDocument]) -> list[Source]:
    return [
        Source(document.name, document.topic_id, partition)
        for document in documents
        for partition in range(document.partitions)
    ]


def plan(values: Values, ends: Ends, include_headers: bool = False) -> tuple[ReadOptions, list[Part]]:
    """The parts of the selected range that follow the offsets in `ends`. Raises JobFailed."""
    options = {
        **reader_options(values),
        "includeHeaders": str(include_headers),
        "failOnDataLoss": str(not values["allow_data_loss"]),
    }
    bucket = open_bucket(parse_options({**options, "topic": "any"}).store)
    keys = cluster_keys(bucket, values)
    documents = documents_of(bucket, keys, values)
    sources = sources_of(documents)
    options["topics"] = ",".join(dict.fromkeys(document.name for document in documents))
    options["startingOffsets"] = json.dumps(_starting(bucket, keys, values, sources, ends))
    if values["ending_timestamp"] is not None:
        options["endingTimestamp"] = str(values["ending_timestamp"])
    else:
        options["endingOffsets"] = values["ending_offsets"]
    parsed = parse_options(options)
    try:
        parts = plan_parts(bucket, parsed, Pruning())
        # A task must not pass over what was replaced since: no later run would come back to it.
        return replace(parsed, fail_on_data_loss=True), parts
    except OffsetsUnavailable as failure:
        reason = str(failure).partition("; set failOnDataLoss")[0]
        raise JobFailed(f"{reason}; --allow-data-loss continues with the offsets that exist") from failure


def segments_of(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts by segment. A run may end after each of these groups, and not within one: a batch at the
    border of two parts has records on both sides."""
    for _, group in groupby(parts, key=lambda part: (part.source, part.offsets, part.key)):
        yield list(group)


def ends_of(parts: Sequence[Part]) -> dict[TopicIdPartition, int]:
    """The end in each partition of these parts, which are of complete segments and in order."""
    return {part.source.id: part.offsets.end for part in parts}


def _starting(
    bucket: Bucket, keys: Keys, values: Values, sources: Sequence[Source], ends: Ends
) -> dict[str, dict[str, int]]:
    """First offsets: those in `ends`, otherwise those that the arguments select."""
    text, timestamp = values["starting_offsets"], values["starting_timestamp"]
    given = parse_options({"path": ".", "topic": "any", "startingOffsets": text}).starting
    check_bounds([given], sources)
    if LATEST in (given.default, *given.offsets.values()):
        raise InvalidArgument(
            "--starting-offsets must not be latest: each run would begin at the end of then, and export "
            "nothing. Give offsets, or --starting-timestamp"
        )
    found: dict[str, dict[str, int]] = {}
    for source in sources:
        start = ends.get(source.id)
        if start is None and timestamp is not None:
            start = PartitionView(bucket, keys, source).offset_at(timestamp)
        elif start is None:
            start = given.offset_of(source.topic, source.partition)
        if start != EARLIEST:
            found.setdefault(source.topic, {})[str(source.partition)] = start
    return found
