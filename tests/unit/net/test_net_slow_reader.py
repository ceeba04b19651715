"""A slow client gets the right bytes although the limit on open files is reached."""

import socket
import struct
from pathlib import Path

import pytest
from connection_harness import HEARTBEAT, Broker, until

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import OpenFiles, SharedFile
from tierlog.broker.handlers.context import RawReply
from tierlog.protocol.messages.heartbeat import HeartbeatRequest

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy:DeprecationWarning")

SIZE = 3_000_000
ANSWERS = 6


class Owner:
    open_file: SharedFile | None = None


async def test_files_of_queued_responses_stay_open(broker: Broker, tmp_path: Path) -> None:
    """Each response has its own file. Between two of them, twenty other files are opened, with a limit of
    two."""
    await broker.start(in_flight=64, queued_response_bytes=1 << 30)
    bound = OpenFiles(2)
    files = OsFiles(bound)
    owners: dict[int, Owner] = {}
    for number in range(ANSWERS):
        (tmp_path / f"answer-{number}").write_bytes(bytes([65 + number]) * SIZE)
    for number in range(20):
        (tmp_path / f"other-{number}").write_bytes(b"z" * SIZE)

    def handle(*_: object) -> RawReply:
        number = len(owners)
        owner = owners[number] = Owner()
        part = FileSlice(bound.open(owner, files, tmp_path / f"answer-{number}"), 0, SIZE)
        press()
        return RawReply([part])

    others = [Owner() for _ in range(20)]

    def press() -> None:
        for number, owner in enumerate(others):
            bound.open(owner, files, tmp_path / f"other-{number}")

    broker.on_heartbeat = handle
    client = await broker.connect()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(ANSWERS):
        client.send(HEARTBEAT, 0, HeartbeatRequest())
    await client.writer.drain()
    await until(lambda: len(owners) == ANSWERS)
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for number in range(ANSWERS):
        press()
        frame = await client.frame()
        assert frame == struct.pack(">i", number + 1) + bytes([65 + number]) * SIZE
    assert bound.evicted > 100
