"""The settings of topics: one object for all topics with the same overrides, as there may be thousands.

Asked by the replica manager, also in threads.
"""

from collections.abc import Mapping

from tierlog.broker.settings.node import NodeSettings
from tierlog.broker.settings.topic import TopicConfig
from tierlog.metadata.image import ClusterImage

REMEMBERED_MAX = 1000


class TopicConfigs:
    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._known: dict[Mapping[str, str], TopicConfig] = {}  # by the overrides

    def of(self, image: ClusterImage, topic: str) -> TopicConfig:
        overrides = image.topic_overrides(topic)
        found = self._known.get(overrides)
        if found is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known = {}
            found = self._known[overrides] = self._settings.topic_config(overrides)
        return found
