"""A cluster of two nodes in this process: a controller node, which is not a broker, and a broker."""

import socket
from pathlib import Path

from tierlog.broker.app import Broker, ControllerNode
from tierlog.config.sources import settings_from


def controller_and_broker(directory: Path) -> tuple[ControllerNode, Broker]:
    """Nodes 1 and 2, neither started; start the voter first. Their data lies below the directory."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        place = f"127.0.0.1:{held.getsockname()[1]}"
    shared = {
        "cluster.id": "apart",
        "controller.quorum.voters": f"1@{place}",
        "controller.quorum.secret": "s",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "offsets.topic.replication.factor": "1",
    }
    voter = {"node.id": "1", "process.roles": "controller", "admin.listener": place}
    broker = {"node.id": "2", "process.roles": "broker", "admin.listener": "127.0.0.1:0"}
    return (
        ControllerNode(settings_from({**shared, **voter, "log.dirs": str(directory / "1")})),
        Broker(settings_from({**shared, **broker, "log.dirs": str(directory / "2")})),
    )
