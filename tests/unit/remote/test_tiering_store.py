"""Which store tiering takes, and that a cluster without one keeps everything on its disks."""

import asyncio
import random
from pathlib import Path
from typing import Any

from connection_harness import until
from structlog.testing import capture_logs
from tier_node import CLUSTER, TierNode, produce

from tierlog.base.clock import SystemClock
from tierlog.base.files import OsFiles
from tierlog.base.network import Network
from tierlog.broker.remote.tiering import NOT_NAMED, OBJECTS_DIRECTORY, Tiering
from tierlog.broker.replication.tcp_network import TcpNetwork
from tierlog.config.node import settings_from
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller import commands as c
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.no_store import NoStore
from tierlog.tiering.object_store import ObjectStore


def store_of(directory: Path, network: Network | None, **settings: str) -> ObjectStore:
    node = TierNode(directory, LocalStore(directory))
    return tiering_of(directory, node.metadata, network, **settings).store


def tiering_of(
    directory: Path, metadata: MetadataClient, network: Network | None, **settings: str
) -> Tiering:
    """Of a broker that holds no replicas."""
    node = TierNode(directory / "bare", LocalStore(directory))
    return Tiering(
        settings_from({"log.dirs": str(directory), **settings}),
        metadata,
        node,
        OsFiles(),
        SystemClock(),
        random.Random(1),
        lambda name, failure: None,
        found_damage=node.found_damage,
        cluster_id=CLUSTER,
        data_directory=directory,
        network=network,
    )


async def test_a_directory_of_its_own_is_no_store_for_others(tmp_path: Path) -> None:
    url = {"object.store.url": tmp_path.as_uri()}
    assert isinstance(store_of(tmp_path, None), LocalStore)
    assert isinstance(store_of(tmp_path, TcpNetwork()), NoStore)
    assert isinstance(store_of(tmp_path, TcpNetwork(), **url), LocalStore)


async def test_without_a_store_everything_stays_on_the_disk_and_the_status_says_why(tmp_path: Path) -> None:
    async with TierNode(tmp_path, NoStore(NOT_NAMED)) as node:
        replica = await node.create("t")
        troubled = asyncio.Event()
        node.driver.listeners.append(lambda where: troubled.set())
        produce(replica, 40)
        await troubled.wait()
        (status,) = node.driver.status()
        assert status.last_error == NOT_NAMED
        assert (status.local_start, status.remote_end) == (0, -1)
        assert not node.metadata.image.delete_queue


async def test_a_node_that_was_alone_is_told_where_its_remote_data_lies(tmp_path: Path) -> None:
    objects = tmp_path / OBJECTS_DIRECTORY
    async with TierNode(tmp_path / "node", LocalStore(objects)) as node:
        assert await complaints(tiering_of(tmp_path, node.metadata, TcpNetwork())) == []
        replica = await node.create("t")
        produce(replica, 40)
        await until(lambda: node.remote(replica).entries != ())
        [told] = await complaints(tiering_of(tmp_path, node.metadata, TcpNetwork()))
        assert told["partitions"] == 1
        assert f"object.store.url to the store that holds it: {objects.as_uri()} " in told["mend"]
        url = {"object.store.url": objects.as_uri()}
        assert await complaints(tiering_of(tmp_path, node.metadata, TcpNetwork(), **url)) == []
        assert await complaints(tiering_of(tmp_path, node.metadata, None)) == []


async def test_a_broker_keeps_nothing_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    """Though another one keeps house, and deletes the objects."""
    async with TierNode(tmp_path / "node", LocalStore(tmp_path / OBJECTS_DIRECTORY)) as node:
        replica = await node.create("t")
        produce(replica, 40)
        await until(lambda: node.remote(replica).entries != ())
        tiering = tiering_of(tmp_path, node.metadata, None)
        await tiering.start()
        await tiering.remote.read(*node.where(replica), node.remote(replica), 0, 1, min_one=True)
        assert tiering.remote.index_bytes > 0
        await tiering.cache.idle()
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        assert tiering.remote.index_bytes == tiering.cache.counts.bytes == 0
        await tiering.close()


async def complaints(tiering: Tiering) -> list[Any]:
    """At its start."""
    with capture_logs() as told:
        await tiering.start()
    await tiering.close()
    return [line for line in told if line["log_level"] == "error"]
