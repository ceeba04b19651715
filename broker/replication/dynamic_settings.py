"""This node's settings as they are now: those it was started with, and what was set since (KIP-226).

Who needs them at every step asks for `now`; who keeps something that is made of them listens. Topics have
theirs by `topic_configs`, throttles by `quotas.replication`: they go by topics too. Fed with each committed
image by the composition root.
"""

from collections.abc import Callable, Mapping

import structlog
from immutables import Map

from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.running import RUN_TIME_SETTINGS, settings_now, without_effect
from tierlog.metadata.controller.rules import MIN_IN_SYNC, UNCLEAN, cluster_defaults
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

_log = structlog.get_logger("tierlog.settings")


class RunningSettings:
    def __init__(self, at_start: NodeSettings) -> None:
        self._at_start = at_start
        self.now = at_start
        self._ignored: dict[str, tuple[str, str]] = {}
        self.listeners: list[Callable[[NodeSettings], None]] = []
        """Called with the new settings when some have changed."""

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        before, self.now = self.now, settings_of(new, self._at_start)
        changed = _differences(before, self.now)
        self._warn(new.overrides(ConfigScope.BROKER, str(self._at_start.node_id)))
        if changed:
            _log.info("settings have changed", **changed)
            for listener in self.listeners:
                listener(self.now)

    def _warn(self, of_node: Mapping[str, str]) -> None:
        ignored = without_effect(self._at_start, self.now, of_node)
        if ignored != self._ignored:
            self._ignored = ignored
            for name, (own, counts) in ignored.items():
                _log.warning(
                    "a setting of this node has no effect: the cluster's value counts; change that with"
                    " `tierlog broker alter --config` or `kafka-configs --entity-type brokers"
                    " --entity-default`, or take the node's own value out of its file and its settings",
                    setting=name,
                    here=own,
                    cluster=counts,
                )


def settings_of(image: ClusterImage, at_start: NodeSettings) -> NodeSettings:
    of_node = image.overrides(ConfigScope.BROKER, str(at_start.node_id))
    return settings_now(at_start, of_cluster(image), of_node)


def of_cluster(image: ClusterImage) -> Map[str, str]:
    """What counts for all brokers, with min.insync.replicas and unclean election as the controller has them:
    a leader must commit by the controller's number (KIP-966)."""
    least, unclean = cluster_defaults(image)
    texts = {MIN_IN_SYNC: str(least), UNCLEAN: str(unclean).lower()}
    return image.overrides(ConfigScope.CLUSTER, "").update(texts)


def _differences(before: NodeSettings, now: NodeSettings) -> dict[str, str]:
    """Name -> new value, as text."""
    return {
        name: NODE_SETTINGS[name].text(value)
        for name in sorted(RUN_TIME_SETTINGS)
        for value in [getattr(now, name.replace(".", "_"))]
        if value != getattr(before, name.replace(".", "_"))
    }
