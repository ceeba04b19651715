"""Debug bundles: one archive with the evidence of a cluster, its findings and the ends of logs.

    bundle/report.txt      findings, for people
    bundle/findings.json   the same, for scripts
    bundle/evidence.json   responses of the admin APIs, settings, clocks, what could not be read
    bundle/metrics/1.txt   metrics of node 1
    bundle/logs/…          the end of each log file

`tierlog doctor --bundle` reads the evidence back and examines it again, perhaps with newer rules.
"""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tierlog.cli.cluster_processes import ProcessState
from tierlog.cli.diagnosis import Finding, report
from tierlog.cli.errors import CliError
from tierlog.cli.evidence import Evidence
from tierlog.cli.observation import Answers

ROOT, EVIDENCE, METRICS = "bundle", "evidence.json", "metrics/"
VERSION = 1
LOG_BYTES_MAX = 16 << 20
"""Maximum bytes of a log: its end, which has what happened last."""

MEMBER_BYTES_MAX = 512 << 20
"""A bundle may come from others: a larger file in it is refused."""


def write(
    archive: Path, evidence: Evidence, findings: Sequence[Finding], logs: Mapping[str, Path]
) -> list[str]:
    """Write the archive. `logs`: name in the bundle -> file. Returns what of the logs could not be read.
    Raises CliError, also if the archive exists."""
    unread = []
    files = {
        "report.txt": report(findings),
        "findings.json": json.dumps([asdict(one) for one in findings], indent=1),
        EVIDENCE: json.dumps(_as_json(evidence), indent=1),
        **{f"{METRICS}{node}.txt": text for node, text in evidence.metrics.items()},
    }
    try:
        with archive.open("xb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
            for name, text in files.items():
                _add(tar, name, text.encode(), evidence.taken_at_ms)
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
        with tarfile.open(archive, "r:gz") as tar:
            found = {
                member.name.removeprefix(f"{ROOT}/"): _content(tar, member)
                for member in tar
                if member.isfile() and not member.name.startswith(f"{ROOT}/logs/")
            }
        document = json.loads(found[EVIDENCE])
        if document["version"] != VERSION:
            raise CliError(
                f"{archive} has format {document['version']}, not {VERSION}", hint="Use a newer tierlog."
            )
        metrics = {
            int(Path(name).stem): text.decode() for name, text in found.items() if name.startswith(METRICS)
        }
        return _from_json(document, metrics)
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise CliError(f"{archive} is not a complete debug bundle: {failure!r}", hint=hint) from None


def _add(tar: tarfile.TarFile, name: str, content: bytes, at_ms: int) -> None:
    member = tarfile.TarInfo(f"{ROOT}/{name}")
    member.size, member.mtime = len(content), at_ms // 1000
    tar.addfile(member, io.BytesIO(content))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if member.size > MEMBER_BYTES_MAX:
        raise ValueError(f"{member.name} has {member.size} bytes")
    extracted = tar.extractfile(member)
    return b"" if extracted is None else extracted.read()


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


def _from_json(document: Mapping[str, Any], metrics: Mapping[int, str]) -> Evidence:
    def by_node(name: str) -> dict[int, Any]:
        return {int(node): value for node, value in document[name].items()}

    return Evidence(
        taken_at_ms=document["taken_at_ms"],
        answers=Answers(urls=by_node("urls"), documents=by_node("documents")),
        metrics=metrics,
        clocks=by_node("clocks"),
        settings=by_node("settings"),
        hanging=document["hanging"],
        processes={node: ProcessState(state) for node, state in by_node("processes").items()},
        roles=by_node("roles"),
        not_read=document["not_read"],
    )
