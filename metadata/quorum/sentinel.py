"""Sentinel: a child process that notifies the controllers when this process has ended.

A broker may be fenced before its session ends only if its process has certainly ended, since its lease may
still run. Evidence that another host can see (a broken connection, a refused one) can be forged by a firewall
that sends RST. So the proof comes from the broker's own host: the child sees its parent end, and sends a
notice that was signed for this broker epoch. If the child dies too, as with the whole host or container, or
the notice does not arrive, the broker is fenced when its session ends. See docs/adr/0013.

`update` is called after each registration; `close` only when this process no longer serves.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from tierlog.base.addresses import host_port
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.auth import SignedRequest
from tierlog.metadata.quorum.failure_watch import address_of
from tierlog.metadata.quorum.tls import TlsFiles

CHECK_INTERVAL_S = 1.0
"""Time between two checks of the voters and of the child."""

_SCRIPT = Path(__file__).with_name("sentinel_process.py")
_log = structlog.get_logger("tierlog.metadata")


class ProcessEndNotice(msgspec.Struct, frozen=True, array_like=True):
    """Body of a notice: the process that registered as this broker under this epoch has ended."""

    broker_id: int
    broker_epoch: int


class Sentinel:
    def __init__(
        self,
        broker_id: int,
        sign: Callable[[bytes], list[SignedRequest]],
        tasks: TaskGroup,
        tls: TlsFiles | None = None,
    ) -> None:
        """`sign`: returns the body as a signed request to each other voter known now."""
        self._broker_id, self._sign, self._tasks, self._tls = broker_id, sign, tasks, tls
        self._broker_epoch = -1
        self._sent = b""  # to the child
        self._child: subprocess.Popen[bytes] | None = None
        self._start_failed = False
        self._task: asyncio.Task[None] | None = None

    def update(self, broker_epoch: int) -> None:
        """This process has registered under this epoch."""
        if self._task is None:
            self._task = self._tasks.repeat("sentinel", self._check)
        self._broker_epoch = broker_epoch
        self._instruct()

    def close(self) -> None:
        """Notify the controllers now: this process no longer serves."""
        child, self._child = self._child, None
        task, self._task = self._task, None
        self._broker_epoch = -1
        if task is not None:
            task.cancel()
        if child is not None:
            _release(child)

    async def _check(self) -> None:
        await asyncio.sleep(CHECK_INTERVAL_S)
        self._instruct()

    def _instruct(self) -> None:
        """Send the child new instructions if they have changed. Start a new child if it has ended."""
        if self._broker_epoch < 0:
            return
        if self._child is not None and self._child.poll() is not None:
            _log.warning("sentinel.ended", exit_code=self._child.returncode)
            _release(self._child)
            self._child = None
        instructions = self._instructions()
        if self._child is None:
            self._child, self._sent = self._start(), b""
        if instructions == self._sent or self._child is None or self._child.stdin is None:
            return
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(self._child.stdin.fileno(), instructions)
        self._sent = instructions
        if written < len(instructions):  # it hangs or has ended: the next check starts another
            _log.warning("sentinel.unreachable")
            self._child.kill()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Logs the first failure in a row, since each check tries again."""
        try:
            child = _start_process()
        except OSError as failure:
            if not self._start_failed:
                _log.warning(
                    "sentinel.start_failed",
                    error=str(failure),
                )
            self._start_failed = True
            return None
        self._start_failed = False
        return child

    def _instructions(self) -> bytes:
        body = msgspec.msgpack.encode(ProcessEndNotice(self._broker_id, self._broker_epoch))
        notices = []
        for signed in self._sign(body):
            host, port, tls = address_of(signed.url)
            headers = {
                **signed.headers,
                "Host": host_port(host, port),
                "Content-Length": str(len(body)),
            }
            lines = [f"POST {signed.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            head = "\r\n".join([*lines, "Connection: close", "", ""])
            request = head + body.decode("latin-1")
            notices.append({"host": host, "port": port, "tls": tls, "request": request})
        files = None if self._tls is None else _paths(self._tls)
        return json.dumps({"tls": files, "notices": notices}).encode() + b"\n"


def _start_process() -> subprocess.Popen[bytes]:
    """Starts in a session of its own, so that signals to the broker's process group do not reach it. It
    inherits no descriptor of the broker. Raises OSError."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    if child.stdin is not None:
        os.set_blocking(child.stdin.fileno(), False)
    return child


def _release(child: "subprocess.Popen[bytes]") -> None:
    """Closing its stdin makes the child notify the controllers and end. A thread reaps it."""
    if child.stdin is not None:
        child.stdin.close()
    threading.Thread(target=child.wait, name="sentinel reaper", daemon=True).start()


def _paths(files: TlsFiles) -> dict[str, str]:
    return {
        "certificate": str(files.certificate.absolute()),
        "key": str(files.key.absolute()),
        "ca": str(files.ca.absolute()),
    }
