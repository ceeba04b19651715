"""Whether bytes that were not synced may be gone: after a crash of the machine, not of the process alone.

What a killed process had written is in the page cache of the kernel, as long as that runs on. So each log
directory says under which boot of the machine it was last used (a file beside `meta.properties`): after
the same one, or after a clean stop, nothing is lost. A replica that may have lost what it acknowledged must
not be elected as if it had not (KIP-966). Called by app.py.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tierlog.broker.log.checkpoints import CLEAN_SHUTDOWN
from tierlog.broker.ports.files import Files, write_atomically

BOOT_FILE = "boot.id"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Of the running kernel; empty where it cannot be told, which is taken for another each time."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def may_have_lost(files: Files, directories: Iterable[Path], boot: str) -> bool:
    """To be asked before the logs are opened, which takes the marker of a clean stop away."""
    return any(
        not files.exists(directory / CLEAN_SHUTDOWN) and _read(files, directory) != boot.encode()
        for directory in directories
    )


def note_boot(files: Files, directories: Iterable[Path], boot: str) -> None:
    """From now on they are used under this boot. Not before the controller knows of a loss, and the logs are
    without what it tore: else the process after one that is killed meanwhile would keep the loss to itself,
    and take the torn ends for damage. Raises OSError.
    """
    for directory in directories:
        if _read(files, directory) != boot.encode():
            write_atomically(files, directory / BOOT_FILE, boot.encode())


def forget_boot(files: Files, directories: Iterable[Path]) -> None:
    """Bytes may be gone although the machine runs on: an fsync has failed, and what the kernel then dropped
    nobody knows. As far as a disk that fails lets one say so, the next start tells the controller.
    """
    for directory in directories:
        with suppress(OSError):
            files.unlink(directory / BOOT_FILE, missing_ok=True)
            files.sync_directory(directory)


def _read(files: Files, directory: Path) -> bytes | None:
    path = directory / BOOT_FILE
    with suppress(OSError):
        return files.read_whole(path) or None
    return None
