"""Hostile requests derived from recorded ones. The same number and seed give the same bytes.

A case is a stream of one or two frames. Some mutations change bytes; others change the decoded message, so
that it stays decodable and reaches the handlers; one changes record batches and recomputes their CRC.
"""

import random
import struct
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import crc32c
from traffic import Recorded, Traffic

from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import APIS, decode_request_header, encode_request
from tierlog.protocol.codec import decode
from tierlog.protocol.messages.create_partitions import CreatePartitionsRequest
from tierlog.protocol.messages.create_topics import CreateTopicsRequest
from tierlog.protocol.messages.produce import ProduceRequest
from tierlog.protocol.primitives import MalformedFrame, uvarint
from tierlog.protocol.schema import ZERO_UUID, Field
from tierlog.records.batch import read_header
from tierlog.records.codecs import Codec, compress
from tierlog.records.writer import NewRecord, encode_batch, with_section

PARTITIONS_MAX = 8
"""Thousands of partitions in one request are legal, but creating their files would take most of the time."""

FRAME_BYTES_MAX = 60_000
BOMBS = 0.03
"""The share of damaged batches that claim megabytes."""

BOMB_SECTION = 40_000
BOMB_BYTES = {Codec.GZIP: 32 << 20, Codec.SNAPPY: 3 << 18, Codec.LZ4: 9 << 20, Codec.ZSTD: 64 << 20}
"""Elements that fit into a frame of this size."""

TIMESTAMPS = (-(2**63), -1, 0, 1, 1_700_000_000_000, 2**41, 2**63 - 1)
ATTRIBUTES = (0, 0x08, 0x40, 0x48, 0x80, 0x4000, 0x8000, 0xFFC8)
WIDTHS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
HOSTILE = [
    b"\xff\xff", b"\x7f\xff", b"\x80\x00", b"\xff\xfe", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00", b"\xff\xff\xff\xfe", b"\x00\x00\xff\xff", b"\x00\x01\x00\x01", b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x01", b"\x80\x80\x04", b"\xff\x01",
]  # fmt: skip
"""Lengths, counts and varints that are too large, negative, null, overlong, or plausible but wrong."""
LONGEST = "x" * 32_767
"""The largest int16 length. Compact strings can be longer, but Kafka rejects them."""

TOO_LONG = (LONGEST + "x", "x" * 65_536)

STRINGS = [
    "", "..", "../x", "/", "\x00", "a" * 249, "b" * 250, "ü" * 200, "\U0001f600", "x" * 20_000, LONGEST,
    "__consumer_offsets", "-1", "9223372036854775808", "1e400", "NaN", "true", "compact,delete",
    "retention.ms", "segment.bytes", "cleanup.policy", "remote.storage.enable", "range", "consumer",
    "traffic-librdkafka-a", "traffic-java",
]  # fmt: skip


class StringField(NamedTuple):
    """A string field of one version of an API, and a request in which it occurs."""

    request: Recorded
    holder: str
    name: str


def long_strings(traffic: Traffic) -> Iterator[bytes]:
    """Requests of every API in every version, with the longest legal string or a longer one in each field."""
    for each in {request.kind: request for request in _every_request(traffic)}.values():
        yield from _with_client(each, LONGEST)
    for found in string_fields(traffic):
        api, version = APIS[found.request.kind[0]], found.request.kind[1]
        for text in (LONGEST, *TOO_LONG) if api.is_flexible(version) else (LONGEST,):
            message, header = _decoded(found.request)
            holder, field = next(slot for slot in _strings(message, version) if _named(slot) == found[1:])
            setattr(holder, field.name, [STAND_IN] if field.array else STAND_IN)
            frame = encode_request(api, version, header.correlation_id, found.request.client, message)
            yield _framed(_with_string(frame[4:], text, api.is_flexible(version)))


def string_fields(traffic: Traffic) -> list[StringField]:
    """Each field once per API and version, in a recorded request where there is one."""
    found: dict[tuple[Any, ...], StringField] = {}
    for request in _every_request(traffic):
        for slot in _strings(_decoded(request)[0], request.kind[1]):
            found.setdefault((request.kind, *_named(slot)), StringField(request, *_named(slot)))
    return [*found.values()]


def _named(slot: tuple[Any, Field]) -> tuple[str, str]:
    return type(slot[0]).__name__, slot[1].name


STAND_IN = "a-string-that-occurs-once"


def _with_string(frame: bytes, text: str, flexible: bool) -> bytes:
    """The frame with the string in place of the placeholder, because the encoder rejects one that is too
    long.
    """

    def written(string: str) -> bytes:
        length = uvarint(len(string) + 1) if flexible else struct.pack(">h", len(string))
        return length + string.encode()

    return frame.replace(written(STAND_IN), written(text))


class Mutator:
    def __init__(self, traffic: Traffic, seed: int) -> None:
        self._seed = seed
        self._requests = [*_every_request(traffic)]
        self._produced = [each for each in self._requests if each.kind[0] == 0]
        self._topics = [*traffic.topics]
        self._kinds: list[tuple[int, Callable[[random.Random], bytes]]] = [
            (30, self._values), (12, self._batches), (10, self._bits), (8, self._hostile), (6, self._cut),
            (4, self._grown), (10, self._splice), (5, self._repeat), (4, self._drop), (5, self._header),
            (4, self._lying_size), (2, self._intact), (1, self._huge),
        ]  # fmt: skip

    def case(self, number: int) -> bytes:
        """The bytes to send, including size prefixes."""
        rng = random.Random(f"{self._seed}:{number}")
        kinds = rng.choices(
            [kind for _, kind in self._kinds],
            [weight for weight, _ in self._kinds],
            k=2 if rng.random() < 0.1 else 1,
        )
        return b"".join(_tame(kind(rng)) for kind in kinds)

    # -- of the message --

    def _values(self, rng: random.Random) -> bytes:
        base = rng.choice(self._requests)
        message, header = _decoded(base)
        for _ in range(rng.choice((1, 1, 2, 4))):
            slots = [*_slots(message, header.api_version)]
            if not slots:
                break
            holder, field = rng.choice(slots)
            setattr(holder, field.name, self._value(rng, field, getattr(holder, field.name)))
        return self._encoded(rng, base, message)

    def _value(self, rng: random.Random, field: Field, value: Any) -> Any:
        if field.nullable is not None and rng.random() < 0.15:
            return None
        if field.array:
            return self._list(rng, field, list(value or ()))
        if field.type in WIDTHS:
            top = 1 << WIDTHS[field.type] - 1
            near = value + rng.choice((-1, 1))
            chosen = rng.choice((-1, 0, 1, 2, -2, top - 1, -top, top // 2, rng.randrange(-top, top), near))
            return max(-top, min(chosen, top - 1))
        match field.type:
            case "string":
                return rng.choice((*STRINGS, *self._topics))
            case "uuid":
                return rng.choice((ZERO_UUID, uuid.UUID(int=rng.getrandbits(128))))
            case "bytes" | "records":
                return rng.choice((b"", rng.randbytes(rng.randrange(80)), bytes(value or b"")[:-1]))
            case "bool":
                return not value
            case "struct" if field.nested is not None:
                return field.nested()
        return value

    def _list(self, rng: random.Random, field: Field, items: list[Any]) -> list[Any]:
        match rng.randrange(5):
            case 0:
                return []
            case 1 if items:
                return items * rng.choice((2, 2, 3, 20))
            case 2 if items:
                return items[:-1]
        element = field.nested() if field.nested is not None else items[0] if items else None
        if element is None:
            element = self._value(rng, field._replace(array=False, nullable=None), _zero(field))
        return [*items, element]

    def _encoded(self, rng: random.Random, base: Recorded, message: Any) -> bytes:
        key, version = base.kind
        try:
            frame = encode_request(APIS[key], version, rng.getrandbits(31), base.client, message)
        except ValueError:
            return self._bits(rng)
        return frame if len(frame) <= FRAME_BYTES_MAX else self._bits(rng)

    def _huge(self, rng: random.Random) -> bytes:
        """As many small elements as fit into a frame: each takes far more memory once decoded."""
        base = rng.choice(self._requests)
        message, header = _decoded(base)
        lists = [slot for slot in _slots(message, header.api_version) if slot[1].array]
        if not lists:
            return self._bits(rng)
        holder, field = rng.choice(lists)
        items = getattr(holder, field.name) or self._list(rng, field, [])
        setattr(holder, field.name, list(items[:1]) * rng.choice((300, 3000)))
        return self._encoded(rng, base, message)

    def _batches(self, rng: random.Random) -> bytes:
        """A produced batch with changed bytes and a valid CRC, or two of them, or a part of one."""
        base = rng.choice(self._produced)
        message, _ = _decoded(base)
        assert isinstance(message, ProduceRequest)
        for topic in message.topic_data:
            for data in topic.partition_data:
                data.records = _damaged_batch(rng, bytes(data.records or b""))
        if rng.random() < 0.3:
            message.acks = rng.choice((-1, 0, 1, 2))
        return self._encoded(rng, base, message)

    # -- of the bytes --

    def _frame(self, rng: random.Random) -> bytearray:
        return bytearray(rng.choice(self._requests).frame)

    def _intact(self, rng: random.Random) -> bytes:
        return _framed(self._frame(rng))

    def _bits(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        for _ in range(rng.choice((1, 1, 2, 8))):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        return _framed(frame)

    def _hostile(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        piece = rng.choice(HOSTILE)
        at = rng.randrange(8, len(frame))
        frame[at : at + rng.choice((0, len(piece)))] = piece
        return _framed(frame)

    def _cut(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        return _framed(frame[: rng.randrange(len(frame))])

    def _grown(self, rng: random.Random) -> bytes:
        return _framed(self._frame(rng) + rng.choice((b"\0", b"\1", rng.randbytes(rng.randrange(1, 60)))))

    def _splice(self, rng: random.Random) -> bytes:
        first, second = self._frame(rng), self._frame(rng)
        return _framed(first[: rng.randrange(8, len(first))] + second[rng.randrange(len(second)) :])

    def _repeat(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        begin = rng.randrange(8, len(frame))
        piece = frame[begin : begin + rng.randrange(1, 64)]
        frame[begin:begin] = piece * rng.choice((1, 1, 2, 100))
        return _framed(frame)

    def _drop(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        begin = rng.randrange(4, len(frame))
        del frame[begin : begin + rng.randrange(1, 32)]
        return _framed(frame)

    def _header(self, rng: random.Random) -> bytes:
        frame = self._frame(rng)
        key = rng.choice((*APIS, 999, -1, -32768))
        if rng.random() < 0.5:
            struct.pack_into(">h", frame, 0, key)
        else:
            struct.pack_into(">h", frame, 2, rng.choice((-1, 0, 1, 2, 5, 9, 12, 13, 16, 99, 32767)))
        return _framed(frame)

    def _lying_size(self, rng: random.Random) -> bytes:
        frame = bytes(self._frame(rng))
        wrong = len(frame) + rng.choice((-3, -1, 1, 3, 1000, 50_000_000))
        return struct.pack(">i", rng.choice((wrong, wrong, 0, -1, 2**31 - 1))) + frame


def _framed(frame: bytes | bytearray) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _decoded(request: Recorded) -> tuple[Any, Any]:
    header = decode_request_header(request.frame, 0, len(request.frame))
    body = request.frame[header.body_at :]
    return decode(APIS[header.api_key].request, header.api_version, body), header


def _in_other_versions(requests: list[Recorded]) -> Iterator[Recorded]:
    """One request of each client and API in the versions that the client does not send."""
    done: set[tuple[int, int]] = {each.kind for each in requests}
    for each in requests:
        api = APIS[each.kind[0]]
        message, header = _decoded(each)
        for version in range(api.min_version, api.max_version + 1):
            if (api.key, version) not in done:
                done.add((api.key, version))
                frame = encode_request(api, version, header.correlation_id, header.client_id, message)
                yield Recorded(each.client, frame[4:])


def _every_request(traffic: Traffic) -> Iterator[Recorded]:
    """The recorded requests, the same in other versions, and for each version of each API one with all
    fields.
    """
    yield from traffic.requests
    yield from _in_other_versions(traffic.requests)
    for api in APIS.values():
        if api.name in SERVED:
            for version in range(api.min_version, api.max_version + 1):
                frame = encode_request(api, version, 1, "other", _filled(api.request))
                yield Recorded("other", frame[4:])


def _filled(kind: type[Any]) -> Any:
    """One element in each array, and defaults elsewhere."""
    message = kind()
    for field in kind.FIELDS:
        if field.nested is not None:
            nested = _filled(field.nested)
            setattr(message, field.name, [nested] if field.array else nested)
    return message


def _strings(message: Any, version: int) -> Iterator[tuple[Any, Field]]:
    return (slot for slot in _slots(message, version) if slot[1].type == "string")


def _with_client(request: Recorded, client_id: str) -> Iterator[bytes]:
    message, header = _decoded(request)
    yield encode_request(APIS[request.kind[0]], request.kind[1], header.correlation_id, client_id, message)


def _slots(message: Any, version: int) -> Iterator[tuple[Any, Field]]:
    """Every field of a message and of the structs in it."""
    for field in message.FIELDS:
        if not field.exists_in(version):
            continue
        yield message, field
        if field.type == "struct":
            value = getattr(message, field.name)
            for nested in value or () if field.array else [value]:
                if nested is not None:
                    yield from _slots(nested, version)


def _zero(field: Field) -> Any:
    return 0 if field.type in WIDTHS else ""


def _damaged_batch(rng: random.Random, batch: bytes) -> bytes:
    damaged = bytearray(batch)
    if len(damaged) <= 61:
        return rng.randbytes(70)
    if rng.random() < BOMBS:
        return _bomb(rng.choice(sorted(BOMB_BYTES)), rng.choice((0, 1, 2)))
    match rng.randrange(7):
        case 0:  # the header: attributes, deltas, timestamps, producer, sequence, count
            at = rng.randrange(21, 61)
            damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, damaged[at] ^ 1 << rng.randrange(8)))
        case 1:
            damaged[rng.randrange(61, len(damaged))] ^= 1 << rng.randrange(8)
        case 2:
            piece = rng.choice(HOSTILE)
            at = rng.randrange(57, len(damaged))
            damaged[at : at + len(piece)] = piece
        case 3:
            del damaged[rng.randrange(22, len(damaged)) :]
        case 4:  # another producer, epoch and sequence
            struct.pack_into(
                ">qhi",
                damaged,
                43,
                rng.choice((0, 1, 1000, 2000, 2**62, -1)),
                rng.choice((0, 1, 32767, -1)),
                rng.choice((0, 1, 12, 2**31 - 1, -1)),
            )
        case 5:
            damaged[rng.randrange(len(damaged))] ^= 0xFF
            return bytes(damaged)  # under a bad CRC, or with a wrong length
        case 6:  # timestamps and attributes that contradict the records
            struct.pack_into(">qq", damaged, 27, rng.choice(TIMESTAMPS), rng.choice(TIMESTAMPS))
            struct.pack_into(">H", damaged, 21, rng.choice((0, damaged[22] & 7)) | rng.choice(ATTRIBUTES))
    struct.pack_into(">i", damaged, 8, len(damaged) - 12)
    struct.pack_into(">I", damaged, 17, crc32c.crc32c(bytes(damaged[21:])))
    return bytes(damaged) * rng.choice((1, 1, 1, 2))


@cache
def _bomb(codec: Codec, shape: int) -> bytes:
    """A batch that claims far more than it holds: one record, empty records, or many empty blocks."""
    header = read_header(encode_batch([NewRecord(0, b"k", b"v")]))
    if shape == 0:
        return bytes(encode_batch([NewRecord(0, b"k", bytes(BOMB_BYTES[codec]))], codec=codec))
    if shape == 1:
        return bytes(with_section(header, compress(codec, bytes(BOMB_BYTES[codec])), codec))
    empty = compress(codec, b"")
    parts = {
        Codec.SNAPPY: (empty, b"\0\0\0\1\0"),
        Codec.LZ4: (empty[:7], b"\x01\x00\x00\x80x\0\0\0\0"),
    }
    first, part = parts.get(codec, (b"", empty))
    return bytes(with_section(header, first + part * (BOMB_SECTION // len(part)), codec))


def _tame(stream: bytes) -> bytes:
    """The stream, with fewer partitions if it would create many."""
    key = struct.unpack_from(">h", stream, 4)[0] if len(stream) >= 6 else -1
    api = APIS.get(key)
    if api is None or api.request not in (CreateTopicsRequest, CreatePartitionsRequest):
        return stream
    try:
        header = decode_request_header(stream, 4, len(stream))
        if header.body_at < 0:
            return stream
        message: Any = decode(api.request, header.api_version, stream[header.body_at :])
    except MalformedFrame:
        return stream
    name = "num_partitions" if api.request is CreateTopicsRequest else "count"
    topics = message.topics[: PARTITIONS_MAX * 4]
    if len(topics) == len(message.topics) and all(getattr(t, name) <= PARTITIONS_MAX for t in topics):
        return stream
    for topic in topics:
        if PARTITIONS_MAX < getattr(topic, name) <= 20_000:
            setattr(topic, name, PARTITIONS_MAX)
    message.topics = topics
    return encode_request(api, header.api_version, header.correlation_id, header.client_id, message)
