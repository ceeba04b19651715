"""Sentinel: has a small process of its own tell the controllers when this process has ended.

A broker is fenced before its session ends only if its process is certain to be gone, since its lease may run
on. What another host can see of that (a connection that breaks, another that is refused) is forged by any
firewall on the way that answers with RST. So the proof comes from the broker's own host: a child process sees
this one end, and sends a notice that was signed for this broker epoch. Where the child dies as well, as with
the whole host or container, or nothing gets through, the session decides. See docs/adr/0013.

`update` is called with each registration; `close` only when this process serves no more.
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

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.auth import SignedRequest
from tierlog.metadata.quorum.failure_watch import address_of
from tierlog.metadata.quorum.tls import TlsFiles

LOOK_S = 1.0
"""Between two looks at who votes, and whether the child lives."""

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
        """`sign`: the body, for each other voter as it is known now."""
        self._broker_id, self._sign, self._tasks, self._tls = broker_id, sign, tasks, tls
        self._broker_epoch = -1
        self._told = b""
        self._child: subprocess.Popen[bytes] | None = None
        self._keeping: asyncio.Task[None] | None = None

    def update(self, broker_epoch: int) -> None:
        """This process has registered under this epoch."""
        if self._keeping is None:
            self._keeping = self._tasks.repeat("sentinel", self._look)
        self._broker_epoch = broker_epoch
        self._tell()

    def close(self) -> None:
        """The controllers are told now: this process serves no more."""
        child, self._child = self._child, None
        keeping, self._keeping = self._keeping, None
        self._broker_epoch = -1
        if keeping is not None:
            keeping.cancel()
        if child is not None:
            _let_go(child)

    async def _look(self) -> None:
        await asyncio.sleep(LOOK_S)
        self._tell()

    def _tell(self) -> None:
        """The child gets a new order if anything has changed; a new child if it has ended."""
        if self._broker_epoch < 0:
            return
        if self._child is not None and self._child.poll() is not None:
            _log.warning("the sentinel has ended, and is started again", exit_code=self._child.returncode)
            _let_go(self._child)
            self._child = None
        order = self._order()
        if self._child is None:
            self._child, self._told = _start(), b""
        if order == self._told or self._child is None or self._child.stdin is None:
            return
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(self._child.stdin.fileno(), order)
        self._told = order
        if written < len(order):  # it does not read, or is gone: the next look starts another
            _log.warning("the sentinel takes no orders, and is replaced")
            self._child.kill()

    def _order(self) -> bytes:
        body = msgspec.msgpack.encode(ProcessEndNotice(self._broker_id, self._broker_epoch))
        notices = []
        for signed in self._sign(body):
            host, port, tls = address_of(signed.url)
            headers = {
                **signed.headers,
                "Host": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
                "Content-Length": str(len(body)),
            }
            lines = [f"POST {signed.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
            head = "\r\n".join([*lines, "Connection: close", "", ""])
            request = head + body.decode("latin-1")
            notices.append({"host": host, "port": port, "tls": tls, "request": request})
        files = None if self._tls is None else _paths(self._tls)
        return json.dumps({"tls": files, "notices": notices}).encode() + b"\n"


def _start() -> subprocess.Popen[bytes] | None:
    """In a session of its own: a signal to the broker's process group is not meant for it. No descriptor of
    the broker is left open in it."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    except OSError as failure:
        _log.warning("there is no sentinel: if this process dies, its session has to end", error=str(failure))
        return None
    if child.stdin is not None:
        os.set_blocking(child.stdin.fileno(), False)
    return child


def _let_go(child: "subprocess.Popen[bytes]") -> None:
    """It ends by itself within moments; whoever waits for it then is in no one's way."""
    if child.stdin is not None:
        child.stdin.close()
    threading.Thread(target=child.wait, name="sentinel ends", daemon=True).start()


def _paths(files: TlsFiles) -> dict[str, str]:
    return {
        "certificate": str(files.certificate.absolute()),
        "key": str(files.key.absolute()),
        "ca": str(files.ca.absolute()),
    }
