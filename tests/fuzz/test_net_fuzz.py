"""Fuzzes the net layer with frames mutated from real clients' traffic: 200,000 cases, among the slow tests.

make fuzz FUZZ_CASES=2000000 FUZZ_SEED=7        more, and others
FUZZ_SEED=1 FUZZ_FIRST=64 FUZZ_CASES=64 .venv/bin/pytest tests/fuzz     what a failure prints: its round
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from connection_harness import Client
from mutation import long_strings, string_fields
from net_fuzz import BYSTANDER, NetFuzz, traced
from traffic import Traffic

from tierlog.broker.handlers.table import SERVED
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import fetch, list_groups, metadata, offset_commit, produce
from tierlog.protocol.messages.find_coordinator import FindCoordinatorRequest
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

CASES = int(os.environ.get("FUZZ_CASES", "200000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
TRACED_PART = 25
"""Each case costs twice the time where allocations are traced."""

PROBE_EVERY = 20
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
@pytest.mark.parametrize("measuring", [nullcontext, traced], ids=["calls", "memory"])
def test_longest_strings_in_every_field_of_every_api(
    tmp_path: Path, measuring: Callable[[], AbstractContextManager[None]]
) -> None:
    traffic = Traffic.load()
    streams = [*long_strings(traffic)]
    with measuring():
        fuzz = NetFuzz(traffic, SEED, tmp_path, streams.__getitem__)
        asyncio.run(drive(fuzz, 0, len(streams)))
    print(fuzz.summary())


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
