"""Changes of topic settings, sent to any node until their outcome is known."""

import asyncio
from collections.abc import Mapping

from simulator.broker import SimBroker
from tierlog.metadata.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigsAltered,
)
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode

RETRY_S, TIMEOUT_S = 0.1, 2.0


async def alter_topic(brokers: Mapping[int, SimBroker], topic: str, settings: Mapping[str, str]) -> ErrorCode:
    """Set these settings of a topic. Returns the error, NONE if it was done. May be repeated."""
    changes = tuple(
        ConfigChange(key=key, operation=ConfigOperation.SET, value=value) for key, value in settings.items()
    )
    resource = ConfigResource(scope=ConfigScope.TOPIC, name=topic, changes=changes)
    while True:
        for broker in brokers.values():
            if broker.metadata is None or broker.process is None or broker.process.paused:
                continue
            try:
                async with asyncio.timeout(TIMEOUT_S):  # a killed process never answers
                    reply = await broker.metadata.submit(AlterConfigs(resources=(resource,)))
            except (MetadataUnavailable, TimeoutError):
                continue
            if isinstance(reply, ConfigsAltered):
                return reply.resources[0].error
        await asyncio.sleep(RETRY_S)
