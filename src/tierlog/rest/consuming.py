"""Consuming by REST: `/v1/topics/{topic}/consume` streams records as lines of JSON, from either tier.

Each line is a record. The last one says why the stream ended and where to continue, or has an `error_code`; a
stream without such a line broke off. No state is kept: a client that continues names its offsets.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from tierlog.base.types import TopicPartition
from tierlog.client.errors import ClientError, UnknownPartition
from tierlog.records.errors import RecordsError
from tierlog.records.record import Record
from tierlog.rest import models
from tierlog.rest.errors import (
    BAD_REQUEST,
    INTERNAL,
    OUT_OF_RANGE,
    RETRY_AFTER_S,
    UNAVAILABLE,
    ErrorBody,
    RestError,
    of_failure,
)
from tierlog.rest.formats import NULL, Decoder, Format, Unreadable, format_of
from tierlog.rest.gateway import Call
from tierlog.rest.models import encode
from tierlog.rest.reader import (
    EARLIEST,
    LATEST,
    MAX_WAIT_MS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Consumed,
    Reader,
    explain_unknown_ends,
    offsets_at,
)
from tierlog.rest.routes import NDJSON, Parameter, Route, flag, moment_ms, number, refuse_unknown

CHUNK_BYTES = 64 << 10
WAIT_MS_MAX = 600_000
ISOLATIONS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
NO_LIMIT = 2**62

_FORMAT = {"type": "string", "enum": [one.value.lower() for one in Format]}
_COUNT = {"type": "integer", "minimum": 0}
PARAMETERS = (
    Parameter(
        name="partition",
        schema={"type": "string"},
        doc="Partitions, separated by commas. Default: all.",
    ),
    Parameter(
        name="offset",
        schema={"type": "string"},
        doc="Where to begin: `earliest` (the default), `latest`, an offset for all partitions, or "
        "`partition:offset` pairs, separated by commas, for these partitions alone.",
    ),
    Parameter(
        name="timestamp",
        schema={"type": "string"},
        doc="Begin at the first record of this time or later: ms since 1970, or RFC 3339.",
    ),
    Parameter(name="max_records", schema=_COUNT, doc="End after so many records."),
    Parameter(name="max_bytes", schema=_COUNT, doc="End after so many bytes of lines."),
    Parameter(
        name="wait_ms",
        schema=_COUNT,
        doc="Long poll: if there is no record, how long to wait for the first ones. Default: 0.",
    ),
    Parameter(
        name="follow",
        schema={"type": "boolean"},
        doc="Continue at the end of the log with new records, until the client closes the connection. "
        "Default: end at the records that were there when the request came.",
    ),
    Parameter(name="key_format", schema=_FORMAT, doc="Format of keys. Default: `string`."),
    Parameter(name="value_format", schema=_FORMAT, doc="Format of values. Default: `json`."),
    Parameter(
        name="isolation",
        schema={"type": "string", "enum": list(ISOLATIONS)},
        doc="Whether records of open and aborted transactions are left out. Default: `read_committed`.",
    ),
)


async def consume(call: Call) -> web.StreamResponse:
    query = call.request.query
    refuse_unknown(query, [parameter.name for parameter in PARAMETERS])
    stream = _Stream(call, query)
    call.gateway.begin_stream()
    try:
        await stream.begin()
        return await stream.run()
    finally:
        call.gateway.end_stream()


class _Stream:
    """One request. The constructor parses; `begin` finds the offsets."""

    def __init__(self, call: Call, query: Any) -> None:
        self._call = call
        self._gateway = call.gateway
        self._topic = call.part("topic")
        self._partitions = _numbers(query.get("partition"))
        self._given = query.get("offset")
        self._timestamp = query.get("timestamp")
        if self._given is not None and self._timestamp is not None:
            raise RestError(BAD_REQUEST, "give either offset or timestamp")
        self._offsets = _pairs(self._given) if self._given and ":" in self._given else None
        if self._offsets is not None and self._partitions is not None:
            raise RestError(BAD_REQUEST, "offset names partitions already: give no partition")
        self._position = _position(self._given, self._timestamp)
        self._max_records = number(query, "max_records", NO_LIMIT)
        self._max_bytes = number(query, "max_bytes", NO_LIMIT)
        self._wait_ms = number(query, "wait_ms", 0, WAIT_MS_MAX)
        self._follows = flag(query, "follow")
        self._key_format = format_of(query.get("key_format", "string"), "key_format")
        self._value_format = format_of(query.get("value_format", "json"), "value_format")
        isolation = query.get("isolation", "read_committed")
        if isolation not in ISOLATIONS:
            raise RestError(
                BAD_REQUEST, f"isolation: {isolation[:40]!r} is not one of {', '.join(ISOLATIONS)}"
            )
        self._isolation = ISOLATIONS[isolation]
        self._next: dict[int, int] = {}
        self._records = self._bytes = 0

    async def begin(self) -> None:
        """Find the offsets. Raises RestError and ClientError."""
        cluster, topic = self._call.cluster, self._topic
        count = len((await cluster.topic(topic)).partitions)
        wanted = list(self._offsets) if self._offsets is not None else self._partitions
        if wanted is not None and any(one >= count for one in wanted):
            count = len((await cluster.topic(topic, fresh=True)).partitions)
        numbers = list(range(count)) if wanted is None else wanted
        if unknown := [one for one in numbers if one >= count]:
            raise UnknownPartition(topic, unknown[0], count)
        ends = await offsets_at(cluster, topic, numbers, LATEST, self._isolation)
        self._without_end = [one for one in numbers if one not in ends]
        if self._offsets is not None:
            positions = dict(self._offsets)
        elif self._position == LATEST:
            positions = dict(ends)
        elif isinstance(self._position, str):
            positions = dict.fromkeys(numbers, int(self._position))
        else:
            positions = await offsets_at(cluster, topic, numbers, self._position, self._isolation)
        if self._offsets is not None or isinstance(self._position, str):
            await self._check_range(positions)
        self._next = positions
        self._require_ends(numbers)
        is_empty = all(position >= ends.get(one, 0) for one, position in positions.items())
        waits = self._follows or (is_empty and self._wait_ms)
        if waits:  # for records of all partitions that have a start
            self._ends = {}
            self._without_end = [one for one in numbers if one not in positions]
        else:
            self._ends = {one: ends.get(one, 0) for one in numbers}
        self._has_deadline = bool(is_empty and self._wait_ms and not self._follows)

    def _require_ends(self, numbers: Sequence[int]) -> None:
        """Raises RestError if no partition has an end that is known, or the stream would follow one from
        there: it would lack that partition without a word."""
        if self._follows:
            self._without_end = [one for one in numbers if one not in self._next]
        if self._without_end and (self._follows or len(self._without_end) == len(numbers)):
            message = self._unknown_ends()
            raise RestError(UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)

    def _unknown_ends(self) -> str:
        return explain_unknown_ends([TopicPartition(self._topic, one) for one in self._without_end])

    async def _check_range(self, positions: dict[int, int]) -> None:
        """Raises RestError for an offset that the client gave and the log does not have."""
        cluster, numbers = self._call.cluster, list(positions)
        starts = await offsets_at(cluster, self._topic, numbers, EARLIEST, READ_UNCOMMITTED)
        known = [one for one in numbers if one not in self._without_end]
        ends = await offsets_at(cluster, self._topic, known, LATEST, READ_UNCOMMITTED)
        for one, position in positions.items():
            end = ends.get(one, position)
            if not starts[one] <= position <= end:
                raise RestError(
                    OUT_OF_RANGE,
                    f"offset {position} of {self._topic}-{one} is out of range: the log has {starts[one]} to "
                    f"{end}",
                )

    async def run(self) -> web.StreamResponse:
        headers = {"Content-Type": NDJSON, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(self._call.request)
        last = await self._lines(response)
        await self._call.write(response, last + b"\n")
        await response.write_eof()
        return response

    async def _lines(self, response: web.StreamResponse) -> bytes:
        """Write the records. Returns the last line."""
        try:
            reason = await self._copy(response)
        except RestError as failure:
            return encode(failure.body)
        except ClientError as failure:
            return encode(of_failure(failure).body)
        except RecordsError as damage:
            return encode(ErrorBody(INTERNAL, f"a batch of {self._topic} is damaged: {damage}"))
        offsets = {str(partition): offset for partition, offset in sorted(self._next.items())}
        last = models.StreamEnd(reason, self._records, offsets)
        if self._without_end:
            last.without_end = self._without_end
            last.message = self._unknown_ends()
        return encode(last)

    async def _copy(self, response: web.StreamResponse) -> str:
        """Write records until there is a reason to end."""
        reader = Reader(
            self._call.cluster,
            self._topic,
            dict(self._next),
            self._ends,
            self._isolation,
            self._gateway.budget,
            self._gateway.tasks,
        )
        if not self._max_records or not self._max_bytes:
            return "max_records" if not self._max_records else "max_bytes"
        deadline = time.monotonic() + self._wait_ms / 1000
        wait_ms = min(MAX_WAIT_MS, self._wait_ms) if self._has_deadline else MAX_WAIT_MS
        async with aclosing(reader.read(max(1, wait_ms))) as batches:
            async for batch in _until(self._gateway.stopping, batches):
                if batch is None:
                    return "stopping"
                if batch:
                    reason = await self._write_batch(response, batch)
                    if reason:
                        return reason
                    if self._has_deadline:  # a long poll ends with the first records
                        return "end"
                elif self._has_deadline and time.monotonic() >= deadline:
                    return "timeout"
                elif self._call.is_gone:
                    raise ConnectionResetError("the client is gone")
                self._next.update(reader.positions)
        self._next.update(reader.positions)
        return "end"

    async def _write_batch(self, response: web.StreamResponse, batch: Sequence[Consumed]) -> str:
        """Write records, and return the reason to end if there is one."""
        values = self._gateway.values
        keys = [one.record.key for one in batch if one.record.key is not None]
        bodies = [one.record.value for one in batch if one.record.value is not None]
        key_of = await values.decoder(self._key_format, keys)
        value_of = await values.decoder(self._value_format, bodies)
        chunk, done = bytearray(), {}
        reason, counts = "", self._gateway.counts
        for partition, record in batch:
            line = encode(_row(partition, record, key_of, value_of)) + b"\n"
            chunk += line
            done[partition] = record.offset + 1
            self._records += 1
            self._bytes += len(line)
            counts.records_consumed += 1
            counts.bytes_consumed += len(line)
            if self._records >= self._max_records or self._bytes >= self._max_bytes:
                reason = "max_records" if self._records >= self._max_records else "max_bytes"
                break
            if len(chunk) >= CHUNK_BYTES:
                await self._call.write(response, bytes(chunk))
                self._next.update(done)
                chunk.clear()
        await self._call.write(response, bytes(chunk))
        self._next.update(done)
        return reason


async def _until(
    event: asyncio.Event, batches: AsyncIterator[list[Consumed]]
) -> "AsyncIterator[list[Consumed] | None]":
    """The batches; None once the event is set."""
    stopping = asyncio.ensure_future(event.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(batches, None))
            try:
                await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                raise
            if not coming.done():
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
                yield None
                return
            batch = coming.result()
            if batch is None:
                return
            yield batch
    finally:
        stopping.cancel()


def _row(partition: int, record: Record, key_of: Decoder, value_of: Decoder) -> models.ConsumedRecord:
    key, key_error = _shown(record.key, key_of)
    value, value_error = _shown(record.value, value_of)
    headers = [models.ConsumedHeader(name, _base64(data)) for name, data in record.headers]
    return models.ConsumedRecord(
        partition, record.offset, record.timestamp, key, value, headers, key_error, value_error
    )


def _shown(data: bytes | None, decoder: Decoder) -> tuple[msgspec.Raw, str | None]:
    if data is None:
        return NULL, None
    try:
        return decoder(data), None
    except Unreadable as why:
        return msgspec.Raw(encode(data)), str(why)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# ---- parameters ------------------------------------------------------------------------------------


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    return sorted({number({"partition": one}, "partition", 0, 2**31 - 1) for one in text.split(",")})


def _pairs(text: str) -> dict[int, int]:
    found = {}
    for pair in text.split(","):
        partition, colon, offset = pair.partition(":")
        if not colon:
            raise RestError(BAD_REQUEST, f"offset: {pair[:40]!r} is not partition:offset")
        found[number({"offset": partition}, "offset", 0, 2**31 - 1)] = number({"offset": offset}, "offset", 0)
    return found


def _position(offset: str | None, timestamp: str | None) -> int | str:
    """EARLIEST, LATEST or a timestamp; text: an offset."""
    if timestamp is not None:
        return _moment(timestamp)
    if offset in (None, "earliest") or ":" in (offset or ""):
        return EARLIEST
    if offset == "latest":
        return LATEST
    return str(number({"offset": offset}, "offset", 0))


def _moment(text: str) -> int:
    if text.isascii() and text.isdigit():
        return number({"timestamp": text}, "timestamp", 0)
    found = moment_ms(text)
    if found is None:
        raise RestError(BAD_REQUEST, f"timestamp: {text[:40]!r} is neither ms since 1970 nor RFC 3339")
    return found


def consuming_routes() -> list[Route]:
    return [
        Route(
            method="GET",
            path="/v1/topics/{topic}/consume",
            operation="consume",
            tag="records",
            summary="Stream records of either tier as lines of JSON.",
            handler=consume,
            query=PARAMETERS,
            result=models.ConsumedRecord,
            lines=(models.StreamEnd, ErrorBody),
            media=NDJSON,
        )
    ]
