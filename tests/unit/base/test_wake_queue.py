"""Wake queue: many items at once leave turns of the event loop to others."""

import asyncio

from tierlog.base.tasks import TaskGroup, WakeQueue


async def test_few_items_are_handled_in_a_turn_and_each_once() -> None:
    failures: list[BaseException] = []
    handled: list[int] = []
    tasks = TaskGroup(lambda name, failure: failures.append(failure))
    queue = WakeQueue("test", tasks, handled.append, 4)
    queue.add(range(10))
    queue.add([3, 9, 10])
    turns = []
    while queue.task is not None:
        await asyncio.sleep(0)
        turns.append(len(handled))
    assert handled == list(range(11))
    assert max(later - before for before, later in zip([0, *turns], turns, strict=False)) == 4
    queue.add([3])
    await asyncio.wait([task for task in [queue.task] if task is not None])
    assert handled[-1] == 3
    await tasks.close()
    assert not failures


async def test_item_that_is_added_while_it_is_handled_is_handled_again() -> None:
    tasks = TaskGroup(lambda name, failure: None)
    handled: list[int] = []

    def handle(item: int) -> None:
        handled.append(item)
        if len(handled) < 3:
            queue.add([item])

    queue = WakeQueue("test", tasks, handle, 4)
    queue.add([7])
    await asyncio.wait([task for task in [queue.task] if task is not None])
    assert handled == [7, 7, 7]
    await tasks.close()
