"""Settings for DescribeConfigs and CreateTopics responses: effective value, source, synonyms."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tierlog.config.definitions import Setting, SettingType
from tierlog.config.dynamic import DYNAMIC_SETTINGS, QUORUM_SETTINGS, dynamic_setting
from tierlog.config.groups import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS, OWN_DEFAULT
from tierlog.config.kafka_names import INERT_SETTINGS
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.config.topic_defaults import TOPIC_DEFAULTS
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope


class Source(IntEnum):
    """Kafka's config sources."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_CLUSTER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class Described:
    """`synonyms`: the values that are set, in order of precedence; the first is effective. `lists_default`:
    responses contain the default."""

    setting: Setting
    synonyms: tuple[Synonym, ...]
    read_only: bool
    lists_default: bool = True

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
    def listed_synonyms(self) -> tuple[Synonym, ...]:
        if self.lists_default:
            return self.synonyms
        return tuple(one for one in self.synonyms if one.source is not Source.DEFAULT)

    @property
    def is_sensitive(self) -> bool:
        return self.setting.type in (SettingType.PASSWORD, SettingType.UNKNOWN)


NODE_SETTING_OF_TOPIC_SETTING = {topic_name: name for name, topic_name in TOPIC_DEFAULTS.items()}


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
        if name in NODE_SETTING_OF_TOPIC_SETTING:
            node_name = NODE_SETTING_OF_TOPIC_SETTING[name]
            node_synonyms = _node_synonyms(settings, image, node_name)
            if node_name in QUORUM_SETTINGS:  # a broker's own value has no effect on topics
                node_synonyms = [one for one in node_synonyms if one.source is not Source.DYNAMIC_BROKER]
            synonyms += node_synonyms
        else:
            synonyms.append(Synonym(name, setting.text(setting.default), Source.DEFAULT))
        described.append(Described(setting, tuple(synonyms), read_only=False))
    return described


def describe_node(settings: NodeSettings, image: ClusterImage) -> list[Described]:
    """Every setting of this node. Settings read at startup are read-only, and so are unknown names that were
    set."""
    node_overrides = image.overrides(ConfigScope.BROKER, str(settings.node_id))
    cluster_overrides = _cluster_overrides(image)
    unknown = sorted({*node_overrides, *cluster_overrides} - NODE_SETTINGS.keys() - INERT_SETTINGS.keys())
    return [
        Described(
            setting, tuple(_node_synonyms(settings, image, name)), read_only=name not in DYNAMIC_SETTINGS
        )
        for name, setting in NODE_SETTINGS.items()
    ] + [
        Described(
            dynamic_setting(name),
            tuple(_dynamic(settings, image, name) + _default(name)),
            read_only=name not in INERT_SETTINGS,
        )
        for name in (*INERT_SETTINGS, *unknown)
    ]


def _cluster_overrides(image: ClusterImage) -> Mapping[str, str]:
    return image.overrides(ConfigScope.CLUSTER, "")


def _default(name: str) -> list[Synonym]:
    setting = INERT_SETTINGS.get(name)
    return [] if setting is None else [Synonym(name, setting.text(setting.default), Source.DEFAULT)]


def _dynamic(settings: NodeSettings, image: ClusterImage, name: str) -> list[Synonym]:
    sources = (
        (image.overrides(ConfigScope.BROKER, str(settings.node_id)), Source.DYNAMIC_BROKER),
        (_cluster_overrides(image), Source.DYNAMIC_CLUSTER),
    )
    return [Synonym(name, of[name], source) for of, source in sources if name in of]


def _node_synonyms(settings: NodeSettings, image: ClusterImage, name: str) -> list[Synonym]:
    setting = NODE_SETTINGS[name]
    synonyms = _dynamic(settings, image, name) if name in DYNAMIC_SETTINGS else []
    if name in settings.explicit:
        value = setting.text(getattr(settings, name.replace(".", "_")))
        synonyms.append(Synonym(name, value, Source.STATIC_BROKER))
    synonyms.append(Synonym(name, setting.text(setting.default), Source.DEFAULT))
    return synonyms


def describe_cluster(of_cluster: Mapping[str, str]) -> list[Described]:
    """Dynamic settings for all nodes."""
    return [
        Described(
            dynamic_setting(name),
            (Synonym(name, value, Source.DYNAMIC_CLUSTER),),
            read_only=name not in DYNAMIC_SETTINGS and name not in INERT_SETTINGS,
        )
        for name, value in sorted(of_cluster.items())
    ]


def describe_group(
    settings: NodeSettings, image: ClusterImage, overrides: Mapping[str, str]
) -> list[Described]:
    """Every setting of a group with these overrides; the group need not exist."""
    described = []
    for name, setting in GROUP_SETTINGS.items():
        synonyms = [Synonym(name, overrides[name], Source.GROUP)] if name in overrides else []
        node_name = name if name in OWN_DEFAULT else f"group.{name}"
        if node_name in NODE_SETTINGS:
            synonyms += _node_synonyms(settings, image, node_name)
        else:
            synonyms.append(Synonym(node_name, setting.text(setting.default), Source.DEFAULT))
        described.append(Described(setting, tuple(synonyms), read_only=False))
    return described


def describe_client_metrics(overrides: Mapping[str, str]) -> list[Described]:
    """Every setting of a client metrics subscription with these overrides; it need not exist."""
    described = []
    for name, setting in CLIENT_METRICS_SETTINGS.items():
        default = Synonym(name, setting.text(setting.default), Source.DEFAULT)
        own = [Synonym(name, overrides[name], Source.CLIENT_METRICS)] if name in overrides else []
        described.append(Described(setting, (*own, default), read_only=False, lists_default=False))
    return described
