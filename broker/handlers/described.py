"""Settings as DescribeConfigs and CreateTopics tell them: effective value, where it comes from, synonyms."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tierlog.broker.settings.definitions import Setting, SettingType
from tierlog.broker.settings.node import NODE_SETTINGS, RUN_TIME_SETTINGS, NodeSettings
from tierlog.broker.settings.topic import TOPIC_DEFAULTS, TOPIC_SETTINGS


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


def describe_topic(settings: NodeSettings, overrides: Mapping[str, str]) -> list[Described]:
    """Every setting of a topic with these overrides."""
    described = []
    for name, setting in TOPIC_SETTINGS.items():
        synonyms = []
        if name in overrides:
            value = setting.text(setting.parse(overrides[name]))  # " compact , delete " reads compact,delete
            synonyms.append(Synonym(name, value, Source.TOPIC))
        node_name = NODE_NAME_OF.get(name)
        if node_name is not None and node_name in settings.explicit:
            value = setting.text(getattr(settings, node_name.replace(".", "_")))
            synonyms.append(Synonym(node_name, value, Source.STATIC_BROKER))
        synonyms.append(Synonym(node_name or name, setting.text(setting.default), Source.DEFAULT))
        described.append(Described(setting, tuple(synonyms), read_only=False))
    return described


def describe_node(
    settings: NodeSettings, of_node: Mapping[str, str], of_cluster: Mapping[str, str]
) -> list[Described]:
    """Every setting of this node, with what was set since its start for it or for all. Few can be: the others
    are read at start, hence read-only.
    """
    described = []
    for name, setting in NODE_SETTINGS.items():
        synonyms = []
        dynamic = name in RUN_TIME_SETTINGS
        if dynamic and name in of_node:
            synonyms.append(Synonym(name, of_node[name], Source.DYNAMIC_BROKER))
        if dynamic and name in of_cluster:
            synonyms.append(Synonym(name, of_cluster[name], Source.DYNAMIC_CLUSTER))
        if name in settings.explicit:
            value = setting.text(getattr(settings, name.replace(".", "_")))
            synonyms.append(Synonym(name, value, Source.STATIC_BROKER))
        synonyms.append(Synonym(name, setting.text(setting.default), Source.DEFAULT))
        described.append(Described(setting, tuple(synonyms), read_only=not dynamic))
    return described


def describe_cluster(of_cluster: Mapping[str, str]) -> list[Described]:
    """What was set for all nodes since they started."""
    return [
        Described(NODE_SETTINGS[name], (Synonym(name, value, Source.DYNAMIC_CLUSTER),), read_only=False)
        for name, value in sorted(of_cluster.items())
        if name in RUN_TIME_SETTINGS
    ]
