"""Debug bundles: one archive with the evidence of a cluster, its findings and the ends of logs.

    bundle/report.txt      findings, for people
    bundle/findings.json   the same, for scripts
    bundle/evidence.json   responses of the admin APIs, settings, clocks, what could not be read
    bundle/metrics/1.txt   metrics of node 1
    bundle/logs/…          the end of each log file, and the last lines of other nodes (node-1.last.log)
    bundle/manifests/…     the segments in the object store of each partition (orders-0.json)

`tierlog doctor --bundle` reads the evidence back and examines it again, perhaps with newer rules.
"""

import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from tierlog.broker.diagnosis.evidence import Answers, Evidence, ProcessState
from tierlog.broker.diagnosis.findings import Finding, report
from tierlog.cli.errors import CliError

ROOT, EVIDENCE, METRICS = "bundle", "evidence.json", "metrics/"
NO_TEXTS: Mapping[str, str] = {}
VERSION = 1
LOG_BYTES_MAX = 16 << 20
"""Maximum bytes of a log: its end, which has what happened last."""

FILE_MODE = 0o600
"""Readable by its owner alone, because logs name users and hosts."""

MEMBER_BYTES_MAX, READ_BYTES_MAX = 128 << 20, 512 << 20
"""Maximum size of one file that is read, and of all. A bundle may come from others."""

ARCHIVE_BYTES_MAX, MEMBERS_MAX = 8 << 30, 5_000
"""Maximum size without compression, and number of files, with logs, which are not read."""

TIME_MAX_MS = 253_402_300_799_000  # end of the year 9999


class _Document(msgspec.Struct):
    """Evidence as JSON, without metrics. Documents of admin APIs are checked by the rules that use them."""

    version: int
    taken_at_ms: Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)]
    urls: dict[int, str]
    documents: dict[int, dict[str, dict[str, Any]]]
    clocks: dict[int, float]
    settings: dict[int, dict[str, str | None]]
    hanging: list[dict[str, Any]]
    processes: dict[int, ProcessState]
    roles: dict[int, list[str]]
    not_read: list[str]


class _Contents(gzip.GzipFile):
    """Contents of an archive. tarfile reads names and extended headers whole, whatever size they claim."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MEMBER_BYTES_MAX:
            raise ValueError("a file in it is too large")
        if self.tell() > ARCHIVE_BYTES_MAX:
            raise ValueError(f"it has more than {ARCHIVE_BYTES_MAX:,} bytes")
        return super().read(size)


def write(
    archive: Path,
    evidence: Evidence,
    findings: Sequence[Finding],
    logs: Mapping[str, Path],
    texts: Mapping[str, str] = NO_TEXTS,
) -> list[str]:
    """Write the archive, which only this user can read. `logs`: name in logs/ -> file. `texts`: name in the
    bundle -> content of further files. Returns the logs that could not be read, and why. Raises CliError,
    also if the archive exists."""
    unread = []
    files = {
        "report.txt": report(findings),
        "findings.json": json.dumps([asdict(one) for one in findings], indent=1),
        EVIDENCE: json.dumps(_as_json(evidence), indent=1),
        **{f"{METRICS}{node}.txt": text for node, text in evidence.metrics.items()},
        **texts,
    }
    try:
        with _created(archive) as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
            for name, text in files.items():
                _add(tar, name, text.encode(errors="replace"), evidence.taken_at_ms)
            for name, path in logs.items():
                try:
                    _add(tar, f"logs/{name}", _end_of(path), evidence.taken_at_ms)
                except OSError as failure:
                    unread.append(f"{path}: {failure.strerror}")
    except FileExistsError:
        raise CliError(f"{archive} exists", hint="Choose another file with --output.") from None
    except OSError as failure:
        hint = "Choose another file with --output."
        raise CliError(f"cannot write {archive}: {failure.strerror}", hint=hint) from None
    return unread


def read(archive: Path) -> Evidence:
    """The evidence in a bundle. Raises CliError."""
    hint = "Give a file that `tierlog debug bundle` has written."
    try:
        found = _files(archive)
        document = json.loads(found[EVIDENCE])
        if document["version"] != VERSION:
            raise CliError(
                f"{archive} has format {document['version']}, not {VERSION}", hint="Use a newer tierlog."
            )
        metrics = {
            int(Path(name).stem): text.decode() for name, text in found.items() if name.startswith(METRICS)
        }
        return _from_json(msgspec.convert(document, _Document, str_keys=True), metrics)
    except DAMAGED as failure:
        raise CliError(f"{archive} is not a complete debug bundle: {failure!r:.200}", hint=hint) from None


DAMAGED = (
    *(OSError, EOFError, zlib.error, tarfile.TarError, RecursionError),
    *(ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError),
)


def _files(archive: Path) -> dict[str, bytes]:
    """Name -> content of the evidence and metrics. Nothing is written to the disk."""
    found: dict[str, bytes] = {}
    left = READ_BYTES_MAX
    with _Contents(archive) as contents, tarfile.open(fileobj=contents, mode="r:") as tar:
        for count, member in enumerate(tar):
            name = member.name.removeprefix(f"{ROOT}/")
            if count >= MEMBERS_MAX or member.offset_data + member.size > ARCHIVE_BYTES_MAX:
                raise ValueError(f"it has more than {MEMBERS_MAX:,} files or {ARCHIVE_BYTES_MAX:,} bytes")
            if member.isreg() and (name == EVIDENCE or name.startswith(METRICS)):
                left -= member.size
                if member.size > MEMBER_BYTES_MAX or left < 0:
                    raise ValueError(f"{name} has {member.size:,} bytes")
                extracted = tar.extractfile(member)
                found[name] = b"" if extracted is None else extracted.read()
    return found


@contextmanager
def _created(archive: Path) -> Iterator[BinaryIO]:
    """The new file. It is removed if it does not become complete."""
    with open(archive, "xb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as raw:
        try:
            yield raw
        except BaseException:
            archive.unlink(missing_ok=True)
            raise


def _add(tar: tarfile.TarFile, name: str, content: bytes, at_ms: int) -> None:
    member = tarfile.TarInfo(f"{ROOT}/{name}")
    member.size, member.mtime = len(content), at_ms // 1000
    tar.addfile(member, io.BytesIO(content))


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX)


def _as_json(evidence: Evidence) -> dict[str, Any]:
    return {
        "version": VERSION,
        "taken_at_ms": evidence.taken_at_ms,
        "urls": evidence.answers.urls,
        "documents": evidence.answers.documents,
        "clocks": evidence.clocks,
        "settings": evidence.settings,
        "hanging": list(evidence.hanging),
        "processes": evidence.processes,
        "roles": {node: list(roles) for node, roles in evidence.roles.items()},
        "not_read": list(evidence.not_read),
    }


def _from_json(document: _Document, metrics: Mapping[int, str]) -> Evidence:
    return Evidence(
        taken_at_ms=document.taken_at_ms,
        answers=Answers(urls=document.urls, documents=document.documents),
        metrics=metrics,
        clocks=document.clocks,
        settings=document.settings,
        hanging=document.hanging,
        processes=document.processes,
        roles=document.roles,
        not_read=document.not_read,
    )
