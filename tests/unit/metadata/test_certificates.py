"""Certificates that are replaced while nodes run."""

import asyncio
import ssl
from pathlib import Path

from certificates import Authority
from pump import until
from structlog.testing import capture_logs

from tierlog.base.tasks import TaskGroup
from tierlog.metadata.quorum.tls import TlsFiles, reload_on_change

CHECK_INTERVAL_S = 0.005


class Server:
    """It shows a certificate to whoever comes, and tells which it was shown."""

    def __init__(self, files: TlsFiles) -> None:
        self.context = files.server()
        self.shown: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._met, "127.0.0.1", 0, ssl=self.context)

    async def _met(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.shown.put_nowait(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()

    async def meet(self, client: ssl.SSLContext) -> tuple[bytes, bytes | None]:
        """The certificates of both sides."""
        return await self.seen_by(client), await self.shown.get()

    async def seen_by(self, client: ssl.SSLContext) -> bytes:
        """Its certificate; raises ssl.SSLCertVerificationError."""
        port = self.server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="127.0.0.1")
        own = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(own)


def certificate(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate.read_text())


async def test_what_replaces_the_files_is_shown_from_then_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("node")
    old, server = certificate(files), Server(files)
    tasks = TaskGroup(lambda name, failure: None)
    own = files.client()
    await server.start()
    async with asyncio.timeout(60):
        with capture_logs() as told:
            for kept in (server.context, own):
                tasks.spawn("fresh", reload_on_change(files, kept, CHECK_INTERVAL_S))
            assert (await server.meet(own)) == (old, old)
            replaced = authority.issue("other")
            files.certificate.write_bytes(replaced.certificate.read_bytes())
            await until(lambda: len(told) == 2)  # its key is the old one yet
            assert (await server.meet(own)) == (old, old)
            files.key.write_bytes(replaced.key.read_bytes())
            while (shown := await server.meet(own)) != (certificate(replaced), certificate(replaced)):
                assert set(shown) <= {old, certificate(replaced)}
    await tasks.close()
    server.server.close()
    refused = [line for line in told if line["log_level"] == "error"]
    assert len(refused) == 2 and all(str(files.key) in line["error"] for line in refused)


async def test_nodes_of_the_next_ca_are_believed_once_it_is_added(tmp_path: Path) -> None:
    """Both CAs in the file, the old one first: the first of three rounds in which a CA is changed."""
    first, second = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    server, tasks = Server(first.issue("node")), TaskGroup(lambda name, failure: None)
    files = first.issue("reader")
    both = TlsFiles(certificate=files.certificate, key=files.key, ca=tmp_path / "ca")
    both.ca.write_bytes(first.certificate_file.read_bytes())
    own, later = both.client(), Server(second.issue("node"))
    await server.start()
    await later.start()
    tasks.spawn("fresh", reload_on_change(both, own, CHECK_INTERVAL_S))
    async with asyncio.timeout(60):
        await server.meet(own)
        both.ca.write_bytes(first.certificate_file.read_bytes() + second.certificate_file.read_bytes())
        while True:
            try:
                assert await later.seen_by(own)
                break
            except ssl.SSLCertVerificationError:
                continue
        await server.meet(own)
    await tasks.close()
    server.server.close()
    later.server.close()
