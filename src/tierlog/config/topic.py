"""Topic settings: Kafka's names, defaults and meaning, as one frozen value per topic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tierlog.config.definitions import (
    InvalidSetting,
    boolean_,
    double_,
    find_setting,
    int_,
    list_,
    long_,
    settings_of,
    string_,
)

MAX_LONG = 2**63 - 1
DEFAULT_TIMESTAMP_AFTER_MAX_MS = 3_600_000  # KIP-1030
NO_EFFECT_YET = " Checked, kept and shown; it has no effect yet."
USE_TOTAL_RETENTION = -2  # local.retention.*: as retention.* (KIP-405)
COMPACTED_LOCAL_MS = 604_800_000  # local.retention.ms of a compacted topic without other limits
ALL_REPLICAS = "*"
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
"""Topics of coordinators, which read them whole from local disks. Clients cannot write or tier them."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_REPLICA, _REPLICA_IN_WORDS = r"\*|\d+:\d+", "partition:broker or *"


def is_topic_name(name: str) -> bool:
    """Kafka's rule: 1 to 249 of [a-zA-Z0-9._-], and neither `.` nor `..`."""
    return name not in (".", "..") and _TOPIC_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The typed settings of one topic; field names are Kafka's with `_` for `.`."""

    cleanup_policy: tuple[str, ...] = list_(
        ("delete",),
        "Retention policy of old segments: delete removes them by retention.ms and retention.bytes, "
        "compact keeps the last record of each key. Both can be combined. Change it to compact for topics "
        "that hold the current state of their keys.",
        choices=("delete", "compact"),
    )
    compression_type: str = string_(
        "producer",
        "Codec of stored batches. producer keeps each batch as its producer compressed it. With any other "
        "value the broker compresses batches again, which costs CPU. Leave it, unless producers that "
        "cannot compress fill the disk.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    delete_retention_ms: int = long_(
        86_400_000,
        "How long, in milliseconds, the tombstones of a compacted topic are kept. Raise it if a consumer "
        "that starts at the beginning needs longer to reach the end.",
        minimum=0,
    )
    file_delete_delay_ms: int = long_(
        60_000,
        "How long, in milliseconds, the files of a deleted segment are kept, so that reads can finish. "
        "Lower it to free disk space sooner.",
        minimum=0,
    )
    flush_messages: int = long_(
        MAX_LONG,
        "Number of records after which the log is flushed to disk (fsync). By default durability comes from "
        "replication, as in Kafka. Set 1 if acknowledged records must survive a loss of power of all "
        "brokers.",
        minimum=1,
    )
    flush_ms: int = long_(
        MAX_LONG,
        "Maximum time in milliseconds before appended records are flushed to disk (fsync). Set it only for "
        "topics without replicas: replication protects records at less cost.",
        minimum=0,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = list_(
        (),
        "Replicas that follower.replication.throttled.rate of their broker limits while they are not in "
        "sync: partition:broker, ... or * for all (KIP-73). `tierlog partition move --throttle` sets it.",
        form=_REPLICA,
        form_in_words=_REPLICA_IN_WORDS,
    )
    index_interval_bytes: int = int_(
        4096,
        "Bytes of the log between two entries of its offset index. A smaller value makes the index larger, "
        "and searches for an offset read less of the log. Leave it, unless lookups by offset read too "
        "much.",
        minimum=0,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = list_(
        (),
        "Replicas whose leader limits what it sends to followers that are not in sync by "
        "leader.replication.throttled.rate: partition:broker, ... or * for all (KIP-73). `tierlog partition "
        "move --throttle` sets it.",
        form=_REPLICA,
        form_in_words=_REPLICA_IN_WORDS,
    )
    local_retention_bytes: int = long_(
        USE_TOTAL_RETENTION,
        "Maximum size in bytes of each partition of a tiered topic on local disk. Older segments are "
        "deleted there once they are in the object store. -1: no limit. -2: as retention.bytes. Lower it to "
        "save disk space.",
        minimum=-2,
    )
    local_retention_ms: int = long_(
        USE_TOTAL_RETENTION,
        "How long, in milliseconds, a tiered topic keeps records on local disk. Older segments are deleted "
        "there once they are in the object store. -1: no limit. -2: as retention.ms, but seven days for a "
        "compacted topic whose retention.ms and retention.bytes have no limit. Lower it to save disk space.",
        minimum=-2,
    )
    max_compaction_lag_ms: int = long_(
        MAX_LONG,
        "Maximum time in milliseconds for which a record stays uncompacted. Set it if deleted keys must "
        "disappear within a certain time.",
        minimum=1,
    )
    max_message_bytes: int = int_(
        1_048_588,
        "Maximum size in bytes of a record batch, after compression if it is compressed. Producers of "
        "larger ones get MESSAGE_TOO_LARGE. Raise it together with fetch sizes of consumers, if single "
        "messages are larger.",
        minimum=0,
    )
    message_timestamp_after_max_ms: int = long_(
        DEFAULT_TIMESTAMP_AFTER_MAX_MS,
        "How far, in milliseconds, a record's timestamp may be ahead of the broker's clock. Records "
        "further ahead are refused with INVALID_TIMESTAMP. Raise it for producers of future timestamps.",
        minimum=0,
    )
    message_timestamp_before_max_ms: int = long_(
        MAX_LONG,
        "How far, in milliseconds, a record's timestamp may be behind the broker's clock. Older records "
        "are refused with INVALID_TIMESTAMP. Lower it to refuse producers with slow clocks.",
        minimum=0,
    )
    message_timestamp_type: str = string_(
        "CreateTime",
        "Timestamp of records: CreateTime is the one that the producer sets, LogAppendTime the broker's "
        "time when it appends them. Set LogAppendTime if the clocks of producers cannot be trusted.",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = double_(
        0.5,
        "Share of a log's bytes that must be uncompacted before the log is compacted. A lower value saves "
        "disk space, but the log is copied more often. Lower it if disk space matters more than disk "
        "traffic.",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = long_(
        0,
        "Minimum time in milliseconds for which a record stays uncompacted. Raise it if consumers must see "
        "every value of a key.",
        minimum=0,
    )
    min_insync_replicas: int = int_(
        1,
        "Minimum number of in-sync replicas for a write with acks=all. With fewer, producers get "
        "NOT_ENOUGH_REPLICAS. Set 2 for three replicas.",
        minimum=1,
    )
    preallocate: bool = boolean_(
        False,
        "Whether segment.bytes of disk space is reserved when a segment gets its first batch, so that its "
        "blocks lie together. The file's size does not change. Set it on file systems that fragment, such "
        "as those of spinning disks.",
    )
    remote_storage_enable: bool = boolean_(
        False,
        "Whether the topic is tiered: rolled segments are copied to the object store (KIP-405). A compacted "
        "topic is compacted in the object store, after local retention has deleted its local segments. Set "
        "it to keep more history than local disks hold. To change it to false, set "
        "remote.log.delete.on.disable=true too.",
    )
    remote_log_copy_disable: bool = boolean_(
        False,
        "Whether copying to the object store is stopped (KIP-950). Remote data stays readable, and is "
        "deleted by retention.ms and retention.bytes. Set it while the object store must not be written to.",
    )
    remote_log_copy_max_lag_ms: int = long_(
        -1,
        "Maximum time in milliseconds from the append of a record until it is in the object store, and so "
        "the most that the loss of all brokers can lose. The leader rolls a segment after half of this time, "
        "and uploads it in the other half. -1: no limit; a record waits until its segment is rolled by "
        "segment.bytes or segment.ms. Set it for topics whose newest records must survive such a loss. A "
        "lower value makes more and smaller objects.",
        minimum=-1,
    )
    remote_log_delete_on_disable: bool = boolean_(
        False,
        "Whether all remote data is deleted when remote.storage.enable is set to false, which is refused "
        "otherwise (KIP-950). The log then starts where the leader's local log starts. To keep the data, set "
        "remote.log.copy.disable instead.",
    )
    remote_log_disk_pressure_policy: str = string_(
        "reject",
        "How a broker treats the topic's local data while a log directory has less free space than "
        "log.dir.free.bytes.min, or is full. reject keeps it as local.retention.* says; without free space "
        "producers get KAFKA_STORAGE_ERROR. drop-oldest-uploaded first deletes local segments that are in "
        "the object store, the oldest first. Set it if the topic must stay writable, and its older records "
        "may be read from the object store.",
        choices=("reject", "drop-oldest-uploaded"),
    )
    retention_bytes: int = long_(
        -1,
        "Maximum size in bytes of each partition, local and remote data together. Older segments are "
        "deleted. -1: no limit. Set it to bound the disk space or the bucket's cost of a topic.",
        minimum=-1,
    )
    retention_ms: int = long_(
        604_800_000,
        "How long, in milliseconds, records are kept, locally or remotely. Older segments are deleted. -1: "
        "no limit. Raise it, or set -1 with tiered storage, to keep history.",
        minimum=-1,
    )
    segment_bytes: int = int_(
        1_073_741_824,
        "Size in bytes at which a segment is rolled. Only rolled segments are deleted, compacted and "
        "tiered: with a smaller value this happens sooner, and there are more files. Lower it for topics "
        "of little traffic that are tiered or compacted.",
        minimum=14,
    )
    segment_index_bytes: int = int_(
        10_485_760,
        "Maximum size in bytes of a segment's offset index, and of its time index. A segment is rolled "
        "when one of them is full. Leave it: an index of 10 MiB covers a segment of several GiB.",
        minimum=4,
    )
    segment_jitter_ms: int = long_(
        0,
        "Maximum random time in milliseconds that is subtracted from segment.ms, so that segments do not "
        "all roll at once. Set it if hundreds of partitions that were created together roll at once.",
        minimum=0,
    )
    segment_ms: int = long_(
        604_800_000,
        "Age in milliseconds at which a segment is rolled, even if it is not full. Lower it if old "
        "records of a slow topic must be deleted, compacted or tiered sooner.",
        minimum=1,
    )
    unclean_leader_election_enable: bool = boolean_(
        False,
        "Whether a replica that is not in sync, and so may lack records, can be elected leader if no other "
        "can. Set it only where "
        "availability is worth the loss of acknowledged records.",
    )

    @property
    def effective_local_retention_ms(self) -> int:
        """A tiered topic is compacted in the object store once its segments have left the local disk. So with
        compaction they leave also by default, although their last values are kept without a limit."""
        given = self.local_retention_ms
        if given != USE_TOTAL_RETENTION:
            return given
        is_unlimited = self.retention_ms == -1 and self.effective_local_retention_bytes == -1
        return COMPACTED_LOCAL_MS if is_unlimited and "compact" in self.cleanup_policy else self.retention_ms

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


TOPIC_SETTINGS = settings_of(TopicConfig)


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
