"""Work that is given up when something else has happened."""

import asyncio

import pytest

from tierlog.broker.ports.tasks import Abandoned, abandoned_with, canceller


async def test_what_waits_is_given_up_once_the_event_has_happened() -> None:
    event = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(event.set_result, None)
    with pytest.raises(Abandoned):
        async with abandoned_with(event):
            await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)  # nothing of the cancellation is left


async def test_what_ended_in_time_is_not_disturbed_later() -> None:
    event = asyncio.get_running_loop().create_future()
    async with abandoned_with(event):
        event.set_result(None)
    await asyncio.sleep(0)


async def test_a_cancellation_from_elsewhere_is_one() -> None:
    event = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(canceller())
    with pytest.raises(asyncio.CancelledError):
        async with abandoned_with(event):
            await asyncio.get_running_loop().create_future()
