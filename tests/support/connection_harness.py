"""Connection harness: a real listener whose handlers a test scripts, and a client of it."""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext
from typing import Any

from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.api_versions import api_versions_handler
from tierlog.broker.handlers.context import WHOLE_FRAME, Authentication, Connection, Pending, RequestContext
from tierlog.broker.net.core.bounds import Bounds
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.listener import Listener, ListenerAddress, Refusal
from tierlog.broker.net.tls_gate import Tls
from tierlog.protocol.api import APIS, decode_response, encode_request
from tierlog.protocol.messages.delete_topics import DeleteTopicsResponse
from tierlog.protocol.messages.heartbeat import HeartbeatResponse
from tierlog.protocol.messages.list_offsets import ListOffsetsResponse
from tierlog.protocol.messages.metadata import MetadataResponse
from tierlog.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

PRODUCE, METADATA, HEARTBEAT, API_VERSIONS = 0, 3, 12, 18
LIST_OFFSETS, DELETE_TOPICS = 2, 20  # a request that reads what is appended, and one that changes something


class Broker:
    """A listener with scripted handlers."""

    def __init__(self) -> None:
        self.reports: list[BaseException] = []
        self.heartbeats: list[Any] = []
        self.records: list[bytes] = []
        self.kept: list[memoryview] = []
        self.notes: list[tuple[CloseReason, str]] = []
        self.refusals: list[tuple[Refusal, str]] = []
        self.tasks = TaskGroup(lambda _, failure: self.reports.append(failure))
        self.on_heartbeat: Callable[[RequestContext, Any], Any] = lambda *_: HeartbeatResponse()
        self.on_produce: Callable[[RequestContext, Any], Any] = self.produce
        self.on_delete: Callable[[RequestContext, Any], Any] = lambda *_: DeleteTopicsResponse()
        self.handlers = {
            PRODUCE: lambda *both: answer(self.on_produce(*both), WHOLE_FRAME),
            METADATA: lambda context, request: MetadataResponse(controller_id=len(request.topics or ())),
            LIST_OFFSETS: lambda *_: ListOffsetsResponse(throttle_time_ms=len(self.records)),
            DELETE_TOPICS: lambda *both: answer(self.on_delete(*both)),
            HEARTBEAT: lambda *both: answer(self.on_heartbeat(*both)),
            API_VERSIONS: api_versions_handler(
                [PRODUCE, METADATA, LIST_OFFSETS, DELETE_TOPICS, HEARTBEAT, API_VERSIONS]
            ),
        }

    async def start(
        self,
        host: str = "127.0.0.1",
        tls: Mapping[str, Tls] | None = None,
        more: Sequence[str] = (),
        begin: Callable[[Connection], Authentication | None] | None = None,
        **bounds: Any,
    ) -> None:
        """`more`: names of further addresses, besides PLAINTEXT."""
        self.listener = Listener(
            self.handlers, self.tasks, lambda _, failure: self.reports.append(failure),
            addresses=[ListenerAddress(name, host) for name in ("PLAINTEXT", *more)], bounds=Bounds(**bounds),
            on_close=lambda _, why, detail: self.notes.append((why, detail)),
            on_refusal=lambda *both: self.refusals.append(both),
            tls=tls or {}, begin=begin,
        )  # fmt: skip
        self.addresses = await self.listener.start()
        self.address = self.addresses["PLAINTEXT"]

    async def connect(self, from_host: str | None = None) -> "Client":
        return await Client.connect(*self.address, from_host=from_host)

    def hold_heartbeats(self) -> list["asyncio.Future[Any]"]:
        """From now on each heartbeat waits for one of these futures, in order of arrival."""
        futures: list[asyncio.Future[Any]] = []

        def hold(_context: RequestContext, _request: Any) -> Any:
            futures.append(asyncio.get_running_loop().create_future())
            return futures[-1]

        self.on_heartbeat = hold
        return futures

    async def close(self) -> None:
        await self.listener.close()
        await self.tasks.close()

    def produce(self, context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
        for topic in request.topic_data:
            for partition in topic.partition_data:
                self.records.append(bytes(partition.records or b""))
        answers = [PartitionProduceResponse(base_offset=len(self.records))]
        return (
            ProduceResponse(responses=[TopicProduceResponse(partition_responses=answers)])
            if request.acks
            else None
        )


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.sent = 0

    @classmethod
    async def connect(
        cls, host: str, port: int, from_host: str | None = None, ssl: SSLContext | None = None
    ) -> "Client":
        source = None if from_host is None else (from_host, 0)
        return cls(*await asyncio.open_connection(host, port, local_addr=source, ssl=ssl))

    def send(self, key: int, version: int, message: Any) -> None:
        self.sent += 1
        self.writer.write(encode_request(APIS[key], version, self.sent, "test", message))

    async def frame(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def receive(self, key: int, version: int) -> tuple[int, Any]:
        return decode_response(APIS[key], version, await self.frame())

    async def ask(self, key: int, version: int, message: Any) -> Any:
        self.send(key, version, message)
        correlation_id, answer = await self.receive(key, version)
        assert correlation_id == self.sent
        return answer

    async def expect_close(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.writer.close()


def answer(scripted: Any, keeps: int = 0) -> Any:
    """The result of a handler. A script may give a bare future, or a coroutine whose request keeps this many
    bytes."""
    if asyncio.iscoroutine(scripted):
        return Pending(scripted, keeps)
    return Pending(scripted) if isinstance(scripted, asyncio.Future) else scripted


def produce(records: bytes, acks: int = -1) -> ProduceRequest:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])]
    return ProduceRequest(acks=acks, topic_data=data)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - lets the loop turn, waits for no time
        await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
