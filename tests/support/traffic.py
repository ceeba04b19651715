"""Records requests of real clients through a proxy, and keeps a few of each kind in a file.

The file is zstd-compressed JSON: the recorded topics with their ids (a replay has other ids), and each frame,
without its size prefix, by the client that sent it.
"""

import asyncio
import base64
import json
import struct
import threading
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from tierlog.protocol.api import APIS, decode_request_header
from tierlog.protocol.codec import decode

TRAFFIC = Path(__file__).parents[1] / "golden" / "traffic" / "requests.json.zst"
SHAPES_MAX = 12
"""Requests of one client, API and version."""

KEPT_BYTES_MAX = 2000
BATCH_HEADER, ATTRIBUTES = 61, slice(21, 23)
"""Size of a batch's header, and the place of its attributes: codec, transactional, control."""

Shape = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    client: str
    frame: bytes

    @property
    def kind(self) -> tuple[int, int]:
        """API key and version."""
        key, version = struct.unpack_from(">hh", self.frame)
        return key, version


@dataclass(slots=True)
class Traffic:
    topics: dict[str, uuid.UUID]
    requests: list[Recorded]

    def save(self, path: Path = TRAFFIC) -> None:
        text = {
            "topics": {name: str(topic_id) for name, topic_id in self.topics.items()},
            "requests": [[each.client, base64.b64encode(each.frame).decode()] for each in self.requests],
        }
        path.write_bytes(zstandard.compress(json.dumps(text).encode(), 19))

    @classmethod
    def load(cls, path: Path = TRAFFIC) -> "Traffic":
        text = json.loads(zstandard.decompress(path.read_bytes()))
        return cls(
            {name: uuid.UUID(topic_id) for name, topic_id in text["topics"].items()},
            [Recorded(client, base64.b64decode(frame)) for client, frame in text["requests"]],
        )


def selected(requests: list[Recorded]) -> list[Recorded]:
    """The first small request of each client, API, version and shape, sorted by client, API and version, and
    within these in the order of sending. Versions that are not served, as of the first ApiVersions of a newer
    client, are left out."""
    chosen: dict[tuple[str, int, int], dict[Shape, Recorded]] = defaultdict(dict)
    for each in requests:
        shapes = chosen[each.client, *each.kind]
        least, most = APIS[each.kind[0]].request.VERSIONS
        is_small = len(each.frame) <= KEPT_BYTES_MAX
        if is_small and least <= each.kind[1] <= most and len(shapes) < SHAPES_MAX:
            shapes.setdefault(shape_of(each.frame), each)
    return [each for key in sorted(chosen) for each in chosen[key].values()]


def shape_of(frame: bytes) -> Shape:
    """Everything about a request that leads a decoder or a handler elsewhere: which fields are null, empty,
    negative or 0, the kinds of elements in an array, and the attributes of a batch. Not the values."""
    key, version, _, client_id, at = decode_request_header(frame, 0, len(frame))
    request = decode(APIS[key].request, version, frame, at, len(frame))
    return key, version, client_id is None, _shape(request)


def _shape(value: Any) -> Shape:
    match value:
        case None:
            return (None,)
        case bool() | uuid.UUID():
            return (bool(value),)
        case int() | float():
            return ((value > 0) - (value < 0),)
        case str():
            return (bool(value),)
        case bytes() | bytearray() | memoryview():
            return (bytes(value[ATTRIBUTES]) if len(value) > BATCH_HEADER else bool(value),)
        case list():
            return tuple(sorted({_shape(each) for each in value}, key=repr))
    return tuple(_shape(getattr(value, field.name)) for field in type(value).FIELDS)


@dataclass(slots=True)
class RecordingProxy:
    """Runs in its own thread, between clients and a broker that advertises the proxy's address."""

    target_port: int = 0
    label: str = ""
    """The client that connects next."""
    requests: list[Recorded] = field(default_factory=list)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def start(self) -> None:
        begun = threading.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            begun.set()

        threading.Thread(target=self._run, args=(serve,), daemon=True).start()
        assert begun.wait(10), "the proxy did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, serve) -> None:  # type: ignore[no-untyped-def]
        self._loop.run_until_complete(serve())
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = self.label
        upstream = await asyncio.open_connection("127.0.0.1", self.target_port)
        back = asyncio.ensure_future(_copy(upstream[0], writer))
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", size)[0])
                self.requests.append(Recorded(client, frame))
                upstream[1].write(size + frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            upstream[1].close()
            await back


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()
