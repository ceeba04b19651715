"""Dynamic settings: the node's and the cluster's values apply, and listeners are called."""

from itertools import pairwise

from tierlog.broker.replication.dynamic_settings import DynamicSettings
from tierlog.config.node import NodeSettings
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage

EMPTY = ClusterImage(cluster_id="c")


def configured(
    image: ClusterImage, scope: r.ConfigScope, name: str, key: str, value: str | None
) -> ClusterImage:
    return evolve_all(image, [r.ConfigRecord(scope=scope, name=name, key=key, value=value)])


def test_listeners_are_called_only_when_a_setting_of_this_node_changes() -> None:
    running = DynamicSettings(settings_from({"node.id": "2"}))
    reported: list[NodeSettings] = []
    running.listeners.append(reported.append)
    of_all = configured(EMPTY, r.ConfigScope.CLUSTER, "", "max.connections", "5")
    other = configured(of_all, r.ConfigScope.BROKER, "1", "max.connections", "6")
    of_topic = configured(other, r.ConfigScope.TOPIC, "t", "retention.ms", "6")
    own = configured(of_topic, r.ConfigScope.BROKER, "2", "max.connections", "7")
    back = configured(own, r.ConfigScope.BROKER, "2", "max.connections", None)
    images = [EMPTY, of_all, other, of_topic, own, back]
    for old, new in pairwise(images):
        running.follow(old, new)
    assert [settings.max_connections for settings in reported] == [5, 7, 5]
    assert running.now.max_connections == 5
