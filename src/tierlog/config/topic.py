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
            "What retention does with old segments: delete them, compact the log by key, or both.",
            choices=("delete", "compact"),
        ),
        _setting(
            "compression.type",
            STRING,
            "producer",
            "Codec of stored batches. `producer` keeps the producer's codec.",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        ),
        _setting(
            "delete.retention.ms",
            LONG,
            86_400_000,
            "How long the tombstones of a compacted topic are kept.",
            least=0,
        ),
        _setting(
            "file.delete.delay.ms", LONG, 60_000, "How long the file of a deleted segment is kept.", least=0
        ),
        _setting(
            "flush.messages",
            LONG,
            MAX_LONG,
            "Number of records after which the log is flushed (fsync). 1 makes every acknowledged write "
            "durable on its own disk. By default replication gives durability, as in Kafka.",
            least=1,
        ),
        _setting(
            "flush.ms", LONG, MAX_LONG, "Maximum time before appended records are flushed (fsync).", least=0
        ),
        _setting(
            "follower.replication.throttled.replicas",
            LIST,
            (),
            "Replicas that follower.replication.throttled.rate of their broker limits while they are not "
            "in sync: partition:broker, ... or * for all (KIP-73).",
            form=_REPLICA,
        ),
        _setting(
            "index.interval.bytes",
            INT,
            4096,
            "Bytes of the log between two entries of its offset index.",
            least=0,
        ),
        _setting(
            "leader.replication.throttled.replicas",
            LIST,
            (),
            "Replicas whose leader limits what it sends to followers that are not in sync by "
            "leader.replication.throttled.rate: partition:broker, ... or * for all (KIP-73).",
            form=_REPLICA,
        ),
        _setting(
            "local.retention.bytes",
            LONG,
            USE_TOTAL_RETENTION,
            "Maximum bytes of tiered data that each partition keeps on local disk as well. -2: as "
            "retention.bytes.",
            least=-2,
        ),
        _setting(
            "local.retention.ms",
            LONG,
            USE_TOTAL_RETENTION,
            "How long tiered data is kept on local disk as well. -2: as retention.ms.",
            least=-2,
        ),
        _setting(
            "max.compaction.lag.ms",
            LONG,
            MAX_LONG,
            "Maximum time for which a record stays uncompacted.",
            least=1,
        ),
        _setting(
            "max.message.bytes",
            INT,
            1_048_588,
            "Maximum size of a record batch, after compression if it is compressed.",
            least=0,
        ),
        _setting(
            "message.timestamp.after.max.ms",
            LONG,
            DEFAULT_TIMESTAMP_AFTER_MAX_MS,
            "How far a record's timestamp may be ahead of the broker's clock.",
            least=0,
        ),
        _setting(
            "message.timestamp.before.max.ms",
            LONG,
            MAX_LONG,
            "How far a record's timestamp may be behind the broker's clock.",
            least=0,
        ),
        _setting(
            "message.timestamp.type",
            STRING,
            "CreateTime",
            "Whether records keep the time of their creation or get the time of their append.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _setting(
            "min.cleanable.dirty.ratio",
            DOUBLE,
            0.5,
            "Minimum ratio of uncompacted to all bytes of a log before it is compacted.",
            least=0,
            most=1,
        ),
        _setting(
            "min.compaction.lag.ms",
            LONG,
            0,
            "Minimum time for which a record stays uncompacted.",
            least=0,
        ),
        _setting(
            "min.insync.replicas",
            INT,
            1,
            "Minimum number of in-sync replicas for a write with acks=all. With fewer, producers get "
            "NOT_ENOUGH_REPLICAS.",
            least=1,
        ),
        _setting(
            "preallocate",
            BOOLEAN,
            False,
            "Whether segment.bytes of disk space is reserved when a segment gets its first batch. The "
            "file's size does not change.",
        ),
        _setting(
            "remote.storage.enable",
            BOOLEAN,
            False,
            "Whether rolled segments are copied to the object store (KIP-405).",
        ),
        _setting(
            "remote.log.copy.disable",
            BOOLEAN,
            False,
            "Whether copying to the object store is stopped. Remote data stays readable (KIP-950).",
        ),
        _setting(
            "remote.log.delete.on.disable",
            BOOLEAN,
            False,
            "Whether tiering may be switched off (KIP-950). Remote data is deleted with the topic, not "
            "before.",
        ),
        _setting(
            "retention.bytes",
            LONG,
            -1,
            "Maximum bytes of each partition, local and remote together. Older segments are deleted. -1: "
            "no limit.",
            least=-1,
        ),
        _setting(
            "retention.ms",
            LONG,
            604_800_000,
            "How long records are kept, locally or remotely. -1: no limit.",
            least=-1,
        ),
        _setting("segment.bytes", INT, 1_073_741_824, "Size at which a segment is rolled.", least=14),
        _setting(
            "segment.index.bytes", INT, 10_485_760, "Maximum size of a segment's offset index.", least=4
        ),
        _setting(
            "segment.jitter.ms",
            LONG,
            0,
            "Maximum random time that is subtracted from segment.ms, so that segments do not all roll at "
            "once.",
            least=0,
        ),
        _setting("segment.ms", LONG, 604_800_000, "Age at which a segment is rolled.", least=1),
        _setting(
            "unclean.leader.election.enable",
            BOOLEAN,
            False,
            "Whether a replica that is not in sync, and so may lack records, can be elected leader if no "
            "other can. Enable it only where availability matters more than loss of data.",
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
        """The settings of a topic from its overrides (Kafka name -> text). Raises InvalidSetting."""
        values = {
            name.replace(".", "_"): find_setting(TOPIC_SETTINGS, name).parse(text)
            for name, text in overrides.items()
        }
        return cls(**values)  # type: ignore[arg-type]


def check_local_retention(config: TopicConfig, *, prefix: str = "") -> None:
    """Check that local retention is not above total retention (KIP-405); -1: no limit, -2: as the total.

    `prefix` of the settings' names: "log." for those of a node. Raises InvalidSetting.
    """
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
"""Node setting -> topic setting that it is the default of."""
