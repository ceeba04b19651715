"""Task groups: cancellation, repeated tasks, and reports of failures."""

import asyncio
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from tierlog.base import tasks
from tierlog.base.tasks import TaskGroup, done_before


async def test_tasks_started_during_close_end_too() -> None:
    group = TaskGroup(lambda name, failure: None)
    ended: list[str] = []

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("started at the end")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            group.spawn("last words", last_words())
            await asyncio.sleep(0)
            ended.append("work")

    group.spawn("work", work())
    await asyncio.sleep(0)
    await group.close()
    assert sorted(ended) == ["started at the end", "work"]
    assert len(group) == 0


async def test_a_task_may_close_its_own_group() -> None:
    group = TaskGroup(lambda name, failure: None)
    closed = asyncio.Event()

    async def close() -> None:
        await group.close()
        closed.set()

    group.spawn("other", asyncio.Event().wait())
    group.spawn("closing", close())
    await closed.wait()


async def test_lost_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CANCEL_AGAIN_S", 0.01)
    group = TaskGroup(lambda name, failure: None)

    async def loses_one() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    group.spawn("heartbeats", loses_one())
    await asyncio.sleep(0)
    with capture_logs() as lines:
        await group.close()
    assert [(line["event"], line["tasks"]) for line in lines] == [("node.task.goes_on", ["heartbeats"])]
    assert len(group) == 0


async def test_work_is_cancelled_and_awaited_when_the_event_comes_first() -> None:
    event: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def work() -> None:
        event.set_result(None)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.set()

    assert not await done_before(event, work())
    assert ended.is_set()


async def test_failure_of_the_work_is_raised_to_the_caller() -> None:
    event: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await done_before(event, work())


async def test_failed_run_is_reported_and_the_task_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "RETRY_S", 0)
    reported: list[tuple[str, BaseException]] = []
    group = TaskGroup(lambda name, failure: reported.append((name, failure)))
    bug, turns = KeyError("a bug"), list[int]()

    async def turn() -> None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise bug

    await group.repeat("retention", turn, should_continue=lambda: len(turns) < 3)
    assert turns == [0, 1, 2]
    assert reported == [("repeated task: retention", bug)]


async def test_repeated_task_can_be_cancelled() -> None:
    reported: list[str] = []
    group = TaskGroup(lambda name, failure: reported.append(name))
    group.repeat("waits", asyncio.Event().wait)
    await asyncio.sleep(0)
    await group.close()
    assert (len(group), reported) == (0, [])


async def test_group_closes_while_a_task_ends() -> None:
    """The done callback has not run yet: from Python 3.12 on, gather does not wait for it."""
    group = TaskGroup(lambda name, failure: None)
    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        ending.set_result(None)

    task = group.spawn("ends", work())
    await ending
    assert task.done()
    await group.close()
    assert len(group) == 0


async def test_other_work_runs_between_the_turns_of_a_long_iteration() -> None:
    turns: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while len(seen) < 10:
            turns.append(len(seen))
            await asyncio.sleep(0)

    async def iterate() -> None:
        async for item in tasks.in_turns(range(10), 4):
            assert item == len(seen)
            seen.append(item)

    await asyncio.gather(iterate(), other())
    assert turns == [4, 8]
