"""Runs a node in this process and reports when it serves. Called by `tierlog dev` and `tierlog server`."""

import errno
import gc
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.cli.errors import CliError, usage
from tierlog.cli.output import print_json

if TYPE_CHECKING:
    from tierlog.config.node import NodeSettings

SETTINGS_HINT = "docs/reference/settings.md lists all settings with their defaults."
STORE_HINT = "For example file:///var/lib/tierlog/objects, or s3://bucket/prefix?region=eu-central-1"


def read_settings(
    *,
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
    options: Mapping[str, str],
) -> "NodeSettings":
    """Merge the defaults, the file, TIERLOG_… variables and the options; later sources win. References to
    values that are stored elsewhere are replaced. Raises CliError."""
    from tierlog.config.definitions import InvalidSetting
    from tierlog.config.providers import resolved
    from tierlog.config.sources import merged, read_environment, read_toml, settings_from
    from tierlog.tiering.object_store import InvalidStoreUrl
    from tierlog.tiering.stores import check_store_url

    try:
        from_file = {} if file is None else read_toml(file)
        texts = merged(defaults or {}, from_file, read_environment(environment), options)
        settings = settings_from(resolved(texts, environment))
        if settings.object_store_url:
            check_store_url(settings.object_store_url)
    except InvalidSetting as wrong:
        raise usage(str(wrong), hint=SETTINGS_HINT) from None
    except InvalidStoreUrl as wrong:
        raise usage(f"object.store.url: {wrong}", hint=STORE_HINT) from None
    return settings


def serve(settings: "NodeSettings", *, as_json: bool, with_path: bool = False) -> None:
    """Run the node until SIGTERM or SIGINT. Raises CliError if it cannot start. `with_path`: also print where
    Spark finds the history."""
    path = settings.object_store_url if with_path else ""

    def announce(bootstrap: str, admin: str) -> None:
        status = f"serves Kafka clients at {bootstrap}" if bootstrap else "votes in the metadata quorum"
        notify(f"READY=1\nSTATUS={status}")
        if as_json:
            served = {"bootstrap": bootstrap or None, "admin": admin, "pid": os.getpid()}
            print_json({**served, "path": path} if path else served)
            return
        sys.stdout.write(f"tierlog {status}, admin API at {admin} (pid {os.getpid()})\n")
        if path:
            sys.stdout.write(f"Spark reads the history of tiered topics from the path {path}\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, _exit)  # until the node installs its own handlers
    with gc_paused():
        from tierlog.broker.app import run
        from tierlog.broker.node_base import NodeFailed
        from tierlog.config.definitions import InvalidSetting
        from tierlog.metadata.quorum.storage import ForeignDirectory
        from tierlog.metadata.quorum.wal import DamagedLog
        from tierlog.metadata.versions import UnreadableMetadata

    try:
        run(settings, on_ready=announce)
    except OSError as failure:
        what = f"{failure.filename}: {failure.strerror}" if failure.filename else _bind_failure(failure)
        raise CliError(f"cannot start: {what}", hint=_start_hint(failure)) from None
    except ForeignDirectory as failure:
        raise CliError(f"cannot start: {failure}", hint="Use a different directory for this node.") from None
    except UnreadableMetadata as failure:
        hint = "Nothing was changed. `tierlog cluster versions` shows the versions of the other nodes."
        raise CliError(f"cannot start: {failure}", hint=hint) from None
    except DamagedLog as failure:
        hint = "Nothing was changed. Copy the directory before you try to repair it."
        raise CliError(f"cannot start: the metadata log is damaged: {failure}", hint=hint) from None
    except InvalidSetting as wrong:  # a file that a setting names cannot be used
        raise usage(str(wrong), hint=SETTINGS_HINT) from None
    except NodeFailed as failure:
        raise CliError(f"the node failed: {failure}", hint="See its log above.") from None


def _bind_failure(failure: OSError) -> str:
    """The failure; for a port in use its address, which only the text of the exception has."""
    address = re.search(r"\('([^']+)', (\d+)", str(failure))
    if failure.errno != errno.EADDRINUSE or address is None:
        return str(failure)
    return f"port {address[2]} of {address[1]} is in use"


def notify(state: str) -> None:
    """Send `state`, lines such as READY=1, to the service manager (sd_notify(3), `Type=notify` units). Does
    nothing without NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # abstract namespace (unix(7))
    # the node serves even if the service manager does not listen
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)


@contextmanager
def gc_paused() -> Iterator[None]:
    """For imports: their objects live forever, and scanning them repeatedly takes a tenth of the start-up
    time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def _exit(number: int, frame: object) -> None:
    sys.exit(0)


def _start_hint(failure: OSError) -> str:
    if failure.errno == errno.EADDRINUSE:
        return "Choose another --port or --admin-port (0 picks a free one)."
    if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "The data directory must be writable: use another --data-dir or log.dirs."
    if failure.errno == errno.ENOSPC:
        return (
            "The disk of the data directory is full: free some space, or use another --data-dir or log.dirs."
        )
    if failure.errno in (errno.ENOTDIR, errno.EEXIST):
        return "The path is a file, not a directory: use another --data-dir or log.dirs."
    return "Check the node's addresses and directories: docs/reference/settings.md lists all settings."


def stop_at_end_of_input() -> None:
    """Send SIGTERM to this process when standard input closes, as it does when its writer ends."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stop at end of input", daemon=True).start()
