"""Fuzzes the net layer with frames mutated from real clients' traffic: 16,000 cases, among the slow tests.

make fuzz FUZZ_CASES=2000000 FUZZ_SEED=7        more, and others
FUZZ_SEED=1 FUZZ_FIRST=64 FUZZ_CASES=64 .venv/bin/pytest tests/fuzz     what a failure prints: its round
"""

import asyncio
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from connection_harness import Client
from many_elements import COUNT, requests_with_many_elements
from mutation import long_strings, string_fields
from net_fuzz import BYSTANDER, NetFuzz, traced
from traffic import Traffic

from tierlog.broker.app import Broker
from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch, list_groups, metadata, offset_commit, produce
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

CASES = int(os.environ.get("FUZZ_CASES", "16000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
TRACED_PART = 25
"""Each case costs twice the time where allocations are traced."""

STRING_CALLS_MAX = 20_000
"""Function calls of a case with a long string, while other clients wait. A second has over a million."""

ELEMENT_BYTES = 1_536
ELEMENT_SLACK = 1 << 20
"""ADR 0033: memory of an array element. Timers of the broker may come in between."""

PROBE_EVERY = 20
LOADED_WITHIN_S = 120
"""A coordinator partition that has not loaded by then never will."""

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR, LIST_GROUPS = 0, 1, 3, 8, 10, 16


_BEING_MADE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""A case deleted the offsets topic, and its partition is made and loaded again."""


class Bystander:
    """A well-behaved client beside the others. Each of its requests must be answered as without the
    others."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.produced = 0

    async def probe(self) -> None:
        value = b"%d" % self.produced
        batch = bytes(encode_batch([NewRecord(0, None, value)]))
        data = [produce.PartitionProduceData(index=0, records=batch)]
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=5000,
            topic_data=[produce.TopicProduceData(name=BYSTANDER, partition_data=data)],
        )
        answer = (await self._client.ask(PRODUCE, 9, request)).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, self.produced)
        self.produced += 1
        assert await self.read(self.produced - 1) == [value]
        answer = await self._client.ask(METADATA, 9, metadata.MetadataRequest(topics=None))
        assert BYSTANDER in {topic.name for topic in answer.topics}
        await self._commit(self.produced)

    async def _commit(self, offset: int) -> None:
        """To its own group, which shares a coordinator partition with groups of the others."""
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = offset_commit.OffsetCommitRequestTopic(name=BYSTANDER, partitions=[partition])
        request = offset_commit.OffsetCommitRequest(group_id=BYSTANDER, topics=[topic])
        while True:
            await self._client.ask(FIND_COORDINATOR, 3, FindCoordinatorRequest(key=BYSTANDER))
            answer = await self._client.ask(OFFSET_COMMIT, 7, request)
            error = answer.topics[0].partitions[0].error_code
            if error not in _BEING_MADE:
                break
        assert error == ErrorCode.NONE
        answer = await self._client.ask(LIST_GROUPS, 2, list_groups.ListGroupsRequest())
        assert BYSTANDER in {group.group_id for group in answer.groups}

    async def read(self, offset: int) -> list[bytes | None]:
        requested = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 26)
        request = fetch.FetchRequest(
            max_wait_ms=0, topics=[fetch.FetchTopic(topic=BYSTANDER, partitions=[requested])]
        )
        answer = (await self._client.ask(FETCH, 12, request)).responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark) == (0, self.produced)
        records = bytes(answer.records)
        return [
            record.value
            for at, _ in iter_batches(records)
            for record in iter_records(records, at, max_bytes=1 << 20)
        ]


@pytest.mark.slow
@pytest.mark.timeout(120 + CASES // 200)
def test_mutated_traffic_of_real_clients(tmp_path: Path) -> None:
    play(tmp_path)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(120 + CASES // 200)
def test_memory_that_mutated_traffic_takes(tmp_path: Path) -> None:
    with traced():
        play(tmp_path, TRACED_PART)


def play(directory: Path, part: int = 1) -> None:
    """One of this many cases."""
    fuzz = NetFuzz(Traffic.load(), SEED, directory)
    try:
        asyncio.run(drive(fuzz, FIRST, max(CASES // part, 1)))
    except BaseException:
        test = os.environ["PYTEST_CURRENT_TEST"].split()[0]
        print(
            f"\nreplay: FUZZ_SEED={SEED} FUZZ_FIRST={fuzz.current.start} "
            f"FUZZ_CASES={len(fuzz.current) * part} .venv/bin/pytest {test}"
        )
        raise
    print(fuzz.summary())


def test_real_clients_were_recorded_with_transactions_and_groups_of_both_protocols() -> None:
    requests = Traffic.load().requests
    recorded = {(APIS[each.kind[0]].name, each.kind[1]) for each in requests}
    older = {("AddPartitionsToTxn", 0), ("AddOffsetsToTxn", 0), ("EndTxn", 1), ("TxnOffsetCommit", 3)}
    protocol_2 = {("EndTxn", 5), ("TxnOffsetCommit", 5)}  # KIP-890
    listed = {("DescribeProducers", 0), ("DescribeTransactions", 0), ("ListTransactions", 2)}
    members = {("ConsumerGroupHeartbeat", 1), ("ConsumerGroupDescribe", 1), ("OffsetCommit", 10)}
    classic = {
        ("JoinGroup", 9),
        ("SyncGroup", 5),
        ("LeaveGroup", 5),
        ("OffsetDelete", 0),
        ("DeleteGroups", 2),
    }
    assert recorded >= older | protocol_2 | listed | members | classic
    assert {each.client for each in requests} >= {"librdkafka", "java_transactions", "franz_go", "kafkajs"}


def test_every_string_field_of_every_api_is_among_them() -> None:
    found = {(*each.request.kind, *each[1:]) for each in string_fields(Traffic.load())}
    apis = [api for api in APIS.values() if api.name in SERVED]
    wanted = {
        (api.key, version, *names)
        for api in apis
        for version in range(api.min_version, api.max_version + 1)
        for names in _string_fields(api.request, version)
    }
    assert found == wanted


def _string_fields(kind: type[Any], version: int) -> Iterator[tuple[str, str]]:
    for field in kind.FIELDS:
        if not field.exists_in(version):
            continue
        if field.type == "string":
            yield kind.__name__, field.name
        if field.nested is not None:
            yield from _string_fields(field.nested, version)


@pytest.mark.slow
@pytest.mark.parametrize(
    "measuring", [nullcontext, pytest.param(traced, marks=pytest.mark.nightly)], ids=["calls", "memory"]
)
def test_longest_strings_in_every_field_of_every_api(
    tmp_path: Path, measuring: Callable[[], AbstractContextManager[None]]
) -> None:
    traffic = Traffic.load()
    streams = [*long_strings(traffic)]
    with measuring():
        fuzz = NetFuzz(traffic, SEED, tmp_path, streams.__getitem__, sampled_every=1)
        asyncio.run(drive(fuzz, 0, len(streams)))
    assert fuzz.most_calls <= STRING_CALLS_MAX
    print(fuzz.summary())


@pytest.mark.slow
def test_many_elements_in_every_array_of_every_api(tmp_path: Path) -> None:
    with traced():
        asyncio.run(measure_elements(NetFuzz(Traffic.load(), SEED, tmp_path)))


async def measure_elements(fuzz: NetFuzz) -> None:
    """Sends one request after the other, and compares the peak of memory with its bound."""
    await fuzz.start()
    try:
        host, port = fuzz.broker.bootstrap.split(":")
        for request in requests_with_many_elements():
            reader, writer = await asyncio.open_connection(host, int(port))
            bound = 2 * len(request.frame) + ELEMENT_BYTES * COUNT + ELEMENT_SLACK
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            writer.write(request.frame)
            size = int.from_bytes(await reader.readexactly(4), "big")
            while size > 0:
                size -= len(await reader.readexactly(min(size, 1 << 16)))
            cost = tracemalloc.get_traced_memory()[1] - before
            writer.close()
            await writer.wait_closed()
            assert cost <= bound, f"{request.api} v{request.version}, {request.path}: {cost} > {bound} bytes"
    finally:
        await fuzz.stop()


async def drive(fuzz: NetFuzz, first: int, count: int) -> None:
    """Runs the cases beside a bystander. Afterwards the broker holds what it held before."""
    await fuzz.start()
    try:
        host, port = fuzz.broker.bootstrap.split(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        bystander = Bystander(client)
        await bystander.probe()
        before = fuzz.held_resources()
        await fuzz.run(first, count, probe=bystander.probe, probe_every=PROBE_EVERY)
        assert await bystander.read(0) == [b"%d" % number for number in range(bystander.produced)]
        await fuzz.wait_until_released(before)
        client.close()
    finally:
        await fuzz.stop()
    await restart(fuzz, bystander.produced)


async def restart(fuzz: NetFuzz, produced: int) -> None:
    """Whatever the cases left on disk: all coordinator partitions load again, and the records are there."""
    broker = Broker(fuzz.settings)
    await broker.start()
    try:
        host, port = broker.bootstrap.split(":")
        client = Client(*await asyncio.open_connection(host, int(port)))
        async with asyncio.timeout(LOADED_WITHIN_S):
            while (
                await client.ask(LIST_GROUPS, 2, list_groups.ListGroupsRequest())
            ).error_code in _BEING_MADE:
                pass  # each request takes some turns of the loop, in which the partitions are loaded
        bystander = Bystander(client)
        bystander.produced = produced
        await bystander.probe()
        assert await bystander.read(0) == [b"%d" % number for number in range(bystander.produced)]
        client.close()
    finally:
        await broker.stop()
