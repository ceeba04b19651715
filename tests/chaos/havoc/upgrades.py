"""Faults that restart nodes with another build of tierlog: nothing may be lost, and clients notice little.

Each takes nodes to the build that they do not run, or only few of them, so the next one takes them back. No
upgrade is finalised.
"""

from collections.abc import Iterator
from pathlib import Path

from havoc.builds import Builds
from havoc.nodes import ChaosFailed, Node, until
from havoc.stage import DEATH_S, Stage, fault

UPGRADE, CRASH_UPGRADE = "upgrade", "crash-upgrade"
WHOLE_WITHIN_S = 60.0


@fault(UPGRADE, DEATH_S, "builds", hurts_early=True)
def _upgrade(stage: Stage) -> Iterator[str]:
    """Restart all nodes one by one with the build that fewer of them run, the quorum's leader last: half of
    them before, so that both builds serve side by side, and the others at the heal."""
    controller = stage.controller()
    running = [node.build for node in stage.cluster.nodes.values()]
    build = min((controller.build, _builds(stage).other(controller.build)), key=running.count)
    nodes = sorted(stage.cluster.nodes.values(), key=lambda node: (node is controller, node.id))
    left = [node for node in nodes if node.build != build]
    half = (len(left) + 1) // 2
    for node in left[:half]:
        _restart(stage, node, build)
    names = ", ".join(str(node) for node in left[:half])
    yield f"{names} restarted with {_builds(stage).name(build)}"
    for node in left[half:]:
        _restart(stage, node, build)


@fault(CRASH_UPGRADE, DEATH_S, "builds", hurts_early=True)
def _crash_upgrade(stage: Stage) -> Iterator[str]:
    """Kill the leader of a partition, and start it with the build that it did not run."""
    node = stage.leader()
    node.kill()
    node.build = _builds(stage).other(node.build)
    node.start()
    yield f"SIGKILL of {node}, started with {_builds(stage).name(node.build)}"


def _restart(stage: Stage, node: Node, build: Path | None) -> None:
    """Returns once no other node would be missed."""
    until(lambda: _is_whole(stage), f"the cluster is whole before {node} restarts", WHOLE_WITHIN_S)
    node.stop()
    node.build = build
    node.start()
    until(lambda: _is_whole(stage), f"{node} is in sync", WHOLE_WITHIN_S)


def _is_whole(stage: Stage) -> bool:
    """Whether all brokers serve, and all replicas of all topics are in sync."""
    seen = stage.cluster.ask("/v1/brokers")
    serve = {one["id"] for one in seen["brokers"] if not one["fenced"] and not one["stopping"]}
    return serve == stage.cluster.brokers.keys() and not seen["partitions"]["under-replicated"]


def _builds(stage: Stage) -> Builds:
    if stage.builds is None:
        raise ChaosFailed("there is no other build")
    return stage.builds
