"""The audit log of a node: what waits for the disk, what is lost, and that nothing else stops."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tierlog.base.clock import SystemClock
from tierlog.broker.audit import log
from tierlog.broker.audit.entries import ACTION, DENIED_ACCESS
from tierlog.broker.audit.log import QUEUE_FULL, WRITE_FAILED, AuditLog
from tierlog.config.node import NodeSettings


def audit_log(directory: Path) -> AuditLog:
    return AuditLog(NodeSettings(audit_log_dir=str(directory)), 7, SystemClock())


def lines(directory: Path, name: str = "audit-7.jsonl") -> list[Any]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def action(principal: str) -> dict[str, Any]:
    return {"principal": principal, "resources": []}


async def test_action_is_in_the_file_when_record_returns(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    await audit.record([action("User:ada"), action("User:bob")])
    found = lines(tmp_path)
    assert [(one["event"], one["principal"]) for one in found] == [(ACTION, "User:ada"), (ACTION, "User:bob")]
    await audit.close()


async def test_denials_are_in_a_file_of_their_own_with_their_counts_at_the_end(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    for _ in range(5):
        audit.deny(DENIED_ACCESS, {"client": "10.0.0.1"})
    await audit.close()
    assert [one["count"] for one in lines(tmp_path, "audit-7-denied.jsonl")] == [1, 4]
    assert not (tmp_path / "audit-7.jsonl").exists()
    assert audit.counts.repeated == 4


async def test_what_is_cut_off_names_keeps_no_denials_apart(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    for end in "xyz":
        audit.deny(DENIED_ACCESS, {"client": "10.0.0.1", "resource_name": "t" * 10_000 + end})
    assert audit.counts.repeated == 2
    await audit.close()


async def test_log_that_cannot_be_written_stops_nothing_and_counts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    audit = audit_log(tmp_path / "file")
    await audit.record([action("User:ada")])
    assert audit.counts.dropped == {WRITE_FAILED: 1}
    await audit.close()


async def test_disk_that_hangs_delays_a_response_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "WRITE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(log, "QUEUE_BYTES_MAX", 4000)
    audit, disk = audit_log(tmp_path), threading.Event()
    append = audit._append

    def hanging(batch: Any) -> int:
        disk.wait()
        return append(batch)

    monkeypatch.setattr(audit, "_append", hanging)
    await audit.record([action("User:ada")])
    assert audit.counts.late == 1
    for _ in range(100):  # the queue has a bound
        audit.deny(DENIED_ACCESS, {"client": str(_), "resource_name": "x" * 100})
    assert audit.counts.dropped[QUEUE_FULL] > 0
    disk.set()
    await audit.close()
    assert [one["principal"] for one in lines(tmp_path)] == ["User:ada"]
    written = lines(tmp_path, "audit-7-denied.jsonl")
    assert len(written) + audit.counts.dropped[QUEUE_FULL] == 100


async def test_request_with_more_entries_than_the_queue_holds_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "QUEUE_BYTES_MAX", 4000)
    audit = audit_log(tmp_path)
    await audit.record(action(f"User:{number}") for number in range(200))
    assert [one["principal"] for one in lines(tmp_path)] == [f"User:{number}" for number in range(200)]
    assert not audit.counts.dropped and not audit.counts.late
    await audit.close()


async def test_denials_leave_room_for_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "WRITE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(log, "QUEUE_BYTES_MAX", 4000)
    audit, disk = audit_log(tmp_path), threading.Event()
    append = audit._append

    def hanging(batch: Any) -> int:
        disk.wait()
        return append(batch)

    monkeypatch.setattr(audit, "_append", hanging)
    for number in range(100):
        audit.deny(DENIED_ACCESS, {"client": str(number), "resource_name": "x" * 100})
    await audit.record([action("User:ada")])
    disk.set()
    await audit.close()
    assert [one["principal"] for one in lines(tmp_path)] == ["User:ada"]


async def test_close_gives_up_on_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "CLOSE_TIMEOUT_S", 0.01)
    audit, disk = audit_log(tmp_path), threading.Event()
    monkeypatch.setattr(audit, "_append", lambda batch: disk.wait() and 0)
    recording = asyncio.ensure_future(audit.record([action("User:ada")]))
    await asyncio.sleep(0)
    await audit.close()
    disk.set()
    await recording


async def test_entries_after_the_close_are_counted_as_lost(tmp_path: Path) -> None:
    audit = audit_log(tmp_path)
    await audit.close()
    await audit.record([action("User:ada")])
    assert audit.counts.dropped[QUEUE_FULL] == 1


async def test_many_actions_at_once_share_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, sizes = audit_log(tmp_path), []
    append = audit._append

    def counted(batch: Any) -> int:
        sizes.append(len(batch.actions))
        return append(batch)

    monkeypatch.setattr(audit, "_append", counted)
    await asyncio.gather(*(audit.record([action(f"User:{number}")]) for number in range(100)))
    assert sum(sizes) == len(lines(tmp_path)) == 100
    assert len(sizes) <= 2
    await audit.close()
