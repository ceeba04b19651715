"""Unclean restart detection: tells the controller whether a log directory still has all that it acknowledged.

Two things may take acknowledged records from a directory while no process uses it:

- A crash of the machine. What a killed process had written is in the kernel's page cache, so the boot id of
  the machine is noted beside the logs: under the same boot nothing is lost, nor after a clean stop.
- An operator who puts an older copy back (a backup, a snapshot of the volume). Each directory carries the
  broker epoch under which it was last used, in the marker of a clean stop or beside the boot id, and the
  controller compares it with the epoch that it last let serve (KIP-966). A copy of the same epoch is
  recognised by the inode and change time of `meta.properties`, which is written once. Only the change time
  shows a copy that is written over the files in place, and `chown` and `chmod` set it too: nothing tells them
  apart, so after an unclean stop they count as a copy.

A replica that may have lost what it acknowledged must not be elected as if it had not. Called by app.py.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import Files, write_atomically
from tierlog.broker.storage.checkpoints import META_PROPERTIES, read_clean_epoch

BOOT_FILE = "boot.id"
UNKNOWN_EPOCH = -1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _LastUse(NamedTuple):
    """What the boot file says. `boot`: empty if it may have lost what was not synced. `stamp`: of
    `meta.properties` at that time."""

    boot: str = ""
    broker_epoch: int = UNKNOWN_EPOCH
    stamp: str = ""


def boot_id() -> str:
    """Of the running kernel; empty where it cannot be told, which is taken for another each time."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def data_loss_reason(files: Files, directories: Iterable[Path], boot: str) -> str | None:
    """Why bytes that were not synced may be gone, for the operator; None: they are there. To be called before
    the logs are opened, which removes the marker of a clean stop."""
    for directory in directories:
        if (
            _clean_epoch(files, directory) is None
            and (why := _unsynced_loss_reason(files, directory, boot)) is not None
        ):
            return f"{directory}: {why}"
    return None


def may_have_lost(files: Files, directories: Iterable[Path], boot: str) -> bool:
    return data_loss_reason(files, directories, boot) is not None


def previous_broker_epoch(files: Files, directories: Iterable[Path]) -> int:
    """The broker epoch under which all of them were used, the least if they differ; UNKNOWN_EPOCH if one does
    not know. To be called before the logs are opened.
    """
    return min((_epoch(files, directory) for directory in directories), default=UNKNOWN_EPOCH)


def record_broker_epoch(files: Files, directories: Iterable[Path], broker_epoch: int) -> None:
    """From now on they are used under this broker epoch. To be called after the registration and before the
    broker is let in: a directory without the epoch of a broker that served has been put back. Raises OSError.
    """
    for directory in directories:
        last = _read(files, directory)
        if last.broker_epoch != broker_epoch:
            _write(files, directory, last._replace(broker_epoch=broker_epoch))


def record_boot_id(files: Files, directories: Iterable[Path], boot: str) -> None:
    """From now on they are used under this boot. Not before the controller knows of a loss, and the logs are
    without what it tore: else the process after one that is killed meanwhile would keep the loss to itself,
    and take the torn ends for damage. Raises OSError.
    """
    for directory in directories:
        last = _read(files, directory)
        now = last._replace(boot=boot, stamp=_stamp(directory))
        if now != last:
            _write(files, directory, now)


def clear_boot_id(files: Files, directories: Iterable[Path]) -> None:
    """Bytes may be gone although the machine runs on: an fsync has failed, and what the kernel then dropped
    is unknown. As far as a failing disk allows it, the next start tells the controller. The broker epoch
    stays: the directory is no older copy.
    """
    for directory in directories:
        try:
            _write(files, directory, _read(files, directory)._replace(boot=""))
        except OSError:
            with suppress(OSError):
                files.unlink(directory / BOOT_FILE, missing_ok=True)
                files.sync_directory(directory)


def _unsynced_loss_reason(files: Files, directory: Path, boot: str) -> str | None:
    last = _read(files, directory)
    if not boot:
        return "this machine does not tell its boot id"
    if not last.boot:
        return f"{BOOT_FILE} names no boot: the directory is new, or an fsync failed there"
    if last.boot != boot:
        return "the machine has been booted since its last process, which was not stopped clean"
    if last.stamp != _stamp(directory):
        return (
            f"{META_PROPERTIES} has changed since its last process, which was not stopped clean: a copy was "
            "put back, or its owner or mode was set (chown, chmod, fsGroup)"
        )
    return None


def _epoch(files: Files, directory: Path) -> int:
    at_clean_stop = _clean_epoch(files, directory)
    return _read(files, directory).broker_epoch if at_clean_stop is None else at_clean_stop


def _clean_epoch(files: Files, directory: Path) -> int | None:
    with suppress(OSError):
        return read_clean_epoch(files, directory)
    return None


def _stamp(directory: Path) -> str:
    """Changes with every copy of the file, in place or not: no program can set the change time."""
    with suppress(OSError):
        status = os.stat(directory / META_PROPERTIES)
        return f"{status.st_ino}:{status.st_ctime_ns}"
    return ""


def _read(files: Files, directory: Path) -> _LastUse:
    """A line for each field; a file of an earlier version has the first one alone."""
    with suppress(OSError, ValueError):
        boot, *rest = files.read_whole(directory / BOOT_FILE).decode().splitlines()
        return _LastUse(boot, int(rest[0]), rest[1]) if len(rest) > 1 else _LastUse(boot)
    return _LastUse()


def _write(files: Files, directory: Path, last: _LastUse) -> None:
    write_atomically(files, directory / BOOT_FILE, "".join(f"{field}\n" for field in last).encode())
