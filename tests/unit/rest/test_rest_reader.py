"""The reader of a stream logs in again now and then, so that a password that was changed ends the stream."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tierlog.base.tasks import TaskGroup
from tierlog.client.errors import AuthenticationFailed
from tierlog.rest import reader as reader_module
from tierlog.rest.budget import Budget
from tierlog.rest.reader import READ_COMMITTED, Reader


class StubCluster:
    """Topics without records. `logins`: those that succeed before the password changes."""

    def __init__(self, logins: int) -> None:
        self._logins = logins

    async def leader(self, topic: str, partition: int) -> int:
        return 1

    @asynccontextmanager
    async def private(self, node_id: int) -> AsyncIterator[Any]:
        if not self._logins:
            raise AuthenticationFailed("the broker refuses the login")
        self._logins -= 1
        yield self

    async def call(self, request: Any, timeout_s: float) -> Any:
        return SimpleNamespace(error_code=0, responses=[])


async def test_stream_ends_after_a_changed_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "CONNECTION_AGE_S", 0)
    budget, tasks = Budget(1 << 20), TaskGroup(lambda name, failure: None)
    reader = Reader(cast(Any, StubCluster(3)), "t", {0: 0}, {}, READ_COMMITTED, budget, tasks)
    found = []
    with pytest.raises(AuthenticationFailed):
        async with aclosing(reader.read()) as batches:
            async for batch in batches:
                found.append(batch)
                assert len(found) < 10
    assert found == [[], [], []]
    assert budget.used == 0
