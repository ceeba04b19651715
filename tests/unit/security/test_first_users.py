"""The file of first users: removed once the cluster has them, and kept for the operator otherwise."""

import os
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from tierlog.base.files import OsFiles
from tierlog.broker.security.first_users import forget_first_users, read_first_users, write_first_users
from tierlog.metadata.controller.commands import CredentialChange
from tierlog.metadata.scram import ScramVerifier

VERIFIER = ScramVerifier(salt=b"salt", stored_key=bytes(32), server_key=bytes(32), iterations=4096)
USERS = tuple(CredentialChange(user=user, mechanism=1, verifier=VERIFIER) for user in ("ada", "bob"))


def test_users_that_the_cluster_has_are_forgotten(tmp_path: Path) -> None:
    files = OsFiles()
    path = write_first_users(files, tmp_path, USERS)
    assert read_first_users(files, tmp_path) == USERS
    forget_first_users(files, tmp_path, USERS, {"ada", "bob", "eve"})
    assert not path.exists()
    forget_first_users(files, tmp_path, (), {})
    assert read_first_users(files, tmp_path) == ()


def test_users_that_were_not_taken_are_kept_and_named(tmp_path: Path) -> None:
    files = OsFiles()
    path = write_first_users(files, tmp_path, USERS)
    with capture_logs() as logs:
        forget_first_users(files, tmp_path, USERS, {"ada"})
    assert path.exists()
    [line] = logs
    assert (line["log_level"], line["users"], line["file"]) == ("error", ["bob"], str(path))


def test_only_the_owner_can_read_the_file_at_any_time(tmp_path: Path) -> None:
    modes: list[int] = []

    class Observed(OsFiles):
        def writev_at(self, fd: int, buffers: Any, position: int) -> int:
            modes.append(os.fstat(fd).st_mode & 0o777)
            return super().writev_at(fd, buffers, position)

    file = write_first_users(Observed(), tmp_path, ())
    assert [*modes, file.stat().st_mode & 0o777] == [0o600, 0o600]
    assert read_first_users(OsFiles(), tmp_path) == ()
    write_first_users(Observed(), tmp_path, ())
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
