"""The producer of a session: which writers it keeps, and under which producer ids they write."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tierlog.base.tasks import TaskGroup
from tierlog.records.batch import read_header
from tierlog.records.writer import NewRecord
from tierlog.rest import producer as producer_module
from tierlog.rest.producer import Producer


class StubCluster:
    """Writes everything. `written`: partition, producer id and first sequence of each batch."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, int]] = []
        self._producer_ids = 0

    async def leader(self, topic: str, partition: int, deadline: float) -> int:
        return 1

    async def call_in_lane(self, request: Any, node_id: int) -> Any:
        return await self.call(request)

    async def call(self, request: Any) -> Any:
        if not hasattr(request, "topic_data"):
            self._producer_ids += 1
            return SimpleNamespace(error_code=0, producer_id=self._producer_ids, producer_epoch=0)
        [data] = request.topic_data[0].partition_data
        header = read_header(bytes(data.records), 0)
        self.written.append((data.index, header.producer_id, header.base_sequence))
        result = SimpleNamespace(error_code=0, base_offset=0, log_append_time_ms=-1)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[result])])


async def test_forgotten_writer_begins_again_with_another_producer_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "WRITERS_MAX", 2)
    tasks = TaskGroup(lambda name, failure: None)
    cluster = StubCluster()
    producer = Producer(cast(Any, cluster), tasks)
    for partition in (0, 1, 0, 2, 0):
        await producer.send("t", partition, NewRecord(0, None, b"x", []))
    assert cluster.written == [(0, 1, 0), (1, 1, 0), (0, 1, 1), (2, 2, 0), (0, 2, 0)]
    assert len(producer._writers) == 2
    await tasks.close()
