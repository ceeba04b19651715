"""Topic settings: Kafka's names, defaults and meaning, as one frozen value per topic."""

from collections.abc import Mapping
from dataclasses import dataclass

from tierlog.config.definitions import InvalidSetting, Setting, SettingType, Value, find_setting

INT, LONG, BOOLEAN = SettingType.INT, SettingType.LONG, SettingType.BOOLEAN
STRING, LIST, DOUBLE = SettingType.STRING, SettingType.LIST, SettingType.DOUBLE
MAX_LONG = 2**63 - 1
DEFAULT_TIMESTAMP_AFTER_MAX_MS = 3_600_000  # KIP-1030
NO_EFFECT_YET = " Checked, kept and shown; it has no effect yet."
USE_TOTAL_RETENTION = -2  # local.retention.*: as retention.* (KIP-405)
ALL_REPLICAS = "*"
_REPLICA = r"\*|\d+:\d+"


def _setting(name: str, type: SettingType, default: Value, doc: str, **bounds: object) -> Setting:
    return Setting(name=name, type=type, default=default, doc=doc, **bounds)  # type: ignore[arg-type]


TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _setting(
            "cleanup.policy",
            LIST,
            ("delete",),
            "What retention does: delete old segments, compact by key, or both.",
            choices=("delete", "compact"),
        ),
        _setting(
            "compression.type",
            STRING,
            "producer",
            "The codec of stored batches; `producer` keeps what was sent.",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        ),
        _setting(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long a tombstone of a compacted topic is kept.",
            least=0,
        ),
        _setting("file.delete.delay.ms", LONG, 60_000, "How long a deleted segment's file is kept.", least=0),
        _setting(
            "flush.messages",
            LONG,
            MAX_LONG,
            "Records appended before an fsync; 1 makes every acknowledged write durable.",
            least=1,
        ),
        _setting("flush.ms", LONG, MAX_LONG, "Longest time before an fsync.", least=0),
        _setting(
            "follower.replication.throttled.replicas",
            LIST,
            (),
            "Replicas that fetch no faster than their broker's follower.replication.throttled.rate while "
            "they are not in sync: partition:broker, or * for all (KIP-73).",
            form=_REPLICA,
        ),
        _setting(
            "index.interval.bytes",
            INT,
            4096,
            "Bytes of log between two entries of the offset index.",
            least=0,
        ),
        _setting(
            "leader.replication.throttled.replicas",
            LIST,
            (),
            "Replicas that send no faster than their broker's leader.replication.throttled.rate to followers "
            "that are not in sync: partition:broker, or * for all (KIP-73).",
            form=_REPLICA,
        ),
        _setting(
            "local.retention.bytes",
            LONG,
            USE_TOTAL_RETENTION,
            "Bytes per partition kept on local disk once tiered; -2: as retention.bytes.",
            least=-2,
        ),
        _setting(
            "local.retention.ms",
            LONG,
            USE_TOTAL_RETENTION,
            "How long tiered data also stays on local disk; -2: as retention.ms.",
            least=-2,
        ),
        _setting(
            "max.compaction.lag.ms",
            LONG,
            MAX_LONG,
            "Longest time a record stays uncompacted.",
            least=1,
        ),
        _setting("max.message.bytes", INT, 1_048_588, "The largest record batch accepted.", least=0),
        _setting(
            "message.timestamp.after.max.ms",
            LONG,
            DEFAULT_TIMESTAMP_AFTER_MAX_MS,
            "How far a record's timestamp may lie in the future.",
            least=0,
        ),
        _setting(
            "message.timestamp.before.max.ms",
            LONG,
            MAX_LONG,
            "How far a record's timestamp may lie in the past.",
            least=0,
        ),
        _setting(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Whose timestamp a record keeps.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _setting(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Share of a log that must be dirty before it is compacted.",
            least=0,
            most=1,
        ),
        _setting(
            "min.compaction.lag.ms",
            LONG,
            0,
            "Shortest time a record stays uncompacted.",
            least=0,
        ),
        _setting(
            "min.insync.replicas",
            INT,
            1,
            "Replicas that must hold an acks=all write before it is acknowledged.",
            least=1,
        ),
        _setting(
            "preallocate",
            BOOLEAN,
            False,
            "Reserve segment.bytes on the disk with a segment's first batch; the file's size stays as it is.",
        ),
        _setting(
            "remote.storage.enable", BOOLEAN, False, "Upload rolled segments to the object store (KIP-405)."
        ),
        _setting(
            "remote.log.copy.disable",
            BOOLEAN,
            False,
            "Stop uploading; what is remote stays readable (KIP-950).",
        ),
        _setting(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "Allow tiering to be switched off (KIP-950); what is remote goes with the topic, not before.",
        ),
        _setting("retention.bytes", LONG, -1, "Bytes per partition over both tiers; -1: no limit.", least=-1),
        _setting(
            "retention.ms",
            LONG,
            604_800_000,
            "How long records are kept over both tiers; -1: for ever.",
            least=-1,
        ),
        _setting("segment.bytes", INT, 1_073_741_824, "Size at which a segment is rolled.", least=14),
        _setting(
            "segment.index.bytes", INT, 10_485_760, "Largest size of a segment's offset index.", least=4
        ),
        _setting(
            "segment.jitter.ms",
            LONG,
            0,
            "Random part taken off segment.ms, so that segments do not roll all at once.",
            least=0,
        ),
        _setting("segment.ms", LONG, 604_800_000, "Age at which a segment is rolled.", least=1),
        _setting(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Whether a replica that may have lost data can lead.",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The typed settings of one topic; field names are Kafka's with `_` for `.`."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = USE_TOTAL_RETENTION
    local_retention_ms: int = USE_TOTAL_RETENTION
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = DEFAULT_TIMESTAMP_AFTER_MAX_MS
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @property
    def effective_local_retention_ms(self) -> int:
        given = self.local_retention_ms
        return self.retention_ms if given == USE_TOTAL_RETENTION else given

    @property
    def effective_local_retention_bytes(self) -> int:
        given = self.local_retention_bytes
        return self.retention_bytes if given == USE_TOTAL_RETENTION else given

    @classmethod
    def parse(cls, overrides: Mapping[str, str]) -> "TopicConfig":
        """The settings of a topic from its overrides (Kafka name -> text); raises InvalidSetting."""
        values = {
            name.replace(".", "_"): find_setting(TOPIC_SETTINGS, name).parse(text)
            for name, text in overrides.items()
        }
        return cls(**values)  # type: ignore[arg-type]


def check_local_retention(config: TopicConfig, *, prefix: str = "") -> None:
    """KIP-405: local retention is a part of the total; -1 means for ever, -2 as the total. `prefix`: of the
    settings' names, if they are a node's. Raises InvalidSetting."""
    for name, local, total in (
        ("retention.ms", config.local_retention_ms, config.retention_ms),
        ("retention.bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local != USE_TOTAL_RETENTION and total != -1 and (local == -1 or local > total):
            raise InvalidSetting(
                f"{prefix}local.{name}: {local} must not be above {prefix}{name}, which is {total}"
            )


TOPIC_DEFAULTS: dict[str, str] = {
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.cleanup.policy": "cleanup.policy",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.preallocate": "preallocate",
    "message.max.bytes": "max.message.bytes",
    "compression.type": "compression.type",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Node setting -> the topic setting whose default it is."""
