"""Certificates that are replaced while a node runs."""

import asyncio
import ssl
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from certificates import Authority
from connection_harness import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.broker.gateway.authentication import is_still_valid
from tierlog.metadata.quorum.tls import TlsFiles, reload_on_change, require_certificate

CHECK_INTERVAL_S = 0.005


class Server:
    """Presents a certificate to each client, and records the client's."""

    def __init__(self, files: TlsFiles) -> None:
        self.context = files.server()
        self.shown: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.context)

    async def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.shown.put_nowait(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()

    async def connect(self, client: ssl.SSLContext) -> tuple[bytes, bytes | None]:
        """The certificates of both sides."""
        return await self.seen_by(client), await self.shown.get()

    async def seen_by(self, client: ssl.SSLContext) -> bytes:
        """Its certificate; raises ssl.SSLCertVerificationError."""
        port = self.server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="127.0.0.1")
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(certificate)


def certificate(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate.read_text())


async def test_replaced_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("node")
    old, server = certificate(files), Server(files)
    tasks = TaskGroup(lambda name, failure: None)
    client = files.client()
    await server.start()
    async with asyncio.timeout(60):
        with capture_logs() as logs:
            for context in (server.context, client):
                tasks.spawn("fresh", reload_on_change(files, context, CHECK_INTERVAL_S))
            assert (await server.connect(client)) == (old, old)
            replaced = authority.issue("other")
            files.certificate.write_bytes(replaced.certificate.read_bytes())
            await until(lambda: len(logs) == 2)  # the key is still the old one
            assert (await server.connect(client)) == (old, old)
            files.key.write_bytes(replaced.key.read_bytes())
            while (shown := await server.connect(client)) != (certificate(replaced), certificate(replaced)):
                assert set(shown) <= {old, certificate(replaced)}
    await tasks.close()
    server.server.close()
    refused = [line for line in logs if line["log_level"] == "error"]
    assert len(refused) == 2 and all(str(files.key) in line["error"] for line in refused)


async def test_added_ca_is_trusted_without_a_restart(tmp_path: Path) -> None:
    """The file holds both CAs, the old one first: the first of three rounds that replace a CA."""
    first, second = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    server, tasks = Server(first.issue("node")), TaskGroup(lambda name, failure: None)
    files = first.issue("reader")
    both = TlsFiles(certificate=files.certificate, key=files.key, ca=tmp_path / "ca")
    both.ca.write_bytes(first.certificate_file.read_bytes())
    client, later = both.client(), Server(second.issue("node"))
    await server.start()
    await later.start()
    tasks.spawn("fresh", reload_on_change(both, client, CHECK_INTERVAL_S))
    async with asyncio.timeout(60):
        await server.connect(client)
        both.ca.write_bytes(first.certificate_file.read_bytes() + second.certificate_file.read_bytes())
        while True:
            try:
                assert await later.seen_by(client)
                break
            except ssl.SSLCertVerificationError:
                continue
        await server.connect(client)
    await tasks.close()
    server.server.close()
    later.server.close()


@pytest.mark.parametrize(
    ("path", "expires", "is_served"),
    [
        ("/v1/cluster", "Jan  1 00:00:00 2100 GMT", True),
        ("/v1/cluster", "Jan  1 00:00:00 2020 GMT", False),
        ("/metrics", "Jan  1 00:00:00 2020 GMT", True),
        ("/raft/1/step", "Jan  1 00:00:00 2020 GMT", True),  # between nodes
    ],
)
async def test_certificate_that_has_expired_since_the_handshake_is_refused(
    path: str, expires: str, is_served: bool
) -> None:
    async def serve(_: web.Request) -> web.StreamResponse:
        return web.Response()

    transport = asyncio.Transport({"peercert": {"notAfter": expires}})
    request = make_mocked_request("GET", path, transport=transport)
    assert await is_still_valid(request) == expires.endswith("2100 GMT")  # as of a stream
    if is_served:
        assert (await require_certificate(request, serve)).status == 200
        return
    with pytest.raises(web.HTTPForbidden, match="Forbidden"):
        await require_certificate(request, serve)
