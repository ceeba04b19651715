"""TLS on listeners: real clients of Python's ssl over real sockets, and clients that break the protocol."""

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from connection_harness import HEARTBEAT, METADATA, Broker, Client, turns, until
from tls_certificates import NAME, VERSIONS, Certificates, connect, principals

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import SharedFile
from tierlog.broker.handlers.context import (
    ANONYMOUS,
    RawReply,
    RequestContext,
)
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Refusal
from tierlog.broker.net.tls_handshake import THREADS
from tierlog.protocol.api import APIS, encode_request
from tierlog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tierlog.protocol.messages.metadata import MetadataRequest, MetadataResponse


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


def raw(broker: Broker) -> socket.socket:
    client = socket.create_connection(broker.address)
    client.setblocking(False)
    return client


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_are_served_over_both_versions(
    broker: Broker, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    await broker.start(tls=certificates.tls())
    context = certificates.of_client()
    context.minimum_version = context.maximum_version = version
    client = await connect(broker, context)
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert client.writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
    assert broker.listener.tls_gate.handshakes == 1


def test_renegotiation_is_off(certificates: Certificates) -> None:
    """Python's client cannot ask for it. `openssl s_client` can, with the line R."""
    assert certificates.tls()[NAME].context.options & ssl.OP_NO_RENEGOTIATION


async def test_older_version_that_is_not_enabled_is_refused(
    broker: Broker, certificates: Certificates
) -> None:
    await broker.start(tls=certificates.tls(ssl_enabled_protocols="TLSv1.3"))
    context = certificates.of_client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await connect(broker, context)
    await until(lambda: broker.listener.closed[CloseReason.TLS_HANDSHAKE] == 1)


async def test_frames_of_every_size_arrive_whole(broker: Broker, certificates: Certificates) -> None:
    """Sizes around a TLS record, the shared receive buffer, and a frame that spans many receives."""
    await broker.start(tls=certificates.tls())
    seen: list[int] = []

    def answer(_: RequestContext, request: HeartbeatRequest) -> Any:
        seen.append(len(request.group_id))
        return RawReply([request.group_id.encode()])

    broker.on_heartbeat = answer
    client = await connect(broker, certificates.of_client())
    sizes = [0, 1, 16_300, 16_384, 16_385, 30_000, 32_000]
    for size in sizes:
        client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="x" * size, member_id="m"))
    for size in sizes:
        assert (await client.frame())[4:] == b"x" * size
    assert seen == sizes


async def test_large_file_slices_arrive_byte_identical(
    broker: Broker, certificates: Certificates, tmp_path: Path
) -> None:
    content = os.urandom(100 << 20)
    path = tmp_path / "slice"
    path.write_bytes(content)
    file = SharedFile(OsFiles(), path)
    broker.on_heartbeat = lambda *_: RawReply(
        [b"head", FileSlice(file, 0, len(content)), memoryview(content)[:70_000], b"tail"]
    )
    await broker.start(tls=certificates.tls())
    client = await connect(broker, certificates.of_client())
    client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g", member_id="m"))
    frame = await client.frame()
    assert frame[4:] == b"head" + content + content[:70_000] + b"tail"
    assert broker.listener.kept_bytes == 0


async def test_client_that_reads_nothing_costs_a_batch_and_continues_later(
    broker: Broker, certificates: Certificates
) -> None:
    await broker.start(tls=certificates.tls(), send_buffer_bytes=64 << 10)
    large = os.urandom(8 << 20)
    broker.on_heartbeat = lambda *_: RawReply([large])
    client = await connect(broker, certificates.of_client())
    client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g", member_id="m"))
    await until(lambda: broker.listener.kept_bytes > 0)
    assert (await client.frame())[4:] == large
    await until(lambda: broker.listener.kept_bytes == 0)


async def test_closing_client_ends_the_connection(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    client = await connect(broker, certificates.of_client())
    await client.ask(METADATA, 9, MetadataRequest())
    client.writer.close()
    await until(lambda: broker.listener.connections == 0)
    assert broker.listener.closed == {CloseReason.CLIENT: 1}


async def test_broker_sends_close_notify(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    client = await connect(broker, certificates.of_client())
    await client.ask(METADATA, 9, MetadataRequest())
    await broker.listener.close()
    assert await client.reader.read() == b""  # without close_notify, Python's ssl reports a truncated stream


# ---- clients that break the protocol --------------------------------------------------------------


async def test_plain_client_is_refused_with_a_reason(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    client = await Client.connect(*broker.address)
    client.send(METADATA, 9, MetadataRequest())
    await client.reader.read()  # the alert
    [(why, detail)] = broker.notes
    assert why is CloseReason.TLS_HANDSHAKE
    assert "does not speak TLS" in detail


async def test_tls_client_of_a_plain_listener_is_refused(broker: Broker, certificates: Certificates) -> None:
    await broker.start()
    with pytest.raises(OSError):
        await connect(broker, certificates.of_client())
    await until(lambda: broker.listener.closed[CloseReason.MALFORMED] == 1)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_silent_handshake_ends_after_its_time(
    broker: Broker, certificates: Certificates, sent: bytes
) -> None:
    await broker.start(tls=certificates.tls(), handshake_s=0.05, sweep_s=0.01)
    with raw(broker) as client:
        client.send(sent)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    assert broker.notes[0][0] is CloseReason.TLS_HANDSHAKE
    assert broker.listener.tls_gate.pending == 0


async def test_handshake_of_too_many_bytes_is_refused(broker: Broker, certificates: Certificates) -> None:
    """Records of a ClientHello that never ends."""
    await broker.start(tls=certificates.tls())
    record = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(0x4000 - 4)
    loop = asyncio.get_running_loop()
    with raw(broker) as client, contextlib.suppress(OSError):
        for _ in range(100):
            await loop.sock_sendall(client, record)
        while await loop.sock_recv(client, 1 << 16):
            pass
    await until(lambda: bool(broker.notes))
    assert broker.notes[0][0] is CloseReason.TLS_HANDSHAKE


async def test_giant_certificate_of_a_client_is_refused(broker: Broker, certificates: Certificates) -> None:
    tls = certificates.tls(ssl_client_auth="required", ssl_truststore_location=str(certificates.ca))
    await broker.start(tls=tls)
    context = certificates.of_client()
    context.load_cert_chain(certificates.giant(300_000))
    with pytest.raises((OSError, EOFError)):
        client = await connect(broker, context)
        await client.ask(METADATA, 9, MetadataRequest())
    await until(lambda: broker.listener.closed[CloseReason.TLS_HANDSHAKE] == 1)
    assert (broker.listener.tls_gate.pending, broker.listener.connections) == (0, 0)


async def test_handshake_byte_by_byte_succeeds(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    loop = asyncio.get_running_loop()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = certificates.of_client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with raw(broker) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                session.do_handshake()
            except ssl.SSLWantReadError:
                pass
            else:
                break
            for byte in outgoing.read():
                await loop.sock_sendall(client, bytes([byte]))
            incoming.write(await loop.sock_recv(client, 1 << 16))
        await loop.sock_sendall(client, outgoing.read())
        await until(lambda: broker.listener.connections == 1)


class ManualTls:
    """A client that decides which bytes arrive together."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.loop, self.sock = asyncio.get_running_loop(), sock
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self.outgoing, server_hostname="localhost")

    async def shake_hands(self) -> None:
        """The handshake except for its last flight, which stays in `outgoing`."""
        while True:
            try:
                return self.session.do_handshake()
            except ssl.SSLWantReadError:
                await self.send()
                self._incoming.write(await self.loop.sock_recv(self.sock, 1 << 16))

    def write_request(self) -> None:
        request = HeartbeatRequest(group_id="g", member_id="m")
        self.session.write(encode_request(APIS[HEARTBEAT], 0, 1, "test", request))

    async def send(self) -> None:
        await self.loop.sock_sendall(self.sock, self.outgoing.read())

    async def expect_end(self) -> None:
        while await self.loop.sock_recv(self.sock, 1 << 16):
            pass


async def test_request_between_the_handshake_and_the_end_of_the_stream_is_handled(
    broker: Broker, certificates: Certificates
) -> None:
    await broker.start(tls=certificates.tls())
    found = await principals(broker)
    with raw(broker) as sock:
        client = ManualTls(sock, certificates.of_client())
        await client.shake_hands()
        client.write_request()
        sock.send(client.outgoing.read())
        sock.shutdown(socket.SHUT_WR)
        await client.expect_end()
    assert found == [ANONYMOUS]
    assert broker.listener.closed == {CloseReason.CLIENT: 1}


@pytest.mark.parametrize("waits", [False, True])
async def test_close_notify_behind_a_request_ends_the_connection(
    broker: Broker, certificates: Certificates, waits: bool
) -> None:
    """The client leaves the TCP connection open. Also when it is not read at first, due to in_flight."""
    await broker.start(tls=certificates.tls(), in_flight=1)
    futures = broker.hold_heartbeats() if waits else []
    with raw(broker) as sock:
        client = ManualTls(sock, certificates.of_client())
        await client.shake_hands()
        await client.send()
        await until(lambda: broker.listener.connections == 1)
        client.write_request()
        with contextlib.suppress(ssl.SSLWantReadError):
            client.session.unwrap()
        await client.send()
        if waits:
            await until(lambda: len(futures) == 1)
            futures[0].set_result(HeartbeatResponse())
        await client.expect_end()
    assert broker.listener.closed == {CloseReason.CLIENT: 1}


async def test_damaged_record_closes_the_connection(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    client = await connect(broker, certificates.of_client())
    await client.ask(METADATA, 9, MetadataRequest())
    sock = client.writer.get_extra_info("socket")
    os.write(sock.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
    await until(lambda: broker.listener.connections == 0)
    assert broker.listener.closed[CloseReason.NETWORK] == 1


async def test_closing_listener_ends_handshakes(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls())
    with raw(broker) as client:
        await until(lambda: broker.listener.tls_gate.pending == 1)
        await broker.listener.close()
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_failure_in_a_thread_after_the_close_is_not_logged(
    broker: Broker, certificates: Certificates
) -> None:
    loop = asyncio.get_running_loop()
    logged: list[object] = []
    loop.set_exception_handler(lambda _, context: logged.append(context))
    await broker.start(tls=certificates.tls())
    gate, release = broker.listener.tls_gate, threading.Event()
    with raw(broker) as client:
        await until(lambda: gate.pending == 1)
        threads = gate._threads
        assert threads is not None
        for _ in range(THREADS):
            threads.submit(release.wait)
        await until(threads._work_queue.empty)
        client.send(b"GET / HTTP/1.1\r\n")
        await until(lambda: not threads._work_queue.empty())
        await broker.listener.close()
        release.set()
        await asyncio.to_thread(threads.shutdown)
        await turns()
    gc.collect()
    assert not logged


async def test_at_the_limit_the_oldest_handshake_ends(
    broker: Broker, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.broker.net.tls_gate.HANDSHAKES_MAX", 2)
    monkeypatch.setattr("tierlog.broker.net.tls_gate.HANDSHAKE_GRACE_S", 0.0)
    await broker.start(tls=certificates.tls())
    silent = [raw(broker) for _ in range(5)]
    client = await connect(broker, certificates.of_client())
    assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert broker.listener.tls_gate.pending <= 2
    for each in silent:
        each.close()


@pytest.mark.parametrize("has_tls", [False, True])
async def test_flood_of_handshakes_leaves_other_listeners_alone(
    broker: Broker, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, has_tls: bool
) -> None:
    monkeypatch.setattr("tierlog.broker.net.tls_gate.HANDSHAKES_MAX", 2)
    monkeypatch.setattr("tierlog.broker.net.tls_gate.HANDSHAKE_GRACE_S", 1e9)
    tls = certificates.tls()
    if has_tls:
        tls["OTHER"] = tls[NAME]
    await broker.start(tls=tls, more=["OTHER"])
    silent = [raw(broker) for _ in range(5)]
    await until(lambda: broker.listener.refused[Refusal.HANDSHAKES] > 0)
    for _ in range(3):
        client = await Client.connect(
            *broker.addresses["OTHER"], ssl=certificates.of_client() if has_tls else None
        )
        assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert broker.listener.tls_gate.pending == 2
    for each in silent:
        each.close()


async def test_handshakes_do_not_use_up_the_connections(broker: Broker, certificates: Certificates) -> None:
    await broker.start(tls=certificates.tls(), more=["OTHER"], connections=2)
    silent = [raw(broker) for _ in range(2)]
    await until(lambda: broker.listener.tls_gate.pending == 2)
    clients = [await Client.connect(*broker.addresses["OTHER"]) for _ in range(3)]
    for client in clients[:2]:
        assert await client.ask(METADATA, 9, MetadataRequest()) == MetadataResponse(controller_id=0)
    assert await clients[2].expect_close() == b""
    assert broker.listener.closed == {CloseReason.TLS_HANDSHAKE: 2}
    assert broker.listener.refused == {Refusal.ALL: 3}
    for each in silent:
        each.close()


async def test_many_handshakes_at_once_are_all_served(broker: Broker, certificates: Certificates) -> None:
    """More than one turn accepts; each client sends its request together with the end of its handshake."""
    await broker.start(tls=certificates.tls())
    context = certificates.of_client()

    async def one_client() -> object:
        client = await connect(broker, context)
        answer = await client.ask(METADATA, 9, MetadataRequest())
        client.writer.close()
        return answer

    answers = await asyncio.gather(*(one_client() for _ in range(200)))
    assert answers == [MetadataResponse(controller_id=0)] * 200
    await until(lambda: broker.listener.connections == 0)
    assert (broker.listener.tls_gate.handshakes, broker.listener.tls_gate.pending) == (200, 0)
    assert not broker.listener._per_address


async def test_requests_that_wait_start_without_further_bytes(
    broker: Broker, certificates: Certificates
) -> None:
    """Requests behind the limit of pending ones wait decrypted, and start without further bytes from the
    socket."""
    await broker.start(tls=certificates.tls(), in_flight=2)
    futures = broker.hold_heartbeats()
    client = await connect(broker, certificates.of_client())
    for _ in range(20):
        client.send(HEARTBEAT, 0, HeartbeatRequest(group_id="g" * 10_000, member_id="m"))
    for number in range(20):
        await until(lambda number=number: len(futures) > number)  # type: ignore[misc]
        futures[number].set_result(HeartbeatResponse())
        await client.frame()
