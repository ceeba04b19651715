"""Which store tiering takes, and that a cluster without one keeps everything on its disks."""

import asyncio
import random
from pathlib import Path

from tier_node import TierNode, produce

from tierlog.broker.ports.clock import SystemClock
from tierlog.broker.ports.files import OsFiles
from tierlog.broker.ports.network import Network
from tierlog.broker.runtime.broker_connection import TcpNetwork
from tierlog.broker.runtime.tiering import NOT_NAMED, Tiering
from tierlog.broker.settings.node import settings_from
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.no_store import NoStore
from tierlog.tiering.object_store import ObjectStore


def store_of(directory: Path, network: Network | None, **settings: str) -> ObjectStore:
    node = TierNode(directory, LocalStore(directory))
    tiering = Tiering(
        settings_from({"log.dirs": str(directory), **settings}),
        node.metadata,
        node,
        OsFiles(),
        SystemClock(),
        random.Random(1),
        lambda name, failure: None,
        cluster_id="c",
        data_directory=directory,
        network=network,
    )
    return tiering.store


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
