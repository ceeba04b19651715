"""Frames from Hypothesis against a complete broker: it responds or closes, continues to serve, and stays
small.
"""

import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierlog.protocol.api import APIS
from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.slow

MIB = 1 << 20
ANSWER_WITHIN_S = 1.0  # the bound in GUARANTEES: no request may block a node for longer
ALLOWANCE = 2 * 64 * 1024 + 8 * MIB  # twice the largest frame made here, and 8 MiB

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, 0)


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as handle:
        return int(handle.read().split()[1]) * 4096


def connect(broker: TierlogBroker) -> socket.socket:
    host, port = broker.bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=10)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def answers(connection: socket.socket) -> bool:
    """Whether an ApiVersions request on this connection is answered in full."""
    connection.sendall(API_VERSIONS)
    (size,) = struct.unpack(">i", read_exactly(connection, 4))
    body = read_exactly(connection, size)
    return struct.unpack_from(">ih", body) == (7, 0)


def send_until_closed(broker: TierlogBroker, frame: bytes) -> None:
    """Send one frame, then half-close. The broker may respond and must close within the bound."""
    with connect(broker) as connection:
        connection.sendall(frame)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(ANSWER_WITHIN_S + 9)
        try:
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass  # a reset is a close, too


keys = st.sampled_from(sorted(APIS))
sizes = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A header that is usually valid, a body that rarely is, and a size that may be wrong."""
    key = draw(st.one_of(keys, st.integers(-(2**15), 2**15 - 1)))
    version = draw(st.one_of(st.integers(0, 13), st.integers(-(2**15), 2**15 - 1)))
    client = draw(st.one_of(st.just(b"\x00\x04test"), st.just(b"\xff\xff"), st.binary(max_size=4)))
    hostile = st.sampled_from(
        [b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff" * 9, b"\x00" * 8, b"\x80" * 12]
    )
    body = b"".join(draw(st.lists(st.one_of(st.binary(max_size=40), hostile), max_size=12)))
    content = struct.pack(">hhi", key, version, 1) + client + body
    lied = draw(sizes)
    return struct.pack(">i", len(content) if lied is None else lied) + content


def test_hostile_frames_do_not_stop_the_broker(tierlog_broker: TierlogBroker) -> None:
    with connect(tierlog_broker) as bystander:
        assert answers(bystander)
        largest = 0

        @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
        @given(frames())
        def attack(frame: bytes) -> None:
            nonlocal largest
            send_until_closed(tierlog_broker, frame)
            assert answers(bystander)
            largest = max(largest, resident_bytes(tierlog_broker.pid))

        attack()  # code loaded at first use counts once; an attacker cannot make it grow
        before, largest = resident_bytes(tierlog_broker.pid), 0
        attack()
        assert largest - before < ALLOWANCE
