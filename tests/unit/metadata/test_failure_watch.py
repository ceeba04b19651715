"""Failure watch over real loopback connections: what is reported as a death, and what is not."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificates import Authority
from connection_harness import turns, until

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.failure_watch import RETRY_MIN_S, Address, FailureWatch, address_of


class Host:
    """A listening process that can drop its connections, and stop listening."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.connected_calls: list[int] = []  # argument of each `on_connected` call
        self.address = Address("127.0.0.1", 0)
        self.tls: ssl.SSLContext | None = None
        self.server: asyncio.Server | None = None

    async def listen(self) -> None:
        self.server = await asyncio.start_server(
            lambda _, writer: self.accepted.put_nowait(writer), *self.address[:2], ssl=self.tls
        )
        self.address = Address(*self.server.sockets[0].getsockname(), tls=self.tls is not None)


@asynccontextmanager
async def watching(
    host: Host,
    suspect_s: float = 60,
    stable_after_s: float = 0,
    reconnect_after_s: float = 60,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[FailureWatch, asyncio.Queue[int]]]:
    failures: list[BaseException] = []
    deaths: asyncio.Queue[int] = asyncio.Queue()
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    watch = FailureWatch(
        "test",
        tasks,
        deaths.put_nowait,
        host.connected_calls.append,
        tls=tls,
        suspect_s=suspect_s,
        stable_after_s=stable_after_s,
        reconnect_after_s=reconnect_after_s,
    )
    watch.watch({7: host.address})
    try:
        yield watch, deaths
    finally:
        await watch.close()
        await tasks.close()
        if host.server is not None:
            host.server.close()
    assert failures == []


async def test_broken_then_refused_connection_is_reported_as_a_death() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.accepted.get()
        host.server.close()
        connection.close()
        assert await deaths.get() == 7
        assert watch.connected == frozenset()


async def test_watch_completes_the_tls_handshake(tmp_path: Path) -> None:
    host, files = Host(), Authority(tmp_path).issue("node")
    host.tls = files.server()
    await host.listen()
    async with watching(host, tls=files.client()) as (watch, deaths), asyncio.timeout(20):
        connection = await host.accepted.get()  # not before the handshake
        await until(lambda: watch.connected == {7})
        host.server.close()
        connection.transport.abort()  # without a TLS shutdown, as when a process is killed
        assert await deaths.get() == 7


async def test_node_is_suspect_from_a_broken_connection_until_the_next_one() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.accepted.get()
        assert watch.suspects == frozenset()
        host.server.close()
        connection.close()
        await deaths.get()
        assert watch.suspects == {7}
        await host.listen()
        watch.retry_now(7)
        await host.accepted.get()
        await until(lambda: not watch.suspects)
        await until(lambda: host.connected_calls == [7, 7])  # so the death is withdrawn


@pytest.mark.parametrize("bounds", [{"suspect_s": 0}, {"stable_after_s": 60}])
async def test_suspicion_expires_and_requires_a_stable_connection(bounds: dict[str, float]) -> None:
    host = Host()
    await host.listen()
    async with watching(host, **bounds) as (watch, deaths):
        connection = await host.accepted.get()
        host.server.close()
        connection.close()
        await deaths.get()
        assert watch.suspects == frozenset()


async def test_broken_connection_alone_is_reconnected_without_a_report() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (_, deaths):
        for _ in range(3):
            (await host.accepted.get()).close()
        await host.accepted.get()
        assert deaths.empty()


async def test_connection_reset_at_once_is_not_reported_as_a_death() -> None:
    """As by a process that is killed with connections in its accept queue."""
    host = Host()
    resets: asyncio.Queue[None] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        host.address = Address(*listening.getsockname())

        def reset() -> None:
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return  # called again before the first connection was accepted
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            resets.put_nowait(None)

        loop = asyncio.get_running_loop()
        # one iteration later: asyncio knows that it is connected, but has not read the peer's address yet
        loop.add_reader(listening, lambda: loop.call_soon(reset))
        async with watching(host) as (watch, deaths), asyncio.timeout(20):
            for _ in range(3):
                await resets.get()
                watch.retry_now(7)
            loop.remove_reader(listening)
            assert deaths.empty()


class Closing(Host):
    """Accepts connections and closes them at once unless `keeps` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.times = asyncio.Queue[float]()
        self.keeps = False

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._accept, *self.address[:2])
        self.address = Address(*self.server.sockets[0].getsockname())

    async def gap(self, watch: FailureWatch) -> float:
        start = await self.times.get()
        await turns()  # until the watch has seen the break and waits
        watch.retry_now(7)  # has no effect during the backoff
        return await self.times.get() - start

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.times.put_nowait(asyncio.get_running_loop().time())
        if self.keeps:
            self.accepted.put_nowait(writer)
        else:
            writer.close()


async def test_old_connection_is_replaced_without_raising_a_suspicion() -> None:
    host = Host()
    await host.listen()
    async with watching(host, reconnect_after_s=0.01) as (watch, deaths), asyncio.timeout(20):
        held = [await host.accepted.get()]
        for _ in range(3):
            held.append(await host.accepted.get())
            await turns()  # until it has seen that the previous one is closed
            assert (watch.connected, watch.suspects) == ({7}, frozenset())
        assert host.connected_calls == [7]
        host.server.close()
        while deaths.empty():  # close whichever connection it holds now
            while held or not host.accepted.empty():
                (held.pop() if held else host.accepted.get_nowait()).close()
            await turns(1)
        assert await deaths.get() == 7


async def test_retries_back_off_if_the_server_closes_each_connection_at_once() -> None:
    host = Closing()
    await host.listen()
    async with watching(host, stable_after_s=60) as (watch, deaths):
        gaps = [await host.gap(watch) for _ in range(3)]  # after 5, 20 and 80 ms
        assert gaps[1] >= 3 * RETRY_MIN_S and gaps[2] >= 15 * RETRY_MIN_S
        assert deaths.empty()


async def test_stable_connection_resets_the_backoff() -> None:
    host, loop = Closing(), asyncio.get_running_loop()
    await host.listen()
    async with watching(host, stable_after_s=0.25) as (watch, deaths):
        for _ in range(3):
            await host.gap(watch)
        host.keeps = True
        writer = await host.accepted.get()  # after 160 ms; if it broke at once, 320 ms and more would follow
        await until(lambda: watch.connected == {7})
        connected_at = loop.time()
        await until(lambda: loop.time() > connected_at + 0.3)
        host.keeps = False
        host.times = asyncio.Queue()
        writer.close()
        assert (
            min([await host.gap(watch) for _ in range(2)]) < 60 * RETRY_MIN_S
        )  # generous, for a loaded machine
        assert deaths.empty()


async def test_node_that_was_never_connected_is_not_reported_and_is_connected_once_up() -> None:
    host = Host()
    await host.listen()
    host.server.close()
    await host.server.wait_closed()
    async with watching(host) as (watch, deaths):
        await host.listen()
        watch.retry_now(7)
        await host.accepted.get()
        assert deaths.empty()


async def test_death_of_a_node_that_is_no_longer_watched_is_not_reported() -> None:
    host, other = Host(), Host()
    await host.listen()
    await other.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.accepted.get()
        watch.watch({8: other.address})
        host.server.close()
        connection.close()
        last = await other.accepted.get()
        other.server.close()
        last.close()
        assert await deaths.get() == 8


def test_address_of_a_url() -> None:
    assert address_of("http://h:1/") == ("h", 1, False)
    assert address_of("http://[::1]:9644") == ("::1", 9644, False)
    assert address_of("https://h") == ("h", 443, True)
