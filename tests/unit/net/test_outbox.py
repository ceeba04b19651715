"""Send queue: bytes and file slices leave in order, however little the socket accepts."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierlog.base.files import FileSlice, OsFiles, Part
from tierlog.base.open_files import SharedFile
from tierlog.broker.net.core.bounds import COPY_BYTES_MAX, SENDFILE_TAIL_BYTES
from tierlog.broker.net.core.send_queue import SendQueue
from tierlog.broker.net.outbox import Outbox

CONTENT = os.urandom(8 * COPY_BYTES_MAX)


@pytest.fixture
def file(tmp_path: Path) -> SharedFile:
    (tmp_path / "segment").write_bytes(CONTENT)
    return SharedFile(OsFiles(), tmp_path / "segment")


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A non-blocking socket and its peer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, getattr(request, "param", socket.SOCK_STREAM))
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def queued(sock: socket.socket, *parts: Part) -> Outbox:
    queue = SendQueue()
    queue.count(parts)
    queue.parts.extend(parts)
    return Outbox(sock, queue)


@pytest.mark.parametrize("ends", [socket.SOCK_SEQPACKET], indirect=True)
def test_response_with_small_batches_leaves_in_one_piece(
    ends: tuple[socket.socket, socket.socket], file: SharedFile
) -> None:
    ours, theirs = ends
    outbox = queued(ours, b"head", FileSlice(file, 7, 1000), b"between", FileSlice(file, 0, 2000), b"tail")
    outbox.send()
    assert not outbox.queue.parts
    assert theirs.recv(1 << 20) == b"head" + CONTENT[7:1007] + b"between" + CONTENT[:2000] + b"tail"


@pytest.mark.parametrize("ends", [socket.SOCK_SEQPACKET], indirect=True)
def test_slices_that_are_read_into_one_buffer_leave_in_one_piece(
    ends: tuple[socket.socket, socket.socket], file: SharedFile
) -> None:
    ours, theirs = ends
    first, second = FileSlice(file, 7, 40 << 10), FileSlice(file, 300_000, 50 << 10)
    outbox = queued(ours, b"head", first, b"between", second, b"tail")
    outbox.send()
    assert not outbox.queue.parts
    assert theirs.recv(1 << 20) == b"head" + first.read() + b"between" + second.read() + b"tail"


@pytest.mark.parametrize("ends", [socket.SOCK_SEQPACKET], indirect=True)
def test_end_of_a_large_slice_leaves_with_the_following_bytes(
    ends: tuple[socket.socket, socket.socket], file: SharedFile
) -> None:
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    outbox = queued(ours, b"head", FileSlice(file, 7, 200 << 10), b"tail")
    outbox.send()
    assert not outbox.queue.parts
    packets = [b""]
    while sum(map(len, packets)) < len(b"headtail") + (200 << 10):
        packets.append(theirs.recv(1 << 20))
    assert b"".join(packets) == b"head" + CONTENT[7 : 7 + (200 << 10)] + b"tail"
    assert len(packets[-1]) == SENDFILE_TAIL_BYTES + len(b"tail")


@pytest.mark.parametrize("around", [-1, 0, 1])
def test_slices_near_the_limit_arrive_intact_at_a_slow_reader(
    ends: tuple[socket.socket, socket.socket], file: SharedFile, around: int
) -> None:
    ours, theirs = ends
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    size = COPY_BYTES_MAX + around
    slices = [FileSlice(file, number, size) for number in range(5)]
    small = [FileSlice(file, number * 1000, 900) for number in range(100)]
    parts: list[Part] = [b"head", *slices, b"", FileSlice(file, 0, 0), *small, memoryview(b"tail")]
    whole = b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)
    outbox = queued(ours, *parts)
    assert (outbox.queue.bytes, outbox.queue.memory_bytes) == (len(whole), len(b"headtail"))
    received, sent = bytearray(), 0
    while outbox.queue.parts:
        sent += outbox.send()
        assert outbox.queue.bytes == len(whole) - sent
        received += theirs.recv(3000)
    while len(received) < len(whole):
        received += theirs.recv(1 << 20)
    assert received == whole
    assert (outbox.queue.bytes, outbox.queue.memory_bytes) == (0, 0)


@pytest.mark.parametrize("size", [100, 2 * COPY_BYTES_MAX])
def test_a_file_that_ends_inside_a_slice_is_an_error(
    ends: tuple[socket.socket, socket.socket], file: SharedFile, size: int
) -> None:
    outbox = queued(ends[0], FileSlice(file, len(CONTENT) - 50, size))
    with pytest.raises(OSError, match="is shorter than a slice"):
        outbox.send()
