"""Requests for a pass of the scrubber of local logs."""

import asyncio
import random
from typing import Any, cast

from connection_harness import until

from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.scrubber import Scrubber
from tierlog.config.node import NodeSettings


async def test_pass_that_is_requested_between_two_turns_begins() -> None:
    tasks = TaskGroup(lambda name, failure: None)
    no_replicas = cast(Any, [])
    scrubber = Scrubber(NodeSettings(log_scrub_interval_ms=0), no_replicas, tasks, random.Random(1))
    scrubber.begin()
    scrubber.start()
    async with asyncio.timeout(10):
        await until(lambda: scrubber.passes == 1)
    await tasks.close()
