"""A cluster of two nodes in this process: a controller node, which is not a broker, and a broker."""

import socket
from collections.abc import Mapping
from pathlib import Path

from tierlog.broker.app import Broker, ControllerNode
from tierlog.config.sources import settings_from


def controller_and_broker(
    directory: Path, settings: Mapping[str, str] | None = None
) -> tuple[ControllerNode, Broker]:
    """Controller node 1 and broker 2, not started. The test must start the controller first. Their log
    directories are in `directory`. `settings`: further ones of the broker.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        controller_address = f"127.0.0.1:{probe.getsockname()[1]}"  # a free port
    shared = {
        "cluster.id": "controller-and-broker",
        "controller.quorum.voters": f"1@{controller_address}",
        "controller.quorum.secret": "s",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.replication.factor": "1",
    }
    controller = {"node.id": "1", "process.roles": "controller", "admin.listener": controller_address}
    broker = {"node.id": "2", "process.roles": "broker", "admin.listener": "127.0.0.1:0", **(settings or {})}
    return (
        ControllerNode(settings_from({**shared, **controller, "log.dirs": str(directory / "1")})),
        Broker(settings_from({**shared, **broker, "log.dirs": str(directory / "2")})),
    )
