"""Runs a node in this process and says when it serves; used by `tierlog dev` and `tierlog server`."""

import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.cli.errors import CliError, usage
from tierlog.cli.output import print_json
from tierlog.cli.readiness import notify

if TYPE_CHECKING:
    from tierlog.config.node import NodeSettings

SETTINGS_HINT = "docs/reference/settings.md lists every setting with its default."
STORE_HINT = "For example file:///var/lib/tierlog/objects, or s3://bucket/prefix?region=eu-central-1"


def read_settings(
    *,
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, str],
) -> "NodeSettings":
    """The defaults, the file, TIERLOG_… in the environment, then the options: the later wins. Raises
    CliError.
    """
    from tierlog.config.definitions import InvalidSetting
    from tierlog.config.sources import merged, read_environment, read_toml, settings_from
    from tierlog.tiering.object_store import InvalidStoreUrl
    from tierlog.tiering.stores import check_store_url

    try:
        of_file = {} if file is None else read_toml(file)
        settings = settings_from(merged(defaults or {}, of_file, read_environment(environment), options))
        if settings.object_store_url:
            check_store_url(settings.object_store_url)
    except InvalidSetting as wrong:
        raise usage(str(wrong), hint=SETTINGS_HINT) from None
    except InvalidStoreUrl as wrong:
        raise usage(f"object.store.url: {wrong}", hint=STORE_HINT) from None
    return settings


def serve(settings: "NodeSettings", *, as_json: bool) -> None:
    """Runs until SIGTERM or SIGINT; raises CliError if the node cannot start."""

    def announce(bootstrap: str, admin: str) -> None:
        does = f"serves Kafka clients at {bootstrap}" if bootstrap else "votes in the metadata quorum"
        notify(f"READY=1\nSTATUS={does}")
        if as_json:
            print_json({"bootstrap": bootstrap or None, "admin": admin, "pid": os.getpid()})
            return
        sys.stdout.write(f"tierlog {does}, its admin API at {admin} (pid {os.getpid()})\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, _leave)  # until the node has handlers of its own
    with uncollected():
        from tierlog.broker.app import run
        from tierlog.broker.node_base import NodeFailed
        from tierlog.metadata.quorum.storage import ForeignDirectory
        from tierlog.metadata.quorum.wal import DamagedLog

    try:
        run(settings, on_ready=announce)
    except OSError as failure:
        raise CliError(f"cannot start: {failure}", hint=_start_hint(failure)) from None
    except ForeignDirectory as failure:
        raise CliError(f"cannot start: {failure}", hint="Give this node a directory of its own.") from None
    except DamagedLog as failure:
        hint = "Nothing was changed. Keep a copy of the directory before you try anything."
        raise CliError(f"cannot start: the metadata log is damaged: {failure}", hint=hint) from None
    except NodeFailed as failure:
        raise CliError(f"the node had to stop: {failure}", hint="Its log above says why.") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """For imports: what they make stays for good, and to look through it again and again, then and later,
    takes a tenth of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _leave(number: int, frame: object) -> None:
    sys.exit(0)


def _start_hint(failure: OSError) -> str:
    import errno

    if failure.errno == errno.EADDRINUSE:
        return "Another process listens there; choose another port (--port 0 picks a free one)."
    if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "The data directory must be writable: --data-dir, or the setting log.dirs."
    if failure.errno == errno.ENOSPC:
        return "The disk of the data directory is full: free some of it, or name another with --data-dir."
    if failure.errno in (errno.ENOTDIR, errno.EEXIST):
        return "A file is in the way of a directory: name another with --data-dir, or the setting log.dirs."
    return "Check the addresses and directories of the node: docs/reference/settings.md lists their settings."


def stop_at_end_of_input() -> None:
    """Ends this process as SIGTERM would once standard input closes (its writer died or let go)."""
    import threading

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stop at end of input", daemon=True).start()
