"""First users of a new cluster, in a file that `tierlog storage format` writes and the first start hands
over.

Without them no client could log in to create a user, and the cluster would have to stand open for a while.
The broker sends them with its registration, and the controller takes them only for a new cluster. The file
has verifiers and no passwords; it is removed after the registration.
"""

import errno
import os
from collections.abc import Container, Iterable
from pathlib import Path

import msgspec
import structlog

from tierlog.base.files import Files
from tierlog.metadata.controller.commands import CredentialChange

FIRST_USERS = "first-users.json"
META_PROPERTIES = "meta.properties"
_log = structlog.get_logger("tierlog")
_decoder = msgspec.json.Decoder(tuple[CredentialChange, ...])


def is_used(files: Files, directory: Path) -> bool:
    """Whether a node has used the log directory, so that it is too late for first users."""
    return files.exists(directory / META_PROPERTIES)


def write_first_users(files: Files, directory: Path, users: tuple[CredentialChange, ...]) -> Path:
    """Write the file so that only its owner can ever read it. Raises OSError."""
    files.make_directory(directory)
    path = directory / FIRST_USERS
    temporary = path.with_name(f"{FIRST_USERS}.tmp")
    files.unlink(temporary, missing_ok=True)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    file = files.open(temporary)
    try:
        files.writev_at(file, [msgspec.json.encode(users)], 0)
        files.sync(file)
    finally:
        files.close(file)
    files.rename(temporary, path)
    files.sync_directory(directory)
    return path


def read_first_users(files: Files, directory: Path) -> tuple[CredentialChange, ...]:
    """Raises OSError."""
    path = directory / FIRST_USERS
    if not files.exists(path):
        return ()
    try:
        return _decoder.decode(files.read_whole(path))
    except msgspec.DecodeError as fault:
        why = f"damaged: write it again with `tierlog storage format` ({fault})"
        raise OSError(errno.EINVAL, why, str(path)) from None


def forget_first_users(
    files: Files, directory: Path, users: Iterable[CredentialChange], known: Container[str]
) -> None:
    """Remove the file once the cluster has these users. `known`: the users of the cluster."""
    path = directory / FIRST_USERS
    missing = sorted({change.user for change in users if change.user not in known})
    if missing:
        _log.error(
            "user.first.ignored",
            users=missing,
            file=str(path),
        )
    elif files.exists(path):
        files.unlink(path)
