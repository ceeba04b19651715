"""A node that votes on the metadata and is no broker (`process.roles=controller`): it leads no partition,
holds no records, and has no listener for Kafka's clients.

`run` (app) starts and stops it.
"""

import asyncio

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.broker.node_base import Foundation
from tierlog.metadata.quorum.node import MetadataUnavailable

RESERVE_CHECK_S = 1.0
QUORUM_RETRY_S = 1.0
_log = structlog.get_logger("tierlog")


class Voter(Foundation):
    async def _start_parts(self) -> None:
        await self._start_metadata()
        self.has_logs = True  # there are none but that of the metadata
        tasks = TaskGroup(self._report)
        self._parts.push_async_callback(tasks.close)
        tasks.repeat("reserve of the metadata", self._keep_reserve)
        await self._await_quorum()
        self._parts.callback(self.admin_node.stop_serving)
        self.admin_node.serve()

    async def _leave(self) -> None:
        """The metadata is handed over as the last of its parts."""

    async def _await_quorum(self) -> None:
        """Unlike a broker it waits without end: it is what others wait for."""
        while True:
            try:
                await self.metadata.current()
            except MetadataUnavailable as unavailable:
                _log.info("waits for a quorum", node=self.settings.node_id, why=str(unavailable))
                await asyncio.sleep(QUORUM_RETRY_S)  # a failure is told at once: it is to end the start
            else:
                return

    async def _keep_reserve(self) -> None:
        """Sets room aside again once a full disk has some."""
        await asyncio.sleep(RESERVE_CHECK_S)
        try:
            if not self.metadata_node.has_reserve:
                await self.metadata_node.ensure_reserve()
        except OSError as failure:
            _log.error("no room can be set aside for the metadata", error=str(failure))
