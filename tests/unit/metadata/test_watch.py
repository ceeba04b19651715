"""What proves a process dead, and what does not: real connections on loopback."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificates import Authority
from pump import turns, until

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.failure_watch import AGAIN_S, Address, FailureWatch, address_of


class Host:
    """A listening process that can drop its connections, and stop listening."""

    def __init__(self) -> None:
        self.met: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.found: list[int] = []  # whom the watch told of, for each connection
        self.address = Address("127.0.0.1", 0)
        self.tls: ssl.SSLContext | None = None
        self.server: asyncio.Server | None = None

    async def listen(self) -> None:
        self.server = await asyncio.start_server(
            lambda _, writer: self.met.put_nowait(writer), *self.address[:2], ssl=self.tls
        )
        self.address = Address(*self.server.sockets[0].getsockname(), tls=self.tls is not None)


@asynccontextmanager
async def watching(
    host: Host,
    suspect_s: float = 60,
    steady_s: float = 0,
    renew_s: float = 60,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[FailureWatch, asyncio.Queue[int]]]:
    failures: list[BaseException] = []
    deaths: asyncio.Queue[int] = asyncio.Queue()
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    watch = FailureWatch(
        "test",
        tasks,
        deaths.put_nowait,
        host.found.append,
        tls=tls,
        suspect_s=suspect_s,
        steady_s=steady_s,
        renew_s=renew_s,
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


async def test_a_broken_connection_and_a_refused_one_are_a_death() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.met.get()
        host.server.close()
        connection.close()
        assert await deaths.get() == 7
        assert watch.connected == frozenset()


async def test_who_listens_for_tls_is_spoken_to_in_it_lest_it_breaks_the_connection(tmp_path: Path) -> None:
    host, files = Host(), Authority(tmp_path).issue("node")
    host.tls = files.server()
    await host.listen()
    async with watching(host, tls=files.client()) as (watch, deaths), asyncio.timeout(20):
        connection = await host.met.get()  # not before the handshake
        await until(lambda: watch.connected == {7})
        host.server.close()
        connection.transport.abort()  # without a farewell, as of a process that is killed
        assert await deaths.get() == 7


async def test_a_broken_connection_casts_doubt_until_there_is_another() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.met.get()
        assert watch.suspects == frozenset()
        host.server.close()
        connection.close()
        await deaths.get()
        assert watch.suspects == {7}
        await host.listen()
        watch.is_up(7)
        await host.met.get()
        await until(lambda: not watch.suspects)
        await until(lambda: host.found == [7, 7])  # so the death is taken back


@pytest.mark.parametrize("bounds", [{"suspect_s": 0}, {"steady_s": 60}])
async def test_doubt_does_not_last_and_needs_a_connection_that_did(bounds: dict[str, float]) -> None:
    host = Host()
    await host.listen()
    async with watching(host, **bounds) as (watch, deaths):
        connection = await host.met.get()
        host.server.close()
        connection.close()
        await deaths.get()
        assert watch.suspects == frozenset()


async def test_a_connection_that_breaks_alone_is_only_made_again() -> None:
    host = Host()
    await host.listen()
    async with watching(host) as (_, deaths):
        for _ in range(3):
            (await host.met.get()).close()
        await host.met.get()
        assert deaths.empty()


async def test_a_connection_that_is_reset_at_once_proves_nothing_and_breaks_nothing() -> None:
    """As by a process that is killed with connections in its queue."""
    host = Host()
    resets: asyncio.Queue[None] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        host.address = Address(*listening.getsockname())

        def reset() -> None:
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return  # asked again before the first was taken
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            resets.put_nowait(None)

        loop = asyncio.get_running_loop()
        # a turn later, when asyncio has learned that it is connected, and not yet asked to whom
        loop.add_reader(listening, lambda: loop.call_soon(reset))
        async with watching(host) as (watch, deaths), asyncio.timeout(20):
            for _ in range(3):
                await resets.get()
                watch.is_up(7)
            loop.remove_reader(listening)
            assert deaths.empty()


class Closing(Host):
    """It accepts, and closes at once unless it is told to keep what it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.times = asyncio.Queue[float]()
        self.keeps = False

    async def listen(self) -> None:
        self.server = await asyncio.start_server(self._accept, *self.address[:2])
        self.address = Address(*self.server.sockets[0].getsockname())

    async def gap(self, watch: FailureWatch) -> float:
        start = await self.times.get()
        await turns()  # until it knows that the connection broke, and waits
        watch.is_up(7)  # who answers, over another connection, is not tried any sooner
        return await self.times.get() - start

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.times.put_nowait(asyncio.get_running_loop().time())
        if self.keeps:
            self.met.put_nowait(writer)
        else:
            writer.close()


async def test_a_connection_is_replaced_before_it_is_old_and_nobody_doubts() -> None:
    host = Host()
    await host.listen()
    async with watching(host, renew_s=0.01) as (watch, deaths), asyncio.timeout(20):
        held = [await host.met.get()]
        for _ in range(3):
            held.append(await host.met.get())
            await turns()  # until it has heard that the one before is closed
            assert (watch.connected, watch.suspects) == ({7}, frozenset())
        assert host.found == [7]
        host.server.close()
        while deaths.empty():  # whichever it keeps by now
            while held or not host.met.empty():
                (held.pop() if held else host.met.get_nowait()).close()
            await turns(1)
        assert await deaths.get() == 7


async def test_who_accepts_and_closes_is_tried_less_and_less() -> None:
    host = Closing()
    await host.listen()
    async with watching(host, steady_s=60) as (watch, deaths):
        gaps = [await host.gap(watch) for _ in range(3)]  # after 5, 20 and 80 ms
        assert gaps[1] >= 3 * AGAIN_S and gaps[2] >= 15 * AGAIN_S
        assert deaths.empty()


async def test_after_a_steady_connection_it_is_tried_as_often_as_at_first() -> None:
    host, loop = Closing(), asyncio.get_running_loop()
    await host.listen()
    async with watching(host, steady_s=0.25) as (watch, deaths):
        for _ in range(3):
            await host.gap(watch)
        host.keeps = True
        writer = await host.met.get()  # after 160 ms; were it to break at once, 320 ms and more would follow
        await until(lambda: watch.connected == {7})
        met = loop.time()
        await until(lambda: loop.time() > met + 0.3)
        host.keeps = False
        host.times = asyncio.Queue()
        writer.close()
        assert min([await host.gap(watch) for _ in range(2)]) < 60 * AGAIN_S  # whatever else the machine does
        assert deaths.empty()


async def test_who_was_never_met_cannot_die_and_is_met_as_soon_as_it_is_up() -> None:
    host = Host()
    await host.listen()
    host.server.close()
    await host.server.wait_closed()
    async with watching(host) as (watch, deaths):
        await host.listen()
        watch.is_up(7)
        await host.met.get()
        assert deaths.empty()


async def test_who_is_no_longer_watched_dies_unnoticed() -> None:
    host, other = Host(), Host()
    await host.listen()
    await other.listen()
    async with watching(host) as (watch, deaths):
        connection = await host.met.get()
        watch.watch({8: other.address})
        host.server.close()
        connection.close()
        last = await other.met.get()
        other.server.close()
        last.close()
        assert await deaths.get() == 8


def test_addresses() -> None:
    assert address_of("http://h:1/") == ("h", 1, False)
    assert address_of("http://[::1]:9644") == ("::1", 9644, False)
    assert address_of("https://h") == ("h", 443, True)
