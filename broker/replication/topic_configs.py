"""The settings of topics: their overrides, then this node's defaults, which may change while it runs.

One object for all topics with the same overrides, as there may be thousands. Asked by the replica manager,
also in threads.
"""

from collections.abc import Callable, Mapping

from tierlog.broker.replication.dynamic_settings import settings_of
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller.rules import ClusterDefaults, cluster_defaults
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

REMEMBERED_MAX = 1000

Sources = tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str], ClusterDefaults]


class TopicConfigs:
    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._known: dict[Sources, TopicConfig] = {}

    def of(self, image: ClusterImage, topic: str) -> TopicConfig:
        overrides = image.topic_overrides(topic)
        of_node = image.overrides(ConfigScope.BROKER, str(self._settings.node_id))
        of_cluster = image.overrides(ConfigScope.CLUSTER, "")
        sources = overrides, of_node, of_cluster, cluster_defaults(image)
        found = self._known.get(sources)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known = {}
            found = self._known[sources] = settings_of(image, self._settings).topic_config(overrides)
        return found

    def changed(self, old: ClusterImage, new: ClusterImage) -> Callable[[str], bool]:
        """Whether a topic, by its name, may have other settings in the new image."""
        before, now = (settings_of(image, self._settings).topic_defaults() for image in (old, new))
        all_may = before != now
        return lambda topic: all_may or old.topic_overrides(topic) is not new.topic_overrides(topic)
