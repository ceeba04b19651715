"""Files of the audit log: rotation, full disks, crashes, and files that others remove."""

import errno
import json
import os
import resource
import stat
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from tierlog.broker.audit import files
from tierlog.broker.audit.files import AuditFile


def audit_file(path: Path, bytes_max: int = 100, files_max: int = 3) -> AuditFile:
    return AuditFile(path / "logs" / "audit-1.jsonl", bytes_max, files_max)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "logs").iterdir())}


def test_files_rotate_by_size_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    file = audit_file(tmp_path)
    for number in range(10):
        assert file.append([b"%039d\n" % number], sync=True) == 0
    file.close()
    found = contents(tmp_path)
    assert list(found) == ["audit-1.jsonl", "audit-1.jsonl.1", "audit-1.jsonl.2"]
    assert found["audit-1.jsonl.1"] == b"%039d\n%039d\n" % (6, 7)


def test_sizes_of_earlier_runs_count(tmp_path: Path) -> None:
    for number in range(4):
        file = audit_file(tmp_path)
        file.append([b"%039d\n" % number], sync=False)
        file.close()
    assert list(contents(tmp_path)) == ["audit-1.jsonl", "audit-1.jsonl.1"]


@pytest.mark.parametrize("whole", [b"", b"{}\n"], ids=["", "after a whole line"])
def test_line_that_a_crash_tore_is_removed(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "logs").mkdir()
    torn = b'{"torn":"' + b"x" * 3 * files.SEARCHED_BYTES
    (tmp_path / "logs" / "audit-1.jsonl").write_bytes(whole + torn)
    file = audit_file(tmp_path)
    file.append([b'{"next":1}\n'], sync=False)
    file.close()
    assert contents(tmp_path)["audit-1.jsonl"] == whole + b'{"next":1}\n'


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Sets the largest size of a file of this process: a write beyond it is cut short, and the next fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size if size else soft, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_file_that_may_not_grow_has_whole_lines(tmp_path: Path, largest_file: Callable[[int], None]) -> None:
    file = audit_file(tmp_path, 10_000)
    largest_file(110)
    lost = [
        file.append([b'{"number":%d,"padding":"%015d"}\n' % (number, 0)], sync=True) for number in range(9)
    ]
    assert lost == [0, 0, *[1] * 7]
    largest_file(0)
    assert file.append([b'{"number":99}\n'], sync=True) == 0
    file.close()
    lines = contents(tmp_path)["audit-1.jsonl"].splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 99]


def test_part_of_a_line_that_stays_is_not_joined_to_the_next_one(
    tmp_path: Path, largest_file: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with errors may refuse to truncate a file, but take a new one."""

    class Broken(FileIO):
        def truncate(self, size: int | None = None, /) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "FileIO", Broken)
    file = audit_file(tmp_path, 10_000)
    largest_file(30)
    assert file.append([b'{"first":1}\n', b'{"a longer line":1}\n'], sync=True) == 1
    largest_file(0)
    assert file.append([b'{"last":1}\n'], sync=True) == 0
    file.close()
    found = contents(tmp_path)
    assert found["audit-1.jsonl"] == b'{"last":1}\n'
    assert found["audit-1.jsonl.1"].startswith(b'{"first":1}\n{"a longer') and len(found) == 2


def test_file_that_others_truncate_gets_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As logrotate does it with `copytruncate`, before a write that fails half-way."""
    monkeypatch.setattr(files, "FileIO", FullDisk)
    monkeypatch.setattr(FullDisk, "full", False)
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 1_000, 2)
    assert file.append([b"a first line\n"], sync=True) == 0
    os.truncate(path, 0)
    monkeypatch.setattr(FullDisk, "full", True)
    assert file.append([b"a longer line\n"], sync=True) == 1
    assert path.read_bytes() == b""
    file.close()


class FullDisk(FileIO):
    """Takes half of each line while `full`, and then refuses."""

    full = True

    def write(self, line: Any) -> int:
        if not self.full:
            return super().write(line)
        if len(line) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(line[: len(line) // 2])


def test_full_disk_loses_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FileIO", FullDisk)
    file = audit_file(tmp_path, 10_000)
    monkeypatch.setattr(FullDisk, "full", False)
    assert file.append([b"first line\n"], sync=True) == 0
    monkeypatch.setattr(FullDisk, "full", True)
    assert file.append([b"a longer line\n", b"short\n"], sync=True) == 2
    monkeypatch.setattr(FullDisk, "full", False)
    assert file.append([b"last\n"], sync=True) == 0
    file.close()
    assert contents(tmp_path)["audit-1.jsonl"] == b"first line\nlast\n"


def test_directory_that_cannot_be_made_loses_lines_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    file = audit_file(tmp_path)
    assert file.append([b"lost\n"], sync=True) == 1
    (tmp_path / "logs").unlink()
    assert file.append([b"kept\n"], sync=True) == 0
    file.close()
    assert contents(tmp_path) == {"audit-1.jsonl": b"kept\n"}


def test_failed_rotation_loses_lines_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = audit_file(tmp_path)
    file.append([b"x" * 90 + b"\n"], sync=False)

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "refused")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        assert file.append([b"y" * 90 + b"\n"], sync=False) == 1
    assert file.append([b"z" * 90 + b"\n"], sync=False) == 0
    file.close()
    assert [text[:1] for text in contents(tmp_path).values()] == [b"z", b"x"]


def test_others_may_not_read_the_files(tmp_path: Path) -> None:
    file = audit_file(tmp_path)
    file.append([b"{}\n"], sync=False)
    file.close()
    assert not stat.S_IMODE((tmp_path / "logs" / "audit-1.jsonl").stat().st_mode) & stat.S_IRWXO


def test_moved_file_gets_no_more_lines(tmp_path: Path) -> None:
    """As logrotate does it."""
    path = tmp_path / "audit.jsonl"
    file = AuditFile(path, 1_000, 2)
    assert file.append([b"1\n"], sync=True) == 0
    path.rename(tmp_path / "moved")
    assert file.append([b"2\n"], sync=True) == 0
    assert (path.read_bytes(), (tmp_path / "moved").read_bytes()) == (b"2\n", b"1\n")
    path.unlink()
    assert file.append([b"3\n"], sync=True) == 0
    assert path.read_bytes() == b"3\n"
    file.close()
