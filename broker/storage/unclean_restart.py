"""Unclean restart detection: tells the controller whether a log directory still has everything it
acknowledged.

Two things can remove acknowledged records from a directory while no process uses it:

- A crash of the machine. A killed process leaves its writes in the kernel's page cache, so the boot id of the
  machine is recorded next to the logs: after a restart under the same boot id, or after a clean shutdown,
  nothing is lost.
- An operator who restores an older copy (a backup or a volume snapshot). Each directory holds the broker
  epoch under which it was last used, in the clean shutdown file or next to the boot id, and the controller
  compares it with the last epoch it unfenced (KIP-966). A copy from the same epoch is detected by the inode
  and change time of `meta.properties`, which is written once. A copy written over the files in place changes
  only the change time, as `chown` and `chmod` do. They cannot be told apart, so after an unclean shutdown
  they count as a restored copy.

A replica that may have lost acknowledged records must not be elected as if it had not. Called by app.py.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tierlog.base.files import Files, write_atomically
from tierlog.base.safeguards import safeguard
from tierlog.broker.storage.checkpoints import META_PROPERTIES, read_clean_epoch

BOOT_FILE = "boot.id"
UNKNOWN_EPOCH = -1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _LastUse(NamedTuple):
    """Content of the boot id file. `boot`: empty if unsynced data may have been lost. `stamp`: that of
    `meta.properties` at the time.
    """

    boot: str = ""
    broker_epoch: int = UNKNOWN_EPOCH
    stamp: str = ""


def boot_id() -> str:
    """The boot id of the running kernel; empty if unknown, which counts as a new boot each time."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


@safeguard("a broker reports log directories that may have lost records")
def data_loss_reason(files: Files, directories: Iterable[Path], boot: str) -> str | None:
    """Why unsynced data may be lost, for the operator; None if it is not. Call it before the logs are opened,
    which removes the clean shutdown file.
    """
    for directory in directories:
        if (
            _clean_epoch(files, directory) is None
            and (why := _unsynced_loss_reason(files, directory, boot)) is not None
        ):
            return f"{directory}: {why}"
    return None


def previous_broker_epoch(files: Files, directories: Iterable[Path]) -> int:
    """The lowest broker epoch under which the directories were last used; UNKNOWN_EPOCH if one does not say.
    Call it before the logs are opened.
    """
    return min((_epoch(files, directory) for directory in directories), default=UNKNOWN_EPOCH)


def record_broker_epoch(files: Files, directories: Iterable[Path], broker_epoch: int) -> None:
    """Record that the directories are used under this broker epoch. Call it after the registration and before
    the broker is unfenced: a directory without the epoch of a broker that served has been restored. Raises
    OSError.
    """
    for directory in directories:
        last = _read(files, directory)
        if last.broker_epoch != broker_epoch:
            _write(files, directory, last._replace(broker_epoch=broker_epoch))


def record_boot_id(files: Files, directories: Iterable[Path], boot: str) -> None:
    """Record that the directories are used under this boot. Raises OSError.

    Call it after the controller knows of a loss and torn log ends have been truncated. Otherwise, if
    this process is killed in between, the next one would not report the loss and would take the torn ends for
    damage.
    """
    for directory in directories:
        last = _read(files, directory)
        now = last._replace(boot=boot, stamp=_stamp(directory))
        if now != last:
            _write(files, directory, now)


def clear_boot_id(files: Files, directories: Iterable[Path]) -> None:
    """Record that unsynced data may be lost although the machine still runs: after a failed fsync it is
    unknown what the kernel dropped. If the failing disk allows the write, the next start tells the
    controller. The broker epoch stays, since the directory is not an older copy.
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
        return "this machine has no boot id"
    if not last.boot:
        return f"{BOOT_FILE} has no boot id: the directory is new, or an fsync failed there"
    if last.boot != boot:
        return "the machine has rebooted since the last process, which was not shut down clean"
    if last.stamp != _stamp(directory):
        return (
            f"{META_PROPERTIES} has changed since the last process, which was not shut down clean: a copy "
            "was restored, or its owner or mode was set (chown, chmod, fsGroup)"
        )
    return None


def _epoch(files: Files, directory: Path) -> int:
    at_clean_stop = _clean_epoch(files, directory)
    return _read(files, directory).broker_epoch if at_clean_stop is None else at_clean_stop


def _clean_epoch(files: Files, directory: Path) -> int | None:
    with suppress(OSError):
        return read_clean_epoch(files, directory)
    return None


@safeguard("a restored copy of a log directory is detected")
def _stamp(directory: Path) -> str:
    """Changes with every copy of the file, even in place: no program can set the change time."""
    with suppress(OSError):
        status = os.stat(directory / META_PROPERTIES)
        return f"{status.st_ino}:{status.st_ctime_ns}"
    return ""


def _read(files: Files, directory: Path) -> _LastUse:
    """One line per field; files of earlier versions have only the first."""
    with suppress(OSError, ValueError):
        boot, *rest = files.read_whole(directory / BOOT_FILE).decode().splitlines()
        return _LastUse(boot, int(rest[0]), rest[1]) if len(rest) > 1 else _LastUse(boot)
    return _LastUse()


def _write(files: Files, directory: Path, last: _LastUse) -> None:
    write_atomically(files, directory / BOOT_FILE, "".join(f"{field}\n" for field in last).encode())
