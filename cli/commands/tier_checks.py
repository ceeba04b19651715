"""`tierlog tier verify` and `tierlog tier gc`: compare the object store with the manifests.

Both also have the brokers check the manifest roots and documents, which readers without a broker
use, and write those that differ again.
"""

import json
import os
import random
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, OnlyTopic
from tierlog.cli.output import counted, listed, print_json, print_rows, print_status, progress_bar, size

if TYPE_CHECKING:
    from tierlog.cli.admin import AdminApi

VERIFY_TIMEOUT_S = 300.0  # a request takes about 10 s, or as long as the store needs for one chunk
AUDIT_TIMEOUT_S = 3600.0
SHOWN_MAX = 20
GC_HINT = "`tierlog tier gc --dry-run` shows which objects are queued and which are unreferenced."
NOT_FOUND = 404


@dataclass(slots=True)
class _Progress:
    """State that `--resume` keeps. `done`: partition -> offset up to which its segments are verified.
    `seed`: of the sample, so that a resumed run chooses the same segments. `manifests`: faults, which a
    resumed run does not find again, because the brokers have mended them."""

    sample: float
    topic: str | None
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    done: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    manifests: list[dict[str, Any]] = field(default_factory=list)

    def chooses(self, name: str, base_offset: int) -> bool:
        share = random.Random(f"{self.seed} {name} {base_offset}").uniform(0, 100)
        return share < self.sample

    def save(self, file: Path | None) -> None:
        if file is not None:
            new = file.with_name(file.name + ".new")
            new.write_text(json.dumps(asdict(self)), encoding="utf-8")
            os.replace(new, file)


def verify(
    topic: OnlyTopic = None,
    sample: Annotated[
        float,
        typer.Option(
            "--sample", min=0.001, max=100, metavar="PERCENT", help="Percentage of the segments to verify."
        ),
    ] = 100.0,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FILE",
            dir_okay=False,
            help="Keep the progress in this file, and continue from it if it exists. Deleted at the end.",
        ),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Read remote segments, all or a sample, and verify them against the manifests.

    Manifest roots are compared too. The brokers write those again that are missing, damaged or outdated.
    Exit code 1: something is missing, damaged or outdated, or no broker leads a partition.
    """
    from tierlog.cli.admin import HEALTH_HINT, admin_api

    api = admin_api(admin, bootstrap, timeout_s=VERIFY_TIMEOUT_S)
    rows = [(leader, row) for leader in api.live_leaders(topic) for row in _partitions(leader, topic)]
    partitions = [(leader, row) for leader, row in rows if row["remote_bytes"]]
    without_leader = _without_leader(api, topic)
    if topic is not None and not partitions and not without_leader:
        if not rows:
            raise nothing_tiered(api, topic)
        hint = f"`tierlog tier flush {topic}` uploads it."
        raise CliError(f"nothing of topic {topic!r} is uploaded yet", hint=hint)
    progress = _resumed(resume, sample, topic)
    manifests = _add_manifest_faults(api, progress, resume)
    _verify_all(partitions, progress, resume)
    if resume is not None:
        resume.unlink(missing_ok=True)
    document = {
        "segments": progress.segments,
        "bytes": progress.bytes,
        "errors": progress.errors,
        "manifests": manifests,
        "without_leader": without_leader,
    }
    if as_json:
        print_json(document)
    else:
        found = counted(progress.segments, "segment")
        print_status(f"verified {found}, {size(progress.bytes)}; {counted(len(progress.errors), 'error')}")
        if progress.errors:
            columns = {
                "topic": "topic",
                "partition": "partition",
                "base_offset": "from offset",
                "end_offset": "to",
                "error": "error",
            }
            print_rows(columns, progress.errors, title="Damage")
        _print_manifest_faults(manifests)
    if without_leader:
        message = f"not verified, because no broker leads it: {listed(without_leader)}"
        raise CliError(message, hint=HEALTH_HINT)
    if progress.errors or manifests:
        raise typer.Exit(int(ExitCode.FAILED))


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Required: only show what is in the bucket.")
    ] = False,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show which objects in the bucket wait for their deletion, and which are unreferenced.

    The cluster deletes queued objects by itself, after remote.log.delete.grace.ms, and never unreferenced
    ones. Missing, damaged or outdated manifest roots are shown, and the brokers write them again.
    """
    from tierlog.cli.admin import admin_api

    if not dry_run:
        raise usage("gc deletes nothing: the cluster deletes queued objects by itself", hint=GC_HINT)
    api = admin_api(admin, bootstrap, timeout_s=AUDIT_TIMEOUT_S)
    api.live_leaders()  # the audit takes long
    audit = {**api.get("/v1/tier/audit"), "manifests": _manifest_faults(api, None)}
    if as_json:
        print_json(audit)
        return
    rows = [
        {"kind": KINDS[kind], "objects": count, "bytes": size(audit["bytes"][kind])}
        for kind, count in audit["objects"].items()
    ]
    print_rows({"kind": "objects that are", "objects": "number", "bytes": "bytes"}, rows, title="Bucket")
    if audit["unknown"]:
        shown = [{**one, "bytes": size(one["bytes"])} for one in audit["unknown"][:SHOWN_MAX]]
        print_rows({"object": "object", "bytes": "bytes"}, shown, title="Unreferenced objects")
        if more := audit["objects"]["unknown"] - len(shown):
            print_status(f"… and {more:,} more: --json lists up to 1,000")
        print_status("Before you delete them with your store's tools, see docs/runbooks/damaged-object.md.")
    _print_manifest_faults(audit["manifests"])


KINDS = {
    "listed": "in use",
    "queued": "queued for deletion",
    "unknown": "unreferenced",
    "unreadable": "of partitions with an unreadable manifest page",
}


def _manifest_faults(api: "AdminApi", topic: str | None) -> list[dict[str, Any]]:
    """Have the brokers check the manifest roots and, without a topic, the documents."""
    faults: list[dict[str, Any]] = []
    for leader in api.live_leaders(topic):
        after: object = None
        while True:
            found = leader.post("/v1/tier/roots", {"topic": topic, "after": after})
            faults += found["faults"]
            if (after := found["next"]) is None:
                break
    live = [row["id"] for row in api.get("/v1/brokers")["brokers"] if not row["fenced"]]
    if topic is None and live:  # this broker writes the documents
        writer = api.of_broker(min(live), api.get("/v1/cluster"))
        faults += writer.post("/v1/tier/documents", {})["faults"]
    return faults


def _add_manifest_faults(api: "AdminApi", progress: _Progress, resume: Path | None) -> list[dict[str, Any]]:
    """All faults so far."""
    found = progress.manifests
    found += [fault for fault in _manifest_faults(api, progress.topic) if fault not in found]
    progress.save(resume)
    return found


def _print_manifest_faults(faults: list[dict[str, Any]]) -> None:
    if faults:
        print_rows(
            {"fault": "fault", "object": "manifest root or document"}, faults[:SHOWN_MAX], title="Manifests"
        )
        print_status(f"written again: {len(faults):,} manifest roots or documents")


def _partitions(leader: "AdminApi", topic: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = leader.get("/v1/tier/status", topic=topic)["partitions"]
    return rows


def _without_leader(api: "AdminApi", topic: str | None) -> list[str]:
    """Partitions with remote data which no broker leads."""
    offline = api.get("/v1/partitions", topic=topic, condition="offline")["partitions"]
    return [f"{row['topic']}-{row['partition']}" for row in offline if row["has_remote_data"]]


def nothing_tiered(api: "AdminApi", topic: str) -> CliError:
    """Why no broker reports a tiered partition of this topic."""
    from tierlog.cli.admin import HEALTH_HINT, is_tiered, not_tiered, topic_of

    if not is_tiered(topic_of(api.get("/v1/cluster"), topic)):
        return not_tiered(topic)
    return CliError(f"no broker leads a partition of topic {topic!r}", hint=HEALTH_HINT)


def _resumed(file: Path | None, sample: float, topic: str | None) -> _Progress:
    if file is None or not file.exists():
        return _Progress(sample, topic)
    try:
        found = _Progress(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as failure:
        raise usage(
            f"{file} has no progress of `tierlog tier verify`: {failure}",
            hint="Give another file; one that does not exist is created.",
        ) from None
    if (found.sample, found.topic) != (sample, topic):
        raise usage(
            f"{file} belongs to a run with --sample {found.sample:g} of {found.topic or 'all topics'}",
            hint="Give the same options, or another file.",
        )
    return found


def _verify_all(
    partitions: list[tuple["AdminApi", dict[str, Any]]], progress: _Progress, resume: Path | None
) -> None:
    total = sum(row["remote_bytes"] for _, row in partitions) * progress.sample / 100
    with progress_bar("verifying") as bar:
        task = bar.add_task("verifying", total=max(total, progress.bytes), completed=progress.bytes)
        for leader, row in partitions:
            name = f"{row['topic']}-{row['partition']}"
            for segment in _segments(leader, row, progress.done.get(name, 0)):
                if "error" in segment:  # a manifest page, with all of its segments
                    progress.errors.append(_error_row(row, segment, segment["error"]))
                elif progress.chooses(name, segment["base_offset"]):
                    errors = _verify_segment(leader, row, segment)
                    progress.errors += [_error_row(row, segment, error) for error in errors]
                    progress.segments += 1
                    progress.bytes += segment["bytes"]
                    bar.update(task, completed=progress.bytes)
                progress.done[name] = segment["end_offset"]
                progress.save(resume)


def _error_row(row: dict[str, Any], segment: dict[str, Any], error: str) -> dict[str, Any]:
    offsets = {"base_offset": segment["base_offset"], "end_offset": segment["end_offset"]}
    return {"topic": row["topic"], "partition": row["partition"], **offsets, "error": error}


def _segments(leader: "AdminApi", row: dict[str, Any], offset: int) -> Iterator[dict[str, Any]]:
    place = {"topic": row["topic"], "partition": row["partition"]}
    while found := leader.get("/v1/tier/segments", **place, offset=offset)["segments"]:
        yield from found
        offset = found[-1]["end_offset"]


def _verify_segment(leader: "AdminApi", row: dict[str, Any], segment: dict[str, Any]) -> list[str]:
    """The errors of one segment."""
    position: int | None = 0
    errors: list[str] = []
    while position is not None:
        wanted = {
            "topic": row["topic"],
            "partition": row["partition"],
            "base_offset": segment["base_offset"],
            "uuid": segment["uuid"],
            "position": position,
        }
        try:
            verified = leader.post("/v1/tier/verify", wanted)
        except CliError as failure:
            if failure.status == NOT_FOUND:
                return errors  # retention has deleted the segment
            raise
        errors += verified["errors"]
        position = verified["position"]
    return errors
