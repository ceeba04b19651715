"""Remote reads that are served from memory at once, and those that are not."""

import uuid
from types import SimpleNamespace
from typing import Any

from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.fetch_response import FetchPartitionData
from tierlog.broker.handlers.remote_fetch import RemoteRead, read_cached
from tierlog.tiering.object_store import CorruptObject
from tierlog.tiering.remote_log import FetchCounts


def remote(found: LogSlice | Exception) -> Any:
    def read(*_: object, **__: object) -> LogSlice:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(read_cached=read, fetches=FetchCounts())


def wanted() -> RemoteRead:
    replica: Any = SimpleNamespace(id=None, topic_id=uuid.UUID(int=1))
    return RemoteRead(replica, 0, 100, True, FetchPartitionData(0))


async def test_failure_of_one_cached_read_leaves_the_others_and_is_reported_by_the_slow_one() -> None:
    item = wanted()
    assert read_cached(remote(CorruptObject("cached chunk")), [item], False, []) == [item]
    assert item.data.error_code == 0


async def test_cached_read_is_timed_and_lists_no_aborted_transactions() -> None:
    log, item = remote(LogSlice((b"batch",), 5, 0, 1)), wanted()
    assert read_cached(log, [item], True, []) == []
    assert item.data.aborted == []
    assert log.fetches.seconds.count == 1
