"""Controller node: votes in the metadata quorum and is no broker (`process.roles=controller`).

It holds no partitions and has no listener for Kafka clients. Started and stopped by `run` (app).
"""

import asyncio

import structlog

from tierlog.base.tasks import TaskGroup
from tierlog.broker.node_base import NodeBase
from tierlog.metadata.client import Publisher
from tierlog.metadata.quorum.node import MetadataUnavailable

RESERVE_CHECK_S = 1.0
QUORUM_RETRY_S = 1.0
_log = structlog.get_logger("tierlog")


class ControllerNode(NodeBase):
    async def _start_parts(self) -> None:
        await self._start_metadata()
        self.has_logs = True  # it has only the metadata log
        tasks = TaskGroup(self._report)
        self._parts.push_async_callback(tasks.close)
        tasks.repeat("metadata reserve", self._keep_reserve)
        await self._await_quorum()
        events = Publisher("event streams", self.admin_node.image_changed, self._report)
        self._parts.callback(self.metadata.publish_to([events]))
        self._parts.callback(self.admin_node.stop_serving)
        self.admin_node.serve()

    async def _leave(self) -> None:
        """Nothing to do: `_stop_metadata` hands over the quorum's leadership."""

    async def _await_quorum(self) -> None:
        """Wait without a limit, unlike a broker: the other nodes wait for this one."""
        while True:
            try:
                await self.metadata.current()
            except MetadataUnavailable as unavailable:
                _log.info("waiting for a quorum", node=self.settings.node_id, why=str(unavailable))
                await asyncio.sleep(QUORUM_RETRY_S)  # `current` may fail at once
            else:
                return

    async def _keep_reserve(self) -> None:
        """Reserve disk space again after a full disk has some."""
        await asyncio.sleep(RESERVE_CHECK_S)
        try:
            if not self.metadata_node.has_reserve:
                await self.metadata_node.ensure_reserve()
        except OSError as failure:
            _log.error("cannot reserve disk space for the metadata log", error=str(failure))
