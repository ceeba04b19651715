"""A broker is killed with SIGKILL at each request by which it copies, merges, compacts, spills and deletes
segments, and while it deletes their local files.

After each kill it is started again. In the end a consumer finds every record once and in order, the manifest
names only objects that are right, and the bucket has no others. TIER_KILL_ROUNDS: kills at each request.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
import s3_servers
from cli_process import json_output, run
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_reader import read_from_start
from scraping import metric
from waiting import until
from wire_client import Client

from tierlog.cli.admin import AdminApi
from tierlog.cli.errors import CliError
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = int(os.environ.get("TIER_KILL_ROUNDS", "1"))
TOPIC, PREFIX = "events", "kills"
SEGMENT_BYTES, SEGMENT_RECORDS = 1024, 10
"""A batch of so many records is larger than a segment, and gets one of its own."""

CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}
SETTINGS = {
    "remote.log.manager.task.interval.ms": 100,
    "remote.log.delete.grace.ms": 0,
    "remote.log.merge.min.segments": 0,
}
KEYS = 7
COMPACTION = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, "delete_retention_ms": 0}
SPILL_SEGMENTS = 390
"""The quorum keeps at most 384 entries of a partition; the oldest ones are then spilled to a page."""

DROPPED_SEGMENTS = 60

REQUEST_LINE = re.compile(rb"^([A-Z]+) (\S+) HTTP/1.1\r\n")
END_OF_HEAD = b"\r\n\r\n"


class Step(NamedTuple):
    """A request. `is_done`: the broker is killed once the store has done it, else before it gets it."""

    method: str
    path: str  # a regular expression
    is_done: bool

    def matches(self, head: bytes) -> bool:
        found = REQUEST_LINE.match(head)
        return (
            found is not None
            and found[1].decode() == self.method
            and re.search(self.path, found[2].decode()) is not None
        )


def at_both(method: str, path: str) -> tuple[Step, Step]:
    return Step(method, path, False), Step(method, path, True)


COPY = (
    *at_both("PUT", r"\.log$"),
    *at_both("PUT", r"\.idx$"),
    Step("HEAD", r"\.log$", True),
    *at_both("PUT", "/root$"),
)
MERGE = (
    Step("GET", r"\.log$", True),
    *at_both("PUT", r"\.log$"),
    *at_both("PUT", r"\.idx$"),
    Step("HEAD", r"\.log$", True),
    Step("PUT", "/root$", False),
)
SPILL = (*at_both("PUT", r"\.page$"), Step("GET", r"\.page$", True))
DELETE = at_both("POST", r"\?delete")


class KillingProxy:
    """A proxy in front of an S3 server. `arm`: kill the broker at the next request of a step."""

    def __init__(self, server: s3_servers.S3Server) -> None:
        self._server = server
        self._step: Step | None = None
        self._kill: Callable[[], None] = lambda: None
        self.address = ""
        self.paths: list[str] = []
        """Requests so far: a step that never comes is reported with them."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["KillingProxy"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()
            self.address = f"{host}:{port}"
            yield self

    def url(self) -> str:
        return self._server.url(PREFIX).replace(self._server.address, self.address)

    def arm(self, step: Step, kill: Callable[[], None]) -> "asyncio.Future[None]":
        """Done once the broker is killed."""
        self._step, self._kill = step, kill
        self._killed = asyncio.get_running_loop().create_future()
        self.paths.clear()
        return self._killed

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(END_OF_HEAD)
            self.paths.append(head.split(b"\r\n")[0].decode())
            step = self._step if self._step is not None and self._step.matches(head) else None
            if step is not None:
                self._step = None
                if not step.is_done:
                    await self._end_broker()
                    writer.close()
                    return
            await self._forward(head, reader, writer, step)
        writer.close()

    async def _forward(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step: Step | None
    ) -> None:
        from_server, to_server = await asyncio.open_connection(*self._server.address.split(":"))
        to_server.write(head)
        sending = asyncio.ensure_future(_copy(reader, to_server))
        try:
            if step is None:
                await _copy(from_server, writer)
            else:
                await from_server.readuntil(END_OF_HEAD)
                await self._end_broker()
        finally:
            sending.cancel()
            to_server.close()

    async def _end_broker(self) -> None:
        await asyncio.to_thread(self._kill)
        self._killed.set_result(None)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


class Log:
    """The records that the broker has acknowledged: their number is the next offset."""

    def __init__(self, broker: TierlogBroker) -> None:
        self.broker = broker
        self.records = 0

    def create_topic(self, **settings: object) -> None:
        config = {**CONFIG, **{name.replace("_", "."): str(value) for name, value in settings.items()}}
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(10)

    def produce(self, records: int) -> None:
        client = Client(self.broker.bootstrap)
        numbers = range(self.records, self.records + records)
        new = [NewRecord(1_700_000_000_000 + number, key(number), value(number)) for number in numbers]
        found = client.produce(TOPIC, encode_batch(new))
        client.close()
        assert (found.error_code, found.base_offset) == (ErrorCode.NONE, self.records)
        self.records += records

    def flush(self) -> None:
        """Roll and upload. Fails if the broker is killed."""
        AdminApi(self.broker.admin_url, timeout_s=60).post("/v1/tier/flush", {"topic": TOPIC})

    def check(self) -> None:
        """Every record is there once, every object is right, and nothing else is in the bucket."""
        self.check_bucket()
        assert self.read() == [(number, value(number)) for number in range(self.records)]

    def read(self) -> list[tuple[int, bytes]]:
        """Offset and value of all records."""
        return [(one.offset(), one.value()) for one in read_from_start(self.broker.bootstrap, TOPIC)]

    def check_bucket(self) -> None:
        queued = partial(metric, self.broker, "kafka_server_brokertopicmetrics_remotedeletelagsegments")
        until(lambda: not queued(), "segments that are queued for their deletion stay")
        json_output("tier", "verify", "--admin", self.broker.admin_url, code=0)
        [found] = json_output("tier", "gc", "--dry-run", "--admin", self.broker.admin_url)
        assert not found["unknown"], found


def _has_failed(work: "Future[None]") -> bool:
    return work.done() and work.exception() is not None


def key(number: int) -> bytes:
    return b"%d" % (number % KEYS)


def value(number: int) -> bytes:
    return b"value %06d " % number * 10


@pytest.fixture
def s3(tmp_path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


@pytest.fixture
async def proxy(s3) -> AsyncIterator[KillingProxy]:
    async with KillingProxy(s3).running() as proxy:
        yield proxy


@pytest.fixture
async def log(tierlog_broker_factory, proxy) -> Log:
    broker = await asyncio.to_thread(
        tierlog_broker_factory, SETTINGS, object_store=proxy.url(), environment=s3_servers.CREDENTIALS
    )
    return Log(broker)


async def kill_at(step: Step, proxy: KillingProxy, log: Log, work: Callable[[], Any] | None = None) -> None:
    """Kill the broker at this request, which `work` leads to, and start it again."""
    killed = proxy.arm(step, log.broker.kill)
    if work is not None:
        with suppress(CliError):
            await asyncio.to_thread(work)
    try:
        async with asyncio.timeout(60):
            await killed
    except TimeoutError:
        pytest.fail(f"no request {step}, but {proxy.paths}")
    await asyncio.to_thread(log.broker.start)


async def test_kills_at_each_request_of_a_copy(log: Log, proxy: KillingProxy) -> None:
    await asyncio.to_thread(log.create_topic)
    for step in COPY * ROUNDS:
        await asyncio.to_thread(log.produce, 5)
        await kill_at(step, proxy, log, log.flush)
    await asyncio.to_thread(log.flush)
    await asyncio.to_thread(log.check)


async def test_kills_at_each_request_of_merges_and_deletions(log: Log, proxy: KillingProxy) -> None:
    await asyncio.to_thread(log.create_topic)
    for _ in range(30):
        await asyncio.to_thread(log.produce, 5)
        await asyncio.to_thread(log.flush)
    await asyncio.to_thread(log.broker.stop)
    log.broker.settings["remote.log.merge.min.segments"] = 8
    steps = [
        step for step in (*MERGE, *DELETE) for _ in range(ROUNDS)
    ]  # the last one of MERGE follows its commit
    for number, step in enumerate(steps):
        await kill_at(step, proxy, log, None if number else log.broker.start)
    await asyncio.to_thread(log.check)
    [line] = AdminApi(log.broker.admin_url).get("/v1/tier/status")["partitions"]
    assert line["remote_segments"] < 8


async def test_kills_at_each_request_of_a_compaction(log: Log, proxy: KillingProxy) -> None:
    """It consists of the requests of merges, for each segment."""
    await asyncio.to_thread(lambda: log.create_topic(**COMPACTION))
    for step in MERGE * ROUNDS:
        for _ in range(3):
            await asyncio.to_thread(log.produce, 5)
            await asyncio.to_thread(log.flush)
        await kill_at(step, proxy, log)
    last = range(log.records - KEYS, log.records)
    async with asyncio.timeout(60):
        while [number for number, _ in await asyncio.to_thread(log.read)] != list(last):
            pass  # until the last pass has ended
    await asyncio.to_thread(log.check_bucket)
    assert await asyncio.to_thread(log.read) == [(number, value(number)) for number in last]


async def test_kills_at_each_request_of_a_spill(log: Log, proxy: KillingProxy) -> None:
    def fill() -> None:
        log.create_topic(segment_bytes=SEGMENT_BYTES)
        for _ in range(SPILL_SEGMENTS):
            log.produce(SEGMENT_RECORDS)
        log.flush()

    first, *others = SPILL * ROUNDS
    await kill_at(first, proxy, log, fill)
    for step in others:
        await kill_at(step, proxy, log)
    await asyncio.to_thread(log.flush)
    await asyncio.to_thread(log.check)


async def test_kills_while_local_files_are_deleted(log: Log) -> None:
    await asyncio.to_thread(lambda: log.create_topic(segment_bytes=SEGMENT_BYTES, local_retention_ms=-2))
    partition = log.broker.data_dir / f"{TOPIC}-0"

    def count() -> int:
        return sum(name.endswith(".log") for name in os.listdir(partition))

    def kill_during_deletion(left: int) -> None:
        retain("local.retention.ms=-2")
        for _ in range(DROPPED_SEGMENTS):
            log.produce(SEGMENT_RECORDS)
        log.flush()
        assert count() > DROPPED_SEGMENTS
        deadline = time.monotonic() + 60
        with ThreadPoolExecutor(1) as pool:
            altering = pool.submit(retain, "local.retention.ms=0")
            while count() > left:  # without a pause: the deletion takes some milliseconds
                assert time.monotonic() < deadline and not _has_failed(altering), f"{count()} stay"
            log.broker.kill()
        interrupted.append(count())
        log.broker.start()

    def retain(config: str) -> None:
        altered = run("topic", "alter", TOPIC, "--config", config, "--bootstrap", log.broker.bootstrap)
        assert altered.returncode == 0, altered.stderr

    interrupted: list[int] = []
    for left in (DROPPED_SEGMENTS, DROPPED_SEGMENTS // 2, 2) * ROUNDS:
        await asyncio.to_thread(kill_during_deletion, left)
    while max(interrupted) == 1:  # on a busy machine each deletion may have ended before its kill
        await asyncio.to_thread(kill_during_deletion, DROPPED_SEGMENTS)
    await asyncio.to_thread(until, lambda: count() == 1, "local segments stay")
    await asyncio.to_thread(log.check)
