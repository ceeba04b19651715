"""Defaults of topic settings: the settings of a node that apply to topics without a value of their own.

Base class of `NodeSettings`. Most have the documentation of the topic setting.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tierlog.config.topic import TOPIC_SETTINGS, TopicConfig


def _topic_default(topic_setting: str, doc: str = "", **bounds: Any) -> Any:
    """The default of a topic setting, with its type and, unless given, its documentation and bounds."""
    of_topic = TOPIC_SETTINGS[topic_setting]
    setting = replace(of_topic, doc=doc or f"{of_topic.doc} For topics without {topic_setting}.", **bounds)
    return field(default=of_topic.default, metadata={"setting": setting, "topic_setting": topic_setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Kafka's names of the defaults, with `_` for `.`."""

    log_segment_bytes: int = _topic_default("segment.bytes", minimum=1)
    log_roll_ms: int = _topic_default("segment.ms")
    log_roll_jitter_ms: int = _topic_default("segment.jitter.ms")
    log_retention_ms: int = _topic_default("retention.ms")
    log_retention_bytes: int = _topic_default("retention.bytes")
    log_local_retention_ms: int = _topic_default("local.retention.ms")
    log_local_retention_bytes: int = _topic_default("local.retention.bytes")
    remote_log_copy_max_lag_ms: int = _topic_default("remote.log.copy.max.lag.ms")
    remote_log_disk_pressure_policy: str = _topic_default("remote.log.disk.pressure.policy")
    log_cleanup_policy: tuple[str, ...] = _topic_default("cleanup.policy")
    log_index_interval_bytes: int = _topic_default("index.interval.bytes")
    log_index_size_max_bytes: int = _topic_default("segment.index.bytes")
    log_flush_interval_messages: int = _topic_default("flush.messages")
    log_flush_interval_ms: int = _topic_default("flush.ms")
    log_segment_delete_delay_ms: int = _topic_default("file.delete.delay.ms")
    log_message_timestamp_type: str = _topic_default("message.timestamp.type")
    log_message_timestamp_after_max_ms: int = _topic_default("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = _topic_default("message.timestamp.before.max.ms")
    log_cleaner_delete_retention_ms: int = _topic_default("delete.retention.ms")
    log_cleaner_min_cleanable_ratio: float = _topic_default("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _topic_default("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: int = _topic_default("max.compaction.lag.ms")
    log_preallocate: bool = _topic_default("preallocate")
    message_max_bytes: int = _topic_default("max.message.bytes")
    compression_type: str = _topic_default("compression.type")
    min_insync_replicas: int = _topic_default(
        "min.insync.replicas",
        "Minimum number of in-sync replicas for a write with acks=all. Default of the topic setting for "
        "the whole cluster (KIP-966): a new cluster takes it from its first broker, and ignores the value "
        "in a broker's file afterwards. Set 2 for three replicas.",
    )
    unclean_leader_election_enable: bool = _topic_default(
        "unclean.leader.election.enable",
        "Whether a replica that may lack records can be elected leader if no other can. Default of the "
        "topic setting for the whole cluster, kept like min.insync.replicas. A value set for one broker is "
        "kept and shown, but has no effect. Set it only where availability is worth the loss of "
        "acknowledged records.",
    )

    explicit: frozenset[str] = field(default=frozenset())
    """Names that are set, as opposed to defaults; DescribeConfigs reports the difference."""

    def topic_defaults(self) -> dict[str, str]:
        """Topic setting -> text, for the topic defaults that are set on this node."""
        return {
            topic_name: TOPIC_SETTINGS[topic_name].text(getattr(self, name.replace(".", "_")))
            for name, topic_name in TOPIC_DEFAULTS.items()
            if name in self.explicit
        }

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The topic's overrides, then this node's defaults, then Kafka's. Raises InvalidSetting."""
        return TopicConfig.parse({**self.topic_defaults(), **overrides})


TOPIC_DEFAULTS: dict[str, str] = {
    item.name.replace("_", "."): item.metadata["topic_setting"]
    for item in fields(TopicDefaults)
    if "topic_setting" in item.metadata
}
"""Node setting -> topic setting that it is the default of."""
