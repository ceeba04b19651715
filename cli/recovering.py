"""Opens the metadata log of a stopped node for `tierlog quorum recover`, and locks its directory."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tierlog.base.files import OsFiles
from tierlog.broker.storage_tools.offline import LOCK_FILE, InUse, locked
from tierlog.cli.errors import CliError, usage
from tierlog.metadata.quorum.recovery import NotRecoverable, Recovery
from tierlog.metadata.quorum.storage import ForeignDirectory
from tierlog.metadata.quorum.wal import DamagedLog

METADATA_DIRECTORY = "__cluster_metadata"


@contextmanager
def recovering(directory: Path, metadata_directory: Path | None) -> Iterator[Recovery]:
    """Raises CliError if a node runs in the directory, or its metadata cannot be recovered."""
    if not (directory / LOCK_FILE).exists():
        raise usage(f"{directory} is not a node's data directory", hint="Give the first of its log.dirs.")
    try:
        with locked(directory):
            metadata = metadata_directory or directory / METADATA_DIRECTORY
            recovery = Recovery(OsFiles(), metadata, random.SystemRandom())
            try:
                yield recovery
            finally:
                recovery.close()
    except InUse as running:
        raise CliError(str(running), hint="Stop the node first: `systemctl stop tierlog@…`.") from None
    except NotRecoverable as refused:
        hint = "docs/runbooks/lost-majority-for-good.md describes which voter to choose."
        raise CliError(f"nothing was changed: {refused}", hint=hint) from None
    except (DamagedLog, ForeignDirectory) as damage:
        hint = "Try the next remaining voter."
        raise CliError(f"nothing was changed: the metadata log is damaged: {damage}", hint=hint) from None
    except OSError as failure:
        raise CliError(f"{directory}: {failure}", hint="It is safe to run the command again.") from None
