"""Rewrite: history in another codec, or in larger segments, while the cluster runs (ADR 0042).

Successive small segments become one, and batches get another codec. Each group of segments is written by one
task and committed by itself, so a run that is stopped is simply started again, and a run that finds
everything as it is wanted does nothing. If retention, a merge, a compaction or a new leader changes a group
in between, the job leaves it as it is and plans again.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.records.codecs import Codec
from tierlog.records.rewrite import recompressed
from tierlog.spark.history.bucket import Bucket, open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.history.segment_reader import SegmentReader
from tierlog.spark.jobs.arguments import InvalidArgument, Job, Progress, Values, main, reader_options
from tierlog.spark.jobs.replacing import Leases, NotReplaced, Replacer, lines_of_the_rest
from tierlog.spark.jobs.rewrite_plan import Group, RewriteLimits, groups_of, tags_of
from tierlog.spark.jobs.rewriting import Announced, RewriteTask, Rewritten, rewrite_segments
from tierlog.spark.jobs.runner import run_tasks, spark_session
from tierlog.spark.jobs.selection import cluster_keys, documents_of, sources_of
from tierlog.spark.options import StoreAddress, parse_options
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import decode_page, decode_root
from tierlog.tiering.object_store import ObjectNotFound

MIB = 1 << 20
SEGMENT_MIB_MAX = 1024
"""Positions in indexes have 32 bits, and a task writes one segment."""

GROUPS_AT_ONCE = 8
"""Groups of a partition in one round: the leader gives no more leases."""

ROUND_MAX = 500
"""Groups in one round. They are announced one after another, and each has to be put within 30 minutes."""

PASSES_MAX = 3
"""Plans of one run, if some groups changed before they could be replaced."""

PASS_PAUSE_S = 1.0  # in which the leader writes the manifest root with the last commits
SAMPLED_GROUPS, SAMPLED_BYTES = 8, MIB


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    source: Source
    group: Group
    limits: RewriteLimits
    index_interval_bytes: int


@dataclass(slots=True)
class _Done:
    groups: int = 0
    segments: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    unchanged: int = 0
    failures: list[str] = field(default_factory=list)


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Rewrite what is not as it is wanted. Raises JobFailed."""
    job = _RewriteJob(values)
    planned = job.plan()
    document = _planned_document(planned)
    if values["dry_run"]:
        refused = {"not_replaced": job.refused, "is_ok": not job.refused}
        return {**document, **job.sampled(planned), "dry_run": True, **refused}
    done = _Done()
    if planned:
        with spark_session("rewrite", values) as spark:
            for number in range(1, PASSES_MAX + 1):
                done.failures.clear()
                job.rewrite(spark, planned, progress, done)
                if not done.failures or number == PASSES_MAX:
                    break
                threading.Event().wait(PASS_PAUSE_S)
                planned = job.plan()
    return {
        **document,
        "replaced_groups": done.groups,
        "replaced_segments": done.segments,
        "new_segments": done.groups,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "unchanged_segments": done.unchanged,
        "not_replaced": [*job.refused, *done.failures],
        "is_ok": not (job.refused or done.failures),
    }


class _RewriteJob:
    def __init__(self, values: Values) -> None:
        self._values = values
        if values["codec"] is None and values["segment_mib"] is None:
            raise InvalidArgument("nothing to do: give --codec, --segment-mib, or both")
        if values["segment_mib"] is not None and not 1 <= values["segment_mib"] <= SEGMENT_MIB_MAX:
            raise InvalidArgument(
                f"--segment-mib must be 1 to {SEGMENT_MIB_MAX}, not {values['segment_mib']}"
            )
        if not 1 <= values["lease_seconds"] <= 600:
            raise InvalidArgument(f"--lease-seconds must be 1 to 600, not {values['lease_seconds']}")
        self._codec = None if values["codec"] is None else Codec[values["codec"].upper()]
        self._store: StoreAddress = parse_options({**reader_options(values), "topic": "any"}).store
        self._bucket = open_bucket(self._store)
        self._keys = cluster_keys(self._bucket, values)
        self._replacer = Replacer(values["admin"], values["lease_seconds"])
        self.refused: list[str] = []
        """Partitions whose segments cannot be replaced, with the reason, by the last plan."""

    def plan(self) -> list[PlannedGroup]:
        """The groups that are worth writing, by the newest manifests. Raises JobFailed."""
        self.refused = []
        documents = documents_of(self._bucket, self._keys, self._values)
        return [group for source in sources_of(documents) for group in self._plan_partition(source)]

    def _plan_partition(self, source: Source) -> list[PlannedGroup]:
        runs = list(runs_of(self._bucket, self._keys, source))
        if not runs:
            return []
        try:
            found = self._replacer.limits(source.id)
        except NotReplaced as why:
            self.refused.append(f"{source}: {why}")
            return []
        segment_bytes = (self._values["segment_mib"] or 0) * MIB
        limits = RewriteLimits(segment_bytes, self._values["codec"], found.bytes_max, found.span_ms_max)
        return [
            PlannedGroup(source, group, limits, found.index_interval_bytes)
            for run in runs
            for group in groups_of(run, limits)
        ]

    def rewrite(self, spark: Any, planned: Sequence[PlannedGroup], progress: Progress, done: _Done) -> None:
        """Rewrite groups in rounds."""
        rounds = list(rounds_of(planned))
        for number, chosen in enumerate(rounds, 1):
            with Leases(self._replacer, self._values["lease_seconds"]) as leases:
                begun = list(self._begin(chosen, leases, done))
                tasks = [self._task(*one) for one in begun]
                sizes = [one.group.size_bytes for one, _ in begun]
                progress.begin(f"round {number} of {len(rounds)}", sum(sizes) or 1)
                for (one, new), found in zip(
                    begun, run_tasks(spark, rewrite_segments, tasks, progress, sizes), strict=True
                ):
                    self._finish(one, new, found, done)

    def _begin(
        self, chosen: Sequence[PlannedGroup], leases: Leases, done: _Done
    ) -> Iterator[tuple[PlannedGroup, Announced]]:
        for one in chosen:
            try:
                new = self._replacer.begin(one.source.id, one.group.old)
            except NotReplaced as why:
                done.failures.append(f"{_place(one)}: {why}")
                continue
            leases.add(one.source.id, new)
            yield one, new

    def _task(self, one: PlannedGroup, new: Announced) -> RewriteTask:
        return RewriteTask(
            store=self._store,
            cluster=self._keys.cluster_id,
            source=one.source,
            old=one.group.old,
            new=new,
            codec=self._codec,
            index_interval_bytes=one.index_interval_bytes,
            tags=tags_of(one.group, one.limits),
        )

    def _finish(self, one: PlannedGroup, new: Announced, found: Rewritten, done: _Done) -> None:
        if found.entry is None:
            self._replacer.cancel(one.source.id, new)
            if found.failure:
                done.failures.append(f"{_place(one)}: {found.failure}")
            else:
                done.unchanged += len(one.group.old)
            return
        try:
            self._replacer.commit(one.source.id, one.group.old, found.entry)
        except NotReplaced as why:
            self._replacer.cancel(one.source.id, new)
            done.failures.append(f"{_place(one)}: {why}")
            return
        done.groups += 1
        done.segments += len(one.group.old)
        done.bytes_before += one.group.size_bytes
        done.bytes_after += found.entry.log_bytes

    def sampled(self, planned: Sequence[PlannedGroup]) -> dict[str, Any]:
        """The expected bytes, from the first batches of a few groups."""
        size = sum(one.group.size_bytes for one in planned)
        if self._codec is None or not planned:
            return {"expected_bytes": size}
        step = max(1, len(planned) // SAMPLED_GROUPS)
        before = after = 0
        for one in planned[::step][:SAMPLED_GROUPS]:
            sampled = 0
            reader = SegmentReader(self._bucket, self._keys, one.source, one.group.old[0])
            for batch, header in reader.batches():
                sampled += len(batch)
                before, after = before + len(batch), after + len(recompressed(batch, header, self._codec))
                if sampled >= SAMPLED_BYTES:
                    break
        return {"expected_bytes": size * after // max(before, 1)}


def runs_of(bucket: Bucket, keys: Keys, source: Source) -> Iterator[list[RemoteSegment]]:
    """The segments above the log start, by the page of the manifest that lists them, in order."""
    try:
        root = decode_root(bucket.read(keys.root(source.id)))
    except ObjectNotFound:
        return  # nothing of this partition was uploaded yet
    yield from _runs(bucket, keys, source, root.nodes, root.log_start_offset)


def _runs(
    bucket: Bucket, keys: Keys, source: Source, nodes: Sequence[ManifestNode], log_start: int
) -> Iterator[list[RemoteSegment]]:
    for node in nodes:
        if isinstance(node, PageRef) and node.end_offset > log_start:
            page = decode_page(bucket.read(keys.page(source.id, node)), node)
            yield from _runs(bucket, keys, source, page.nodes, log_start)
    entries = [node for node in nodes if isinstance(node, RemoteSegment) and node.end_offset > log_start]
    if entries:
        yield entries


def rounds_of(planned: Sequence[PlannedGroup]) -> Iterator[list[PlannedGroup]]:
    """Rounds of at most ROUND_MAX groups, and GROUPS_AT_ONCE of each partition, in order."""
    queues = [list(groups) for _, groups in groupby(planned, key=lambda one: one.source.id)]
    for at in range(0, max(map(len, queues), default=0), GROUPS_AT_ONCE):
        groups = [one for queue in queues for one in queue[at : at + GROUPS_AT_ONCE]]
        for first in range(0, len(groups), ROUND_MAX):
            yield groups[first : first + ROUND_MAX]


def _place(one: PlannedGroup) -> str:
    return f"{one.source} offsets {one.group.base_offset} to {one.group.end_offset - 1}"


def _planned_document(planned: Sequence[PlannedGroup]) -> dict[str, Any]:
    return {
        "planned_groups": len(planned),
        "planned_segments": sum(len(one.group.old) for one in planned),
        "planned_bytes": sum(one.group.size_bytes for one in planned),
    }


def _show(document: dict[str, Any]) -> str:
    planned = (
        f"{document['planned_segments']:,} segments ({document['planned_bytes']:,} bytes) "
        f"into {document['planned_groups']:,}"
    )
    if not document["planned_groups"]:
        lines = ["nothing to do: all segments are as they are wanted"]
    elif document.get("dry_run"):
        lines = [f"would rewrite {planned}, about {document['expected_bytes']:,} bytes. Nothing was changed"]
    else:
        lines = [
            f"planned {planned}; replaced {document['replaced_segments']:,} segments "
            f"({document['bytes_before']:,} bytes) by {document['new_segments']:,} "
            f"({document['bytes_after']:,} bytes); {document['unchanged_segments']:,} needed no change"
        ]
    return "\n".join([*lines, *lines_of_the_rest(document, "not_replaced")])


JOB = Job("rewrite", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
