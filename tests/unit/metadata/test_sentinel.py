"""Sentinel: a real child process that notifies the controllers when its parent has ended."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from certificates import Authority
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.auth import SignedRequest
from tierlog.metadata.quorum.sentinel import ProcessEndNotice, Sentinel
from tierlog.metadata.quorum.tls import TlsFiles

BROKER, EPOCH = 7, 42


class Controller:
    """A server that accepts notices."""

    def __init__(self, tls: TlsFiles | None = None) -> None:
        self._tls = tls
        self.statuses = ["204 No Content"]  # statuses of the next responses; the last one stays
        self.requests: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def listen(self, port: int = 0) -> None:
        context = None if self._tls is None else self._tls.server()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context)
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split("\r\n")[0])
        self.requests.put_nowait((head, await reader.readexactly(length)))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        writer.close()

    async def nothing_else(self) -> None:
        """No notice arrives before a request that is sent now: connections are accepted in order."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=None if self._tls is None else self._tls.client()
        )
        writer.write(b"POST /marker HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 204")
        writer.close()
        head, _ = await self.requests.get()
        assert head.startswith("POST /marker "), f"there was a notice already: {head}"

    async def notice(self) -> ProcessEndNotice:
        head, body = await self.requests.get()
        assert head.startswith("POST /end HTTP/1.1\r\n") and "signed: yes" in head
        return msgspec.msgpack.decode(body, type=ProcessEndNotice)

    def sign(self, body: bytes) -> list[SignedRequest]:
        return [SignedRequest(self.url, "/end", {"signed": "yes"})]


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    failures: list[BaseException] = []
    group = TaskGroup(lambda name, failure: failures.append(failure))
    yield group
    await group.close()
    assert failures == []


@pytest.mark.parametrize("secure", [False, True])
async def test_closing_the_sentinel_notifies_the_controllers(
    tasks: TaskGroup, tmp_path: Path, secure: bool
) -> None:
    files = Authority(tmp_path).issue("node") if secure else None
    controller = Controller(files)
    await controller.listen()
    sentinel = Sentinel(BROKER, controller.sign, tasks, files)
    sentinel.update(EPOCH - 1)  # a premature notice would carry this epoch
    sentinel.update(EPOCH)  # it has registered again
    child = sentinel._child
    sentinel.close()
    assert await controller.notice() == ProcessEndNotice(BROKER, EPOCH)
    assert child is not None
    await asyncio.to_thread(child.wait)
    await controller.nothing_else()
    controller.server.close()


@pytest.mark.parametrize("status", ["408 Request Timeout", "429 Too Many Requests", "503 Unavailable"])
async def test_notice_is_sent_again_to_a_busy_controller(tasks: TaskGroup, status: str) -> None:
    controller = Controller()
    controller.statuses = [status, status, "204 No Content"]
    await controller.listen()
    sentinel = Sentinel(BROKER, controller.sign, tasks)
    sentinel.update(EPOCH)
    sentinel.close()
    for _ in range(3):
        assert await controller.notice() == ProcessEndNotice(BROKER, EPOCH)
    controller.server.close()


async def test_rejected_notice_is_not_sent_again(tasks: TaskGroup) -> None:
    controller = Controller()
    controller.statuses = ["403 Forbidden", "204 No Content"]
    await controller.listen()
    sentinel = Sentinel(BROKER, controller.sign, tasks)
    sentinel.update(EPOCH)
    child = sentinel._child
    sentinel.close()
    assert await controller.notice() == ProcessEndNotice(BROKER, EPOCH)
    assert child is not None
    await asyncio.to_thread(child.wait)
    await controller.nothing_else()
    controller.server.close()


async def test_closed_sentinel_leaves_no_task_and_can_be_reused(tasks: TaskGroup) -> None:
    controller = Controller()
    await controller.listen()
    sentinel = Sentinel(BROKER, controller.sign, tasks)

    def running_tasks() -> list[asyncio.Task[None]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "sentinel"]

    for epoch in (EPOCH, EPOCH + 1):
        sentinel.update(epoch)
        sentinel.update(epoch)
        (task,) = running_tasks()
        sentinel.close()
        assert await controller.notice() == ProcessEndNotice(BROKER, epoch)
        await asyncio.wait([task])
        assert running_tasks() == []
    controller.server.close()


async def test_killed_process_is_reported_and_a_suspended_one_is_not(tmp_path: Path) -> None:
    """A notice sent because of the suspension would carry the earlier epoch."""
    controller = Controller()
    await controller.listen()
    program = f"""
import asyncio, sys
from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.auth import SignedRequest
from tierlog.metadata.quorum.sentinel import Sentinel
async def main():
    sign = lambda body: [SignedRequest("{controller.url}", "/end", {{"signed": "yes"}})]
    sentinel = Sentinel({BROKER}, sign, TaskGroup(print))
    sentinel.update({EPOCH - 1})
    print("up", flush=True)
    sys.stdin.readline()
    sentinel.update({EPOCH})
    print("up again", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGCONT)
    process.stdin.write(b"continue\n")
    assert await process.stdout.readline() == b"up again\n"
    process.kill()
    assert await controller.notice() == ProcessEndNotice(BROKER, EPOCH)
    await process.wait()
    await controller.nothing_else()
    controller.server.close()


async def test_killed_sentinel_is_replaced(tasks: TaskGroup) -> None:
    controller = Controller()
    await controller.listen()
    sentinel = Sentinel(BROKER, controller.sign, tasks)
    sentinel.update(EPOCH)
    assert sentinel._child is not None
    sentinel._child.kill()
    sentinel._child.wait()
    sentinel.update(EPOCH)
    sentinel.close()
    assert await controller.notice() == ProcessEndNotice(BROKER, EPOCH)
    controller.server.close()


async def test_failed_starts_are_logged_once(tasks: TaskGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel = Sentinel(BROKER, lambda body: [], tasks)
    starts = 0

    def refuse(*args: object, **options: object) -> None:
        nonlocal starts
        starts += 1
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", refuse)
            for _ in range(3):
                sentinel.update(EPOCH)
        assert starts == 3
        sentinel.update(EPOCH)
        assert sentinel._child is not None
        sentinel._child.kill()
        sentinel._child.wait()
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", refuse)
            sentinel.update(EPOCH)
    assert [line["event"] for line in logs] == [
        "sentinel.start_failed",
        "sentinel.ended",
        "sentinel.start_failed",
    ]
    sentinel.close()
