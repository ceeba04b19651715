"""Tiering with and without an object store."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from connection_harness import until
from structlog.testing import capture_logs
from tier_node import CLUSTER, TierNode, produce

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.network import Network
from tierlog.broker.platform import TcpNetwork
from tierlog.broker.remote.tiering import NO_STORE_URL, OBJECTS_DIRECTORY, RemoteTier
from tierlog.config.sources import settings_from
from tierlog.metadata.controller import commands as c
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.tiering import store_health
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import ObjectStore
from tierlog.tiering.store_health import BreakerState
from tierlog.tiering.store_probe import UnsuitableStore
from tierlog.tiering.stores import NoStore


def store_of(directory: Path, network: Network | None, **settings: str) -> ObjectStore:
    node = TierNode(directory, LocalStore(directory))
    return tiering_of(directory, node.metadata, network, **settings).store.inner.inner


def tiering_of(
    directory: Path, metadata: MetadataClient, network: Network | None, **settings: str
) -> RemoteTier:
    return RemoteTier(
        settings_from({"log.dirs": str(directory), **settings}),
        metadata,
        OsFiles(),
        SystemClock(),
        lambda name, failure: None,
        cluster_id=CLUSTER,
        data_directory=directory,
        network=network,
    )


async def test_local_directory_is_the_default_store_of_a_standalone_node_only(tmp_path: Path) -> None:
    url = {"object.store.url": tmp_path.as_uri()}
    assert isinstance(store_of(tmp_path, None), LocalStore)
    assert isinstance(store_of(tmp_path, TcpNetwork("PLAINTEXT")), NoStore)
    assert isinstance(store_of(tmp_path, TcpNetwork("PLAINTEXT"), **url), LocalStore)


async def test_directory_that_ignores_conditions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount without locks, or one that replaces what it should not. The node's own directory is not
    probed."""
    monkeypatch.setattr(LocalStore, "_swap", lambda self, key, new, target, etag: os.replace(new, target))
    monkeypatch.setattr(store_health, "CHECK_PAUSE_S", 0)  # a constant, not a collaborator
    node = TierNode(tmp_path / "node", LocalStore(tmp_path / "unused"))
    tier = tiering_of(tmp_path, node.metadata, None, **{"object.store.url": (tmp_path / "nfs").as_uri()})
    with pytest.raises(UnsuitableStore, match="ignores conditional puts"):
        await tier.store.put("k", b"x")
    assert tier.store.health.state is BreakerState.REFUSED
    await tier.close()
    own = tiering_of(tmp_path, node.metadata, None)
    await own.store.put("k", b"x")
    await own.close()


async def test_directory_that_is_suitable_is_used_and_keeps_nothing_of_the_probe(tmp_path: Path) -> None:
    node = TierNode(tmp_path / "node", LocalStore(tmp_path / "unused"))
    tier = tiering_of(tmp_path, node.metadata, None, **{"object.store.url": (tmp_path / "nfs").as_uri()})
    await tier.store.put("k", b"x")
    assert [info.key async for info in tier.store.list("")] == ["k"]
    await tier.close()


async def test_without_a_store_segments_stay_local_and_the_status_says_why(tmp_path: Path) -> None:
    async with TierNode(tmp_path, NoStore(NO_STORE_URL)) as node:
        replica = await node.create("t")
        failed = asyncio.Event()
        node.log_manager.listeners.append(lambda where: failed.set())
        produce(replica, 40)
        await failed.wait()
        (status,) = await node.log_manager.status()
        assert status.last_error == NO_STORE_URL
        assert (status.local_log_start_offset, status.remote_end_offset) == (0, None)
        assert not node.metadata.image.delete_queue


async def test_former_standalone_node_logs_where_its_remote_data_is(tmp_path: Path) -> None:
    objects = tmp_path / OBJECTS_DIRECTORY
    async with TierNode(tmp_path / "node", LocalStore(objects)) as node:
        assert await startup_errors(tiering_of(tmp_path, node.metadata, TcpNetwork("PLAINTEXT"))) == []
        replica = await node.create("t")
        produce(replica, 40)
        await until(lambda: node.remote(replica).entries != ())
        [reported] = await startup_errors(tiering_of(tmp_path, node.metadata, TcpNetwork("PLAINTEXT")))
        assert reported["partitions"] == 1
        assert reported["directory"] == objects.as_uri()
        url = {"object.store.url": objects.as_uri()}
        assert await startup_errors(tiering_of(tmp_path, node.metadata, TcpNetwork("PLAINTEXT"), **url)) == []
        assert await startup_errors(tiering_of(tmp_path, node.metadata, None)) == []


async def test_broker_keeps_no_state_of_a_deleted_topic(tmp_path: Path) -> None:
    """Even if another broker deletes the objects."""
    async with TierNode(tmp_path / "node", LocalStore(tmp_path / OBJECTS_DIRECTORY)) as node:
        replica = await node.create("t")
        produce(replica, 40)
        await until(lambda: node.remote(replica).entries != ())
        tiering = tiering_of(tmp_path, node.metadata, None)
        node.node.publish_to([Publisher("test", tiering.log.follow)])
        await tiering.log.read(node.where(replica), 0, 1, min_one=True)
        assert tiering.log.index_bytes > 0
        await tiering.cache.idle()
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        await until(lambda: tiering.log.index_bytes == tiering.cache.bytes == 0)
        await tiering.close()


async def test_cached_chunks_are_in_a_directory_that_brokers_share(tmp_path: Path) -> None:
    shared = {"remote.cache.directory": str(tmp_path / "fast")}
    node = TierNode(tmp_path / "node", LocalStore(tmp_path))
    for number in range(1, 3):
        tier = tiering_of(
            tmp_path / f"log-{number}", node.metadata, None, **shared, **{"node.id": str(number)}
        )
        await tier.close()
        assert list((tmp_path / f"log-{number}").glob("remote-cache*")) == []
    assert sorted(path.name for path in (tmp_path / "fast").iterdir()) == [
        f"remote-cache-{CLUSTER}-1",
        f"remote-cache-{CLUSTER}-2",
    ]


async def startup_errors(tier: RemoteTier) -> list[Any]:
    """Errors that are logged at startup."""
    with capture_logs() as reported:
        tier.log_unreachable_data()
    await tier.close()
    return [line for line in reported if line["log_level"] == "error"]
