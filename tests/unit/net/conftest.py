"""The connection harness, on asyncio and uvloop."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop
from connection_harness import Broker


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    await broker.close()
