"""What a leader says when it cannot take a command."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tierlog.broker.ports.clock import SystemClock
from tierlog.broker.ports.files import OsFiles
from tierlog.broker.ports.tasks import TaskGroup
from tierlog.metadata.controller.commands import AlterConfigs, ConfigChange, ConfigOperation, ConfigResource
from tierlog.metadata.leadership import MAX_WAITING
from tierlog.metadata.node import MetadataNode, MetadataUnavailable
from tierlog.metadata.records import ConfigScope


async def test_too_many_that_wait_are_told_what_they_wait_for(tmp_path: Path) -> None:
    """Its disk hangs, so that nothing is committed."""
    tasks, gate = TaskGroup(lambda name, failure: None), threading.Event()
    with ThreadPoolExecutor(1) as worker:
        node = MetadataNode(
            1, {}, tmp_path, OsFiles(), SystemClock(), random.Random(1), tasks, "c", worker=worker
        )
        await node.start()
        worker.submit(gate.wait)
        waiting = [tasks.spawn("waits", node.submit(configure(number))) for number in range(MAX_WAITING)]
        await asyncio.sleep(0)
        try:
            with pytest.raises(MetadataUnavailable, match="wait for a majority of the metadata quorum"):
                await node.submit(configure(MAX_WAITING))
        finally:
            gate.set()
        await asyncio.gather(*waiting)
        await node.stop()
    await tasks.close()


def configure(number: int) -> AlterConfigs:
    change = ConfigChange(key="min.insync.replicas", operation=ConfigOperation.SET, value=str(number % 2 + 1))
    return AlterConfigs(resources=(ConfigResource(scope=ConfigScope.CLUSTER, name="", changes=(change,)),))
