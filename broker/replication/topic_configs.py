"""Topic configs: each topic's settings, from its overrides and this node's dynamic defaults.

Topics with the same overrides share one object, as there may be thousands of them. Called by the replica
manager, also in threads.
"""

from collections.abc import Callable, Mapping

from tierlog.broker.replication.dynamic_settings import settings_of
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TopicConfig
from tierlog.metadata.controller.rules import ClusterDefaults, cluster_defaults
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

CACHED_MAX = 1000

Sources = tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str], ClusterDefaults]


class TopicConfigs:
    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._cache: dict[Sources, TopicConfig] = {}

    def of(self, image: ClusterImage, topic: str) -> TopicConfig:
        overrides = image.topic_overrides(topic)
        of_node = image.overrides(ConfigScope.BROKER, str(self._settings.node_id))
        of_cluster = image.overrides(ConfigScope.CLUSTER, "")
        sources = overrides, of_node, of_cluster, cluster_defaults(image)
        config = self._cache.get(sources)
        if config is None:
            if len(self._cache) >= CACHED_MAX:
                self._cache = {}
            config = self._cache[sources] = settings_of(image, self._settings).topic_config(overrides)
        return config

    def changed(self, old: ClusterImage, new: ClusterImage) -> Callable[[str], bool]:
        """Returns a predicate: whether the settings of a topic, by name, may differ between the images."""
        before, now = (settings_of(image, self._settings).topic_defaults() for image in (old, new))
        defaults_differ = before != now
        return lambda topic: defaults_differ or old.topic_overrides(topic) is not new.topic_overrides(topic)
