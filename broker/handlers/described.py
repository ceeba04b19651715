"""Settings as DescribeConfigs and CreateTopics tell them: effective value, where it comes from, synonyms."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tierlog.broker.settings.definitions import Setting, SettingType
from tierlog.broker.settings.node import NODE_SETTINGS, NodeSettings
from tierlog.broker.settings.running import RUN_TIME_SETTINGS
from tierlog.broker.settings.topic import TOPIC_DEFAULTS, TOPIC_SETTINGS
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope


class Source(IntEnum):
    """Kafka's numbers of where a value comes from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """`synonyms`: every place that gives the setting a value, the one that counts first."""

    setting: Setting
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def value(self) -> str | None:
        return None if self.is_sensitive else self.synonyms[0].value

    @property
    def source(self) -> Source:
        return self.synonyms[0].source

    @property
    def is_sensitive(self) -> bool:
        return self.setting.type is SettingType.PASSWORD


NODE_NAME_OF = {topic_name: name for name, topic_name in TOPIC_DEFAULTS.items()}


def describe_topic(
    settings: NodeSettings, image: ClusterImage, overrides: Mapping[str, str]
) -> list[Described]:
    """Every setting of a topic with these overrides."""
    described = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms: list[Synonym] = []
        if name in overrides:
            value = setting.text(setting.parse(overrides[name]))  # " compact , delete " reads compact,delete
            synonyms.append(Synonym(name, value, Source.TOPIC))
        if name in NODE_NAME_OF:
            synonyms += _of_node(settings, image, NODE_NAME_OF[name])
        else:
            synonyms.append(Synonym(name, setting.text(setting.default), Source.DEFAULT))
        described.append(Described(setting, tuple(synonyms), read_only=False))
    return described


def describe_node(settings: NodeSettings, image: ClusterImage) -> list[Described]:
    """Every setting of this node. Those that it reads at its start are read-only."""
    return [
        Described(setting, tuple(_of_node(settings, image, name)), read_only=name not in RUN_TIME_SETTINGS)
        for name, setting in NODE_SETTINGS.items()
    ]


def _of_node(settings: NodeSettings, image: ClusterImage, name: str) -> list[Synonym]:
    setting = NODE_SETTINGS[name]
    synonyms: list[Synonym] = []
    if name in RUN_TIME_SETTINGS:
        for scope, of, source in (
            (ConfigScope.BROKER, str(settings.node_id), Source.DYNAMIC_BROKER),
            (ConfigScope.CLUSTER, "", Source.DYNAMIC_CLUSTER),
        ):
            if (value := image.overrides(scope, of).get(name)) is not None:
                synonyms.append(Synonym(name, value, source))
    if name in settings.explicit:
        value = setting.text(getattr(settings, name.replace(".", "_")))
        synonyms.append(Synonym(name, value, Source.STATIC_BROKER))
    synonyms.append(Synonym(name, setting.text(setting.default), Source.DEFAULT))
    return synonyms


def describe_cluster(of_cluster: Mapping[str, str]) -> list[Described]:
    """What was set for all nodes since they started."""
    return [
        Described(NODE_SETTINGS[name], (Synonym(name, value, Source.DYNAMIC_CLUSTER),), read_only=False)
        for name, value in sorted(of_cluster.items())
        if name in RUN_TIME_SETTINGS
    ]
