"""Dynamic settings: this node's current settings, from its start and the cluster image (KIP-226).

Read `now` for each use, or add a listener to react to changes. Settings of topics come from `topic_configs`,
and replication throttles from `quotas.replication`, as both also depend on topics. app.py calls `follow` with
each committed image.
"""

from collections.abc import Callable, Mapping

import structlog
from immutables import Map

from tierlog.base.safeguards import safeguard
from tierlog.config.dynamic import DYNAMIC_SETTINGS, effective_settings, ignored_settings
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.metadata.controller.rules import MIN_IN_SYNC, UNCLEAN, cluster_defaults
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

_log = structlog.get_logger("tierlog.settings")


class DynamicSettings:
    def __init__(self, at_start: NodeSettings) -> None:
        self._at_start = at_start
        self.now = at_start
        self._ignored: dict[str, tuple[str, str]] = {}
        self.listeners: list[Callable[[NodeSettings], None]] = []
        """Called with the new settings after some have changed."""

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        before, self.now = self.now, settings_of(new, self._at_start)
        changed = _differences(before, self.now)
        self._warn(new.overrides(ConfigScope.BROKER, str(self._at_start.node_id)))
        if changed:
            _log.info("settings.changed", **changed)
            for listener in self.listeners:
                listener(self.now)

    def _warn(self, of_node: Mapping[str, str]) -> None:
        ignored = ignored_settings(self._at_start, self.now, of_node)
        if ignored != self._ignored:
            self._ignored = ignored
            for name, (own, counts) in ignored.items():
                _log.warning(
                    "settings.overridden",
                    setting=name,
                    here=own,
                    cluster=counts,
                )


@safeguard("min.insync.replicas is a cluster-wide setting")
def settings_of(image: ClusterImage, at_start: NodeSettings) -> NodeSettings:
    of_node = image.overrides(ConfigScope.BROKER, str(at_start.node_id))
    return effective_settings(at_start, of_cluster(image), of_node)


def of_cluster(image: ClusterImage) -> Map[str, str]:
    """The cluster-wide settings. min.insync.replicas and unclean.leader.election.enable always have the
    controller's values, as a leader must commit by the same number as the controller elects by (KIP-966)."""
    least, unclean = cluster_defaults(image)
    texts = {MIN_IN_SYNC: str(least), UNCLEAN: str(unclean).lower()}
    return image.overrides(ConfigScope.CLUSTER, "").update(texts)


def _differences(before: NodeSettings, now: NodeSettings) -> dict[str, str]:
    """Changed settings: name to new value, as text."""
    return {
        name: NODE_SETTINGS[name].text(value)
        for name in sorted(DYNAMIC_SETTINGS)
        for value in [getattr(now, name.replace(".", "_"))]
        if value != getattr(before, name.replace(".", "_"))
    }
