"""Producing by REST: `/v1/topics/{topic}/produce`, and the records of `/v3`, which also come as a stream.

A record without a partition gets that of its key by Kafka's default partitioner (murmur2), so that clients in
other languages find it in the same partition. Records of one request keep their order within a partition.
"""

import asyncio
from collections import deque
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from aiohttp import StreamReader, web

from tierlog.client.errors import ClientError, UnknownPartition
from tierlog.client.partitioner import partition_of
from tierlog.records.record import Header
from tierlog.records.writer import NewRecord
from tierlog.rest import models
from tierlog.rest.budget import Budget
from tierlog.rest.errors import (
    BAD_REQUEST,
    JSON,
    STOPPING,
    TIMED_OUT,
    ErrorBody,
    RestError,
    of_failure,
    response_of,
)
from tierlog.rest.formats import Format, SchemaChoice, format_of, from_base64
from tierlog.rest.gateway import Call
from tierlog.rest.json_stream import JsonSplitter, has_more_objects
from tierlog.rest.models import encode
from tierlog.rest.producer import Written, size_of
from tierlog.rest.routes import EPOCH, Route, decoded, moment_ms, refuse_unknown

MULTI_STATUS = 207
TIMESTAMP_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: the last time that RFC 3339 can name."""

RECORDS_MAX = 100_000
"""Records of a request that is not a stream."""
RECORD_DEPTH = 2
"""A record is within the object of the request and its array of records."""

RECORDS_PER_TURN = 500
"""Records that are encoded in one turn of the event loop: some milliseconds."""

RECORD_MEMORY_BYTES = 768
"""Memory of a record until its response, besides its bytes."""

WINDOW_RECORDS = 1_000
"""Records of a stream that wait for the broker."""

SMALL_BYTES = 64 << 10
"""Bytes of an incomplete record that are not counted, as those in the buffer of its connection: many streams
have some, and must not end because others wait for memory."""


class _Prepared(NamedTuple):
    """A record that is ready to be sent, and what the response says of it."""

    partition: int
    record: NewRecord
    kinds: tuple[Format | None, Format | None] = (None, None)


# ---- /v1 -------------------------------------------------------------------------------------------


async def produce(call: Call) -> web.StreamResponse:
    refuse_unknown(call.request.query, ())
    if await has_more_objects(call.body, RECORD_DEPTH, RECORDS_MAX):
        raise RestError(BAD_REQUEST, f"records: more than {RECORDS_MAX}: send several requests, or a stream")
    body: models.ProduceRequest = decoded(call.body, models.ProduceRequest)
    if not body.records:
        raise RestError(BAD_REQUEST, "records: expected at least one")
    budget = call.gateway.budget
    # not more than there is, so that it fits when it is alone
    held = min(len(body.records) * RECORD_MEMORY_BYTES, max(0, budget.most - len(call.body)))
    budget.reserve_now(held)
    try:
        return await _produce(call, body)
    finally:
        budget.release(held)


async def _produce(call: Call, body: models.ProduceRequest) -> web.StreamResponse:
    topic = call.part("topic")
    partitions = _Partitions(len((await call.cluster.topic(topic)).partitions), call)
    key_format = format_of(body.key_format, "key_format")
    value_format = format_of(body.value_format, "value_format")
    key_schema = _v1_choice(body.key_schema, f"{topic}-key")
    value_schema = _v1_choice(body.value_schema, f"{topic}-value")
    values, prepared = call.gateway.values, []
    for at, given in enumerate(body.records):
        if at % RECORDS_PER_TURN == RECORDS_PER_TURN - 1:
            await asyncio.sleep(0)
        where = f"records[{at}]"
        key = await values.encoded(key_format, given.key, key_schema, f"{where}.key")
        value = await values.encoded(value_format, given.value, value_schema, f"{where}.value")
        timestamp = call.gateway.clock.now_ms() if given.timestamp is None else given.timestamp
        headers = _headers(given.headers, where)
        record = NewRecord(timestamp, key, value, headers)
        prepared.append(_Prepared(await partitions.of(topic, given.partition, key), record))
    sent = [call.producer.send(topic, one.partition, one.record) for one in prepared]
    results: list[Written | RestError] = [await _outcome(one) for one in sent]
    _count(call, prepared, results)
    failures = [result for result in results if isinstance(result, RestError)]
    if len(failures) == len(results):
        return response_of(failures[0])
    rows = [_v1_row(result) for result in results]
    body_out = encode(models.ProduceResponse(rows, len(failures)))
    return await call.respond(MULTI_STATUS if failures else 200, body_out)


def _v1_choice(given: models.SchemaOf | None, subject: str) -> SchemaChoice:
    if given is None:
        return SchemaChoice(subject=subject)
    return SchemaChoice(given.schema_id, given.subject or subject, given.schema_version, given.schema)


def _v1_row(result: Written | RestError) -> models.Produced:
    if isinstance(result, RestError):
        return models.Produced(error_code=result.code, message=result.message)
    return models.Produced(result.partition, result.offset, result.timestamp)


class _Partitions:
    """Chooses partitions for the records of one request."""

    def __init__(self, count: int, call: Call) -> None:
        self._count = count
        self._call = call
        self._sticky = call.producer.sticky(count)

    async def of(self, topic: str, wanted: int | None, key: bytes | None) -> int:
        """Raises UnknownPartition."""
        if wanted is not None:
            if wanted >= self._count:  # it may have been added since
                self._count = len((await self._call.cluster.topic(topic, fresh=True)).partitions)
            if wanted >= self._count:
                raise UnknownPartition(topic, wanted, self._count)
            return wanted
        return self._sticky if key is None else partition_of(key, self._count)


def _ms(given: str | int) -> int:
    """ms since 1970. Raises RestError."""
    found = given if isinstance(given, int) else moment_ms(given)
    if found is None:
        raise RestError(BAD_REQUEST, f"timestamp: {given!r:.40} is not in RFC 3339")
    return found


def _headers(given: list[models.RecordHeader], where: str) -> list[Header]:
    """Raises RestError."""
    return [
        (one.name, None if one.value is None else from_base64(one.value, f"{where}.headers")) for one in given
    ]


async def _outcome(sent: "asyncio.Future[Written]") -> Written | RestError:
    try:
        return await asyncio.shield(sent)
    except ClientError as failure:
        return of_failure(failure)
    except asyncio.CancelledError:
        if sent.cancelled():  # the gateway stops, and not the caller
            return RestError(STOPPING, "the gateway stopped before the broker responded")
        raise


def _count(call: Call, prepared: list[_Prepared], results: list[Written | RestError]) -> None:
    counts = call.gateway.counts
    for one, result in zip(prepared, results, strict=True):
        if isinstance(result, RestError):
            counts.records_failed += 1
        else:
            counts.records_produced += 1
            counts.bytes_produced += len(one.record.key or b"") + len(one.record.value or b"")


# ---- /v3 -------------------------------------------------------------------------------------------


async def records(call: Call) -> web.StreamResponse:
    refuse_unknown(call.request.query, ())
    cluster_id = await call.cluster_id()
    topic = call.part("topic_name")
    count = len((await call.cluster.topic(topic)).partitions)
    call.gateway.begin_stream()
    try:
        stream = _RecordStream(call, cluster_id, topic, _Partitions(count, call))
        return await stream.run()
    finally:
        call.gateway.end_stream()


class _RecordStream:
    """Reads records from the request and writes a result for each, in order, while others are under way. The
    window bounds the records that wait for the broker: the gateway reads on when there is space again."""

    def __init__(self, call: Call, cluster_id: str, topic: str, partitions: _Partitions) -> None:
        self._call = call
        self._gateway = call.gateway
        self._cluster_id = cluster_id
        self._topic = topic
        self._partitions = partitions
        self._waiting: deque[tuple[_Prepared, int, asyncio.Future[Written]]] = deque()
        self._bytes = self._pending = 0
        self._response: web.StreamResponse | None = None
        self._unsent: bytes | None = None
        """The result that is held back until it is known whether it is the only one."""
        self._error: RestError | None = None

    async def run(self) -> web.StreamResponse:
        try:
            await self._read()
        finally:
            for _, held, sent in self._waiting:  # the producer has the records until their results are there
                sent.add_done_callback(partial(_release, self._gateway.budget, held))
            self._waiting.clear()
            self._gateway.budget.release(self._pending)
        if self._response is None:
            if self._error is not None:
                return response_of(self._error)
            return web.Response(body=self._unsent or b"", content_type=JSON)
        await self._response.write_eof()
        return self._response

    async def _read(self) -> None:
        splitter = JsonSplitter(self._gateway.limits.record_bytes)
        content = self._call.request.content
        try:
            while True:
                async with asyncio.timeout(self._gateway.limits.body_timeout_s):
                    data = await self._next_data(content)
                if not data:
                    break
                for item in splitter.feed(data):
                    self._hold_pending(0)
                    await self._take(item)
                self._hold_pending(splitter.pending)
            splitter.finish()
            while self._waiting:
                await self._finish_first()
            if self._response is None and self._unsent is None and self._error is None:
                raise RestError(BAD_REQUEST, "the body has no record")
        except RestError as wrong:  # the rest of the body cannot be read
            await self._fail(wrong)
        except TimeoutError:
            await self._fail(RestError(TIMED_OUT, "no data within the time limit"))

    def _hold_pending(self, count: int) -> None:
        """Count the bytes of a record that has not arrived completely, unless they are few. Raises RestError
        if they are too many now."""
        count = count if count > SMALL_BYTES else 0
        if count > self._pending:
            self._gateway.budget.reserve_now(count - self._pending)
        else:
            self._gateway.budget.release(self._pending - count)
        self._pending = count

    async def _next_data(self, content: StreamReader) -> bytes:
        """More of the body. Until it comes, results are written as they arrive."""
        coming = asyncio.ensure_future(content.readany())
        try:
            while not coming.done():
                if not self._waiting:
                    return bytes(await coming)
                first = self._waiting[0][2]
                await asyncio.wait((coming, first), return_when=asyncio.FIRST_COMPLETED)
                await self._finish_done()
            return bytes(coming.result())
        finally:
            coming.cancel()

    async def _take(self, item: bytes) -> None:
        if self._gateway.stopping.is_set():
            raise RestError(STOPPING, "the gateway stops: send the rest again")
        try:
            prepared = await self._prepare(decoded(item, models.V3Record))
        except (RestError, ClientError) as wrong:
            await self._flush()
            await self._write_error(wrong if isinstance(wrong, RestError) else of_failure(wrong))
            return
        held = size_of(prepared.record) + RECORD_MEMORY_BYTES
        while self._waiting and (
            self._bytes + held > self._gateway.limits.window_bytes or len(self._waiting) >= WINDOW_RECORDS
        ):
            await self._finish_first()
        await self._gateway.budget.reserve(held)
        sent = self._call.producer.send(self._topic, prepared.partition, prepared.record)
        self._waiting.append((prepared, held, sent))
        self._bytes += held

    async def _prepare(self, given: models.V3Record) -> _Prepared:
        key_kind, key = await self._encoded(given.key, "key")
        value_kind, value = await self._encoded(given.value, "value")
        headers = _headers(given.headers, "record")
        record = NewRecord(self._timestamp(given.timestamp), key, value, headers)
        partition = await self._partitions.of(self._topic, given.partition_id, key)
        return _Prepared(partition, record, (key_kind, value_kind))

    async def _encoded(
        self, given: models.RecordData | None, name: str
    ) -> tuple[Format | None, bytes | None]:
        if given is None:
            return None, None
        subject = given.subject or f"{self._topic}-{name}"
        choice = SchemaChoice(given.schema_id, subject, given.schema_version, given.schema)
        names_schema = given.subject or choice != SchemaChoice(subject=subject)
        kind = format_of(given.type or ("AVRO" if names_schema else "JSON"), f"{name}.type")
        return kind, await self._gateway.values.encoded(kind, given.data, choice, f"{name}.data")

    def _timestamp(self, given: str | int | None) -> int:
        """Raises RestError, also for one that the response could not name."""
        found = self._gateway.clock.now_ms() if given is None else _ms(given)
        if found > TIMESTAMP_MAX_MS:
            raise RestError(BAD_REQUEST, "timestamp: it is after the year 9999")
        return found

    async def _flush(self) -> None:
        while self._waiting:
            await self._finish_first()

    async def _finish_first(self) -> None:
        await asyncio.wait((self._waiting[0][2],))
        await self._finish_done()

    async def _finish_done(self) -> None:
        """Write the results at the head of the queue that are there, at once."""
        rows: list[bytes] = []
        error: RestError | None = None
        while self._waiting and self._waiting[0][2].done():
            prepared, held, sent = self._waiting.popleft()
            result = await _outcome(sent)
            self._bytes -= held
            self._gateway.budget.release(held)
            _count(self._call, [prepared], [result])
            error = result if isinstance(result, RestError) else None
            rows.append(encode(self._row(prepared, result) if isinstance(result, Written) else result.body))
        if error is not None and len(rows) == 1:
            await self._write_error(error)
        elif rows:
            await self._write(b"\n".join(rows), is_one=len(rows) == 1)

    def _row(self, prepared: _Prepared, written: Written) -> models.V3Written:
        moment = EPOCH + timedelta(milliseconds=written.timestamp)
        parts = [
            None if kind is None else models.WrittenData(kind.value, len(data or b""))
            for kind, data in zip(prepared.kinds, (prepared.record.key, prepared.record.value), strict=True)
        ]
        return models.V3Written(
            error_code=200,
            cluster_id=self._cluster_id,
            topic_name=self._topic,
            partition_id=written.partition,
            offset=written.offset,
            timestamp=moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            key=parts[0],
            value=parts[1],
        )

    async def _write_error(self, error: RestError) -> None:
        if self._response is None and self._unsent is None and self._is_at_eof():
            self._error = error
            self._unsent = encode(error.body)
            return
        await self._write(encode(error.body))

    async def _write(self, row: bytes, *, is_one: bool = True) -> None:
        """The first result waits for a second one, so that one record gets a plain response with a status."""
        if is_one and self._response is None and self._unsent is None and self._is_at_eof():
            self._unsent = row
            return
        if self._response is None:
            self._response = web.StreamResponse(headers={"Content-Type": JSON})
            await self._response.prepare(self._call.request)
            if self._unsent is not None:
                row = self._unsent + b"\n" + row
                self._unsent = self._error = None
        await self._call.write(self._response, row + b"\n")

    def _is_at_eof(self) -> bool:
        return bool(self._call.request.content.at_eof()) and not self._waiting

    async def _fail(self, error: RestError) -> None:
        try:
            await self._flush()
            if self._response is None and self._unsent is None:
                self._error = error
                return
            await self._write(encode(ErrorBody(error.code, error.message)))
        finally:
            if self._response is not None:
                self._response.force_close()


def _release(budget: Budget, count: int, _: "asyncio.Future[Written]") -> None:
    budget.release(count)


def producing_routes() -> list[Route]:
    return [
        Route(
            method="POST",
            path="/v1/topics/{topic}/produce",
            operation="produce",
            tag="records",
            summary="Write records, and return their offsets. Status 207: some were not written.",
            handler=produce,
            body=models.ProduceRequest,
            result=models.ProduceResponse,
        ),
        Route(
            method="POST",
            path="/v3/clusters/{cluster_id}/topics/{topic_name}/records",
            operation="produceRecord",
            tag="records",
            summary="Write a record, or a stream of records with a line of the response for each.",
            handler=records,
            body=models.V3Record,
            streams_in=True,
            result=models.V3Written,
            lines=(ErrorBody,),
        ),
    ]
