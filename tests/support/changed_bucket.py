"""A topic in a directory store whose objects a test changes or makes unreadable."""

import uuid
from pathlib import Path
from typing import Any

from faulty_store import FaultyStore
from tier_node import TierNode, produce

from tierlog.broker.remote.manifest_check import ManifestCheck
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller import commands as c
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectInfo, ObjectStoreError
from tierlog.tiering.verifier import RemoteVerifier

PAGE_SEGMENTS = 2


class Store(FaultyStore):
    """Calls for the keys of `failures` fail, each time with the given error."""

    def __init__(self, inner: LocalStore) -> None:
        super().__init__(inner)
        self.failures: dict[str, ObjectStoreError] = {}

    async def head(self, key: str) -> ObjectInfo:
        self._fail(key)
        return await super().head(key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._fail(key)
        return await super().get(key, start, end)

    async def get_with_etag(self, key: str) -> tuple[bytes, str]:
        self._fail(key)
        return await super().get_with_etag(key)

    def _fail(self, key: str) -> None:
        if key in self.failures:
            raise self.failures[key]


async def tiered(node: TierNode) -> Replica:
    """Partition 0 of a topic, whose records are all remote."""
    replica = await node.create("t")
    produce(replica, 120, records=3)
    await node.log_manager.flush("t")
    await node.finish_tiering()
    return replica


async def spill(node: TierNode, replica: Replica) -> str:
    """Move the oldest entries of the manifest to a page. Returns its key."""
    where, page_id = node.where(replica), uuid.uuid4()
    oldest = node.remote(replica).entries[:PAGE_SEGMENTS]
    common = {"topic_id": where.topic_id, "partition": 0, "leader_epoch": replica.leader_epoch}
    offsets = {"base_offset": oldest[0].base_offset, "last_offset": oldest[-1].last_offset}
    await node.metadata.submit(c.StartSpill(uuid=page_id, **offsets, **common))
    page = await node.manager.write_page(where, page_id, oldest)
    await node.metadata.submit(c.SpillEntries(page=page, **common))
    return node.keys.page(where, page)


def verifier(node: TierNode) -> RemoteVerifier:
    resolve = lambda where: node.metadata.image.remote_partition(*where)  # noqa: E731
    return RemoteVerifier(node.store, node.keys, node.fresh_remote_log(), resolve)


def path_of(node: TierNode, key: str) -> Path:
    path: Path = node.store.inner._path(key)
    return path


def key_of(node: TierNode, replica: Replica, segment: int) -> str:
    return node.keys.log(node.where(replica), node.remote(replica).entries[segment])


def manifest_check(node: TierNode, metadata: Any = None) -> ManifestCheck:
    parts = node.keys, node.manager, node.log_manager, node.storage_cleaner
    return ManifestCheck(1, metadata or node.metadata, *parts)
