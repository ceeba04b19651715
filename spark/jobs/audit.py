"""Audit: reads and checks every byte of history, and compares the bucket with the manifests in both
directions.

It needs no broker. Damage is what a reader of the bucket would meet: an object that is missing or wrong, or a
manifest that cannot be read. An object that no manifest names is not damage: it may belong to an upload in
progress, or wait for its deletion. With --resume, a run that was stopped continues where it ended.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.records import ManifestNode, PageRef, RemoteSegment
from tierlog.spark.history.bucket import Bucket, open_bucket
from tierlog.spark.history.plan import Source
from tierlog.spark.jobs.arguments import (
    InvalidArgument,
    Job,
    JobFailed,
    Progress,
    Values,
    main,
    reader_options,
)
from tierlog.spark.jobs.page import Chart, Page
from tierlog.spark.jobs.runner import run_tasks, spark_session
from tierlog.spark.jobs.segment_check import AuditTask, Checked, Damage, SegmentToCheck, check_segments
from tierlog.spark.jobs.selection import cluster_keys, documents_of, sources_of
from tierlog.spark.jobs.tables import decode_ends, encode_ends
from tierlog.spark.options import StoreAddress, parse_options
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestError, decode_page, decode_root
from tierlog.tiering.object_store import ObjectNotFound

MIB = 1 << 20
TASK_BYTES = 64 * MIB
READS_AT_ONCE = 16
SHOWN_MAX = 20
NAMED_MAX = 1000
"""Unreferenced objects that the report names."""

REWRITE = (
    "the brokers write manifest roots again: `tierlog tier verify`; pages: docs/runbooks/damaged-object.md"
)


@dataclass(slots=True)
class Manifest:
    """The segments of one partition, and the keys of its objects that its manifest names."""

    source: Source
    segments: list[RemoteSegment] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    damages: list[Damage] = field(default_factory=list)


def run(values: Values, progress: Progress) -> dict[str, Any]:
    """Audit the bucket. Raises JobFailed if it cannot be read, not for damage."""
    for name in ("resume", "html"):  # before hours of work, not after them
        if values[name] and not Path(values[name]).absolute().parent.is_dir():
            raise InvalidArgument(f"--{name} {values[name]}: there is no such directory")
    store = parse_options({**reader_options(values), "topic": "any"}).store
    bucket = open_bucket(store)
    keys = cluster_keys(bucket, values)
    documents = documents_of(bucket, keys, values)
    sources = sources_of(documents)
    listed = sorted(
        bucket.keys(keys.everything())
    )  # before the manifests: what is uploaded later is not in it
    manifests = _read_manifests(bucket, keys, sources)
    state = _State.load(values["resume"])
    checked, by_partition = state.checked, state.by_partition
    rounds = list(_rounds(manifests, state.ends, values["round_mib"] * MIB))
    if rounds:
        with spark_session("audit", values) as spark:
            for number, segments in enumerate(rounds, 1):
                tasks = _tasks(segments, store, keys.cluster_id)
                sizes = [sum(one.entry.log_bytes for one in task.segments) for task in tasks]
                progress.begin(f"round {number} of {len(rounds)}", sum(sizes))
                for task, found in zip(
                    tasks, run_tasks(spark, check_segments, tasks, progress, sizes), strict=True
                ):
                    checked.add(found)
                    for one in task.segments:
                        name = str(one.source)
                        by_partition[name] = by_partition.get(name, 0) + one.entry.log_bytes
                state.reach(segments, values["resume"])
    damages = [damage for manifest in manifests for damage in manifest.damages]
    damages += _still_there(bucket, keys, manifests, checked.damages)
    is_everything = not values["topic"] and values["pattern"] is None
    unreferenced = _unreferenced(keys, listed, manifests) if is_everything else []
    document = {
        "segments": checked.segments,
        "bytes": checked.bytes,
        "batches": checked.batches,
        "records": checked.records,
        "damages": [asdict(damage) for damage in damages],
        "unreferenced_objects": len(unreferenced),
        "unreferenced": unreferenced[:NAMED_MAX],
        "is_ok": not damages,
    }
    if values["html"]:
        Path(values["html"]).write_text(_page(document, by_partition).html(), encoding="utf-8")
    if values["resume"]:
        Path(values["resume"]).unlink(missing_ok=True)
    return document


def _read_manifests(bucket: Bucket, keys: Keys, sources: Sequence[Source]) -> list[Manifest]:
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        return list(pool.map(lambda source: _read_manifest(bucket, keys, source), sources))


def _read_manifest(bucket: Bucket, keys: Keys, source: Source) -> Manifest:
    """All segments of a partition. An unreadable root or page is damage, and hides its segments."""
    found = Manifest(source)
    key = keys.root(source.id)
    try:
        root = decode_root(bucket.read(key))
        if (root.topic_id, root.partition) != (source.topic_id, source.partition):
            raise ManifestError("the manifest belongs to another partition")
    except ObjectNotFound:
        return found  # nothing of this partition was uploaded yet
    except ManifestError as failure:
        found.damages.append(Damage(source.topic, source.partition, 0, key, -1, str(failure), remedy=REWRITE))
        return found
    found.keys.add(key)
    for node in _walk(bucket, keys, found, root.nodes):
        if node.end_offset > root.log_start_offset:
            found.segments.append(node)
        found.keys |= {keys.log(source.id, node), keys.index(source.id, node)}
    return found


def _walk(
    bucket: Bucket, keys: Keys, found: Manifest, nodes: Sequence[ManifestNode]
) -> Iterator[RemoteSegment]:
    for node in nodes:
        if isinstance(node, RemoteSegment):
            yield node
            continue
        page = _page_of(bucket, keys, found, node)
        yield from _walk(bucket, keys, found, page)


def _page_of(bucket: Bucket, keys: Keys, found: Manifest, ref: PageRef) -> tuple[ManifestNode, ...]:
    key = keys.page(found.source.id, ref)
    found.keys.add(key)
    try:
        return decode_page(bucket.read(key), ref).nodes
    except (ObjectNotFound, ManifestError) as failure:
        is_missing = isinstance(failure, ObjectNotFound)
        problem = "the object is missing" if is_missing else str(failure)
        where = found.source
        found.damages.append(
            Damage(where.topic, where.partition, ref.base_offset, key, -1, problem, is_missing, REWRITE)
        )
        return ()


def _rounds(
    manifests: Sequence[Manifest], ends: dict[TopicIdPartition, int], most_bytes: int
) -> Iterator[list[SegmentToCheck]]:
    chosen: list[SegmentToCheck] = []
    size = 0
    for manifest in manifests:
        for entry in manifest.segments:
            if entry.end_offset <= ends.get(manifest.source.id, 0):
                continue  # an earlier run has checked it
            chosen.append(SegmentToCheck(manifest.source, entry))
            size += entry.log_bytes
            if size >= most_bytes:
                yield chosen
                chosen, size = [], 0
    if chosen:
        yield chosen


def _tasks(segments: Sequence[SegmentToCheck], store: StoreAddress, cluster: str) -> list[AuditTask]:
    groups: list[list[SegmentToCheck]] = []
    size = TASK_BYTES
    for segment in segments:
        if size >= TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += segment.entry.log_bytes
    return [AuditTask(store, cluster, tuple(group)) for group in groups]


def _still_there(
    bucket: Bucket, keys: Keys, manifests: Sequence[Manifest], damages: Sequence[Damage]
) -> list[Damage]:
    """The damages without missing objects that the newest manifest no longer names: retention or a merge has
    deleted them."""
    missing = {(damage.topic, damage.partition) for damage in damages if damage.missing}
    sources = [one.source for one in manifests if (one.source.topic, one.source.partition) in missing]
    named = set().union(*(manifest.keys for manifest in _read_manifests(bucket, keys, sources)))
    return [damage for damage in damages if not damage.missing or damage.object in named]


def _unreferenced(keys: Keys, listed: Sequence[str], manifests: Sequence[Manifest]) -> list[str]:
    """Objects of partitions that no manifest names."""
    named = set().union(*(manifest.keys for manifest in manifests))
    return [key for key in listed if keys.partition_of(key) is not None and key not in named]


@dataclass(slots=True)
class _State:
    """What --resume keeps."""

    ends: dict[TopicIdPartition, int] = field(default_factory=dict)
    checked: Checked = field(default_factory=Checked)
    by_partition: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, file: str | None) -> "_State":
        """Raises JobFailed."""
        if file is None or not Path(file).exists():
            return cls()
        try:
            document = json.loads(Path(file).read_text(encoding="utf-8"))
            damages = [Damage(**damage) for damage in document["checked"].pop("damages")]
            checked = Checked(**document["checked"], damages=damages)
            return cls(decode_ends(document["ends"]), checked, document["by_partition"])
        except (ValueError, KeyError, TypeError) as failure:
            raise JobFailed(f"{file} has no progress of an audit: {failure}. Give another file") from None

    def reach(self, segments: Sequence[SegmentToCheck], file: str | None) -> None:
        """A round is complete. Keep it in the file."""
        self.ends.update({one.source.id: one.entry.end_offset for one in segments})
        if file is None:
            return
        document = {
            "ends": encode_ends(self.ends),
            "checked": asdict(self.checked),
            "by_partition": self.by_partition,
        }
        new = f"{file}.new"
        Path(new).write_text(json.dumps(document), encoding="utf-8")
        os.replace(new, file)


def _page(document: dict[str, Any], by_partition: dict[str, int]) -> Page:
    counts: dict[str, int] = {}
    for damage in document["damages"]:
        name = f"{damage['topic']}-{damage['partition']}"
        counts[name] = counts.get(name, 0) + 1
    facts = {
        name: document[name] for name in ("segments", "bytes", "batches", "records", "unreferenced_objects")
    }
    facts["damages"] = len(document["damages"])
    page = Page("Audit of history", facts)
    page.charts.append(Chart.bars("Bytes read and checked, by partition", by_partition, "bytes"))
    if counts:
        page.charts.append(Chart.bars("Damages, by partition", counts, ""))
        page.table("Damages", document["damages"])
    return page


def _show(document: dict[str, Any]) -> str:
    lines = [
        f"checked {document['segments']:,} segments, {document['bytes']:,} bytes, "
        f"{document['records']:,} records; {len(document['damages'])} damages, "
        f"{document['unreferenced_objects']:,} unreferenced objects"
    ]
    damages = document["damages"]
    for damage in damages[:SHOWN_MAX]:
        at = "" if damage["position"] < 0 else f", byte {damage['position']}"
        place = f"{damage['topic']}-{damage['partition']} offset {damage['offset']}"
        lines.append(f"{place}: {damage['problem']} ({damage['object']}{at})")
    if len(damages) > SHOWN_MAX:
        lines.append(f"… and {len(damages) - SHOWN_MAX:,} more: --json lists all of them")
    lines += [f"remedy: {remedy}" for remedy in dict.fromkeys(damage["remedy"] for damage in damages)]
    return "\n".join(lines)


JOB = Job("audit", run, _show)

if __name__ == "__main__":
    sys.exit(main(JOB))
