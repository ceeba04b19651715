"""The budget of bytes: what does not fit waits in its order or is refused, and nothing is lost."""

import asyncio

import pytest

from tierlog.rest.budget import Budget
from tierlog.rest.errors import RestError


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_reservations_wait_in_the_order_of_arrival() -> None:
    budget, order = Budget(100), []
    budget.reserve_now(90)

    async def reserve(name: str, count: int) -> None:
        await budget.reserve(count)
        order.append(name)

    tasks = [asyncio.ensure_future(reserve("large", 50)), asyncio.ensure_future(reserve("small", 5))]
    await turns()
    assert order == []  # the small one would fit, and does not overtake
    budget.release(90)
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]
    assert budget.used == 55


async def test_what_does_not_fit_now_is_refused_with_a_time_to_try_again() -> None:
    budget = Budget(100)
    budget.reserve_now(60)
    with pytest.raises(RestError) as refused:
        budget.reserve_now(60)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
    assert (budget.used, budget.refused) == (60, 1)


async def test_request_larger_than_the_budget_is_served_alone() -> None:
    budget = Budget(100)
    budget.reserve_now(300)
    with pytest.raises(RestError):
        budget.reserve_now(1)
    budget.release(300)
    budget.reserve_now(1)


@pytest.mark.parametrize("is_released_first", [False, True])
async def test_cancelled_reservation_holds_nothing(is_released_first: bool) -> None:
    budget = Budget(100)
    budget.reserve_now(100)
    waiting = asyncio.ensure_future(budget.reserve(80))
    behind = asyncio.ensure_future(budget.reserve(20))
    await turns()
    if is_released_first:
        budget.release(100)
        waiting.cancel()
    else:
        waiting.cancel()
        await turns()
        budget.release(100)
    await asyncio.gather(waiting, return_exceptions=True)
    await behind
    assert budget.used == 20


async def test_response_that_is_larger_than_reserved_delays_others() -> None:
    budget = Budget(100)
    await budget.reserve(10)
    budget.resize(10, 500)
    waiting = asyncio.ensure_future(budget.reserve(10))
    await turns()
    assert not waiting.done()
    budget.release(500)
    await waiting
    assert budget.used == 10


async def test_release_passes_over_a_reservation_that_is_being_cancelled() -> None:
    """The task has been cancelled, and has not run since."""
    budget = Budget(100)
    budget.reserve_now(100)
    waiting = asyncio.ensure_future(budget.reserve(80))
    await turns()
    waiting.cancel()
    budget.release(100)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used == 0 and not budget.is_short


async def test_request_that_arrives_in_parts_is_served_alone_and_beside_waiting_ones() -> None:
    budget = Budget(100)
    budget.reserve_now(90)
    waiting = asyncio.ensure_future(budget.reserve(50))
    await turns()
    budget.reserve_now(10, beside=90)
    budget.reserve_now(200, beside=100)  # it is alone
    with pytest.raises(RestError):
        budget.reserve_now(1)
    budget.release(300)
    await waiting
    with pytest.raises(RestError):
        budget.reserve_now(60, beside=20)
    assert budget.used == 50
