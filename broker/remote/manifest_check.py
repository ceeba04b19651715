"""Manifest check: compares roots and documents in the bucket with what this broker has written.

The quorum's manifest is the truth, and the root, cluster.json and the topics' documents are derived from it
for readers of the bucket. No broker reads them to serve clients, so a root that was deleted, damaged or put
back from an older copy would stay so until the next change of its partition. Differences are logged, counted
and written again: a root by the leader of its partition, a document by the remote storage cleaner. Called by
the bucket scrubber, `tier verify` and `tier gc`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from tierlog.base.types import TopicIdPartition
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.remote.remote_storage_cleaner import RemoteStorageCleaner
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.manager import TierManager

_log = structlog.get_logger("tierlog.tiering")


@dataclass(frozen=True, slots=True)
class ManifestFault:
    """A root or document that is missing, damaged or outdated in the bucket. `object`: its key."""

    object: str
    fault: str


class ManifestCheck:
    def __init__(
        self,
        broker_id: int,
        metadata: MetadataClient,
        keys: Keys,
        manager: TierManager,
        log_manager: RemoteLogManager,
        cleaner: RemoteStorageCleaner,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._keys = keys
        self._manager = manager
        self._log_manager = log_manager
        self._cleaner = cleaner
        self.faults = 0
        """Faults found since the start of the process."""

    async def root(self, where: TopicIdPartition) -> ManifestFault | None:
        """Check the root of a partition that this broker leads, and start to write it again if it has a
        fault. Raises ObjectStoreError or MetadataUnavailable."""
        fault = await self._manager.root_fault(where)
        if fault is None:
            return None
        partition = (await self._metadata.current()).partition(*where)
        if partition is None or partition.leader != self._broker_id:
            return None  # the topic was deleted, or another broker writes the root now
        self._manager.forget(where)
        self._log_manager.wake(where)
        return self._found(self._keys.root(where), fault)

    async def documents(self) -> AsyncIterator[ManifestFault | None]:
        """Check cluster.json and the document of each topic, if this broker writes them, and start to write
        those with a fault again. Yields once for each. Raises ObjectStoreError."""
        async for key, fault in self._cleaner.check_documents():
            yield None if fault is None else self._found(key, fault)

    def _found(self, key: str, fault: str) -> ManifestFault:
        self.faults += 1
        _log.error("manifest.wrong", object=key, fault=fault)
        return ManifestFault(key, fault)
