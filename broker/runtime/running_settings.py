"""This node's settings as they are now: those it was started with, and what was set since (KIP-226).

Who needs them at every step asks for `now`; who keeps something that is made of them listens. Topics have
theirs by `topic_configs`, throttles by `quotas.replication`: they go by topics too. Fed with each committed
image by the composition root.
"""

from collections.abc import Callable

import structlog

from tierlog.broker.settings.node import NODE_SETTINGS, NodeSettings
from tierlog.broker.settings.running import RUN_TIME_SETTINGS, settings_now
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

_log = structlog.get_logger("tierlog.settings")


class RunningSettings:
    def __init__(self, at_start: NodeSettings) -> None:
        self._at_start = at_start
        self.now = at_start
        self.listeners: list[Callable[[NodeSettings], None]] = []
        """Called with the new settings when some have changed."""

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.configs is new.configs:
            return
        before, self.now = self.now, settings_of(new, self._at_start)
        if changed := _differences(before, self.now):
            _log.info("settings have changed", **changed)
            for listener in self.listeners:
                listener(self.now)


def settings_of(image: ClusterImage, at_start: NodeSettings) -> NodeSettings:
    of_node = image.overrides(ConfigScope.BROKER, str(at_start.node_id))
    return settings_now(at_start, image.overrides(ConfigScope.CLUSTER, ""), of_node)


def _differences(before: NodeSettings, now: NodeSettings) -> dict[str, str]:
    """Name -> new value, as text."""
    return {
        name: NODE_SETTINGS[name].text(value)
        for name in sorted(RUN_TIME_SETTINGS)
        for value in [getattr(now, name.replace(".", "_"))]
        if value != getattr(before, name.replace(".", "_"))
    }
