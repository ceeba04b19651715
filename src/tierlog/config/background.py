"""Settings of background work: retention, flushes, cleaner, scrubbers and tiering. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.balancing import MAX_BYTES_PER_SECOND, MAX_MOVES
from tierlog.config.definitions import boolean_, double_, int_, long_
from tierlog.config.tls import SslSettings
from tierlog.config.topic import MAX_LONG

MIB = 1 << 20
UNLIMITED_RATE = MAX_LONG


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundSettings(SslSettings):
    log_retention_check_interval_ms: int = long_(
        300_000,
        "How often, in milliseconds, retention and the age of segments are checked. Lower it for topics "
        "with a short retention.",
        minimum=1,
    )
    log_flush_scheduler_interval_ms: int = long_(
        1_000,
        "How often, in milliseconds, logs with flush.ms are checked for a due flush. Lower it together "
        "with flush.ms.",
        minimum=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = int_(
        60_000,
        "How often, in milliseconds, logs are flushed and their recovery points written. A start after a "
        "kill reads the records since then, a start after a power failure whole active segments. Lower it "
        "if starts after a kill take too long.",
        minimum=1,
    )
    auto_rebalance_enable: bool = boolean_(
        False,
        "Whether a broker moves leaders and replicas by itself, so that bytes on disk and bytes written "
        "become even. It never does so during a fault. Turn it off to decide yourself, with `tierlog "
        "partition balance --explain` and `--execute`.",
    )
    auto_rebalance_interval_seconds: int = long_(
        600,
        "For how long, in seconds, the load is measured before leaders and replicas are moved. Raise it if "
        "the load changes within minutes and comes back.",
        minimum=1,
    )
    auto_rebalance_max_moves: int = int_(
        MAX_MOVES,
        "Maximum number of partitions that are moved after a measurement. The next one begins when all have "
        "moved. Lower it if moves disturb clients.",
        minimum=1,
        maximum=1000,
    )
    auto_rebalance_max_bytes_per_second: int = long_(
        MAX_BYTES_PER_SECOND,
        "Throttle of these moves: bytes per second that each broker sends and receives for them. Lower it "
        "if disks or network are busy, raise it if moves take too long.",
        minimum=1,
    )
    log_cleaner_enable: bool = boolean_(
        True,
        "Whether topics with the cleanup.policy compact are compacted. Without it they keep growing. Turn "
        "it off only for a while, to save disk traffic.",
    )
    log_cleaner_backoff_ms: int = long_(
        15_000,
        "How long, in milliseconds, the cleaner sleeps if there is no log to clean. Lower it if "
        "compaction must follow writes closely.",
        minimum=0,
    )
    log_cleaner_dedupe_buffer_size: int = long_(
        128 * MIB,
        "Bytes of memory for the keys of one cleaning. If it fills up, cleaning a log takes several passes: "
        "raise it for topics with many keys.",
        minimum=1 * MIB,
    )
    log_cleaner_io_buffer_load_factor: float = double_(
        0.9,
        "Maximum fill ratio of log.cleaner.dedupe.buffer.size. A higher one holds more keys, but is "
        "slower. Raise it if the buffer is too small and cannot be raised.",
        minimum=0.1,
        maximum=1,
    )
    log_cleaner_io_max_bytes_per_second: float = double_(
        1.7976931348623157e308,
        "Maximum bytes per second that the cleaner reads and writes. Set it if it slows clients down.",
        minimum=1,
    )
    log_scrub_interval_ms: int = long_(
        604_800_000,
        "How often, in milliseconds, all logs are read and verified. 0: never. Lower it on disks that are "
        "known to lose bits.",
        minimum=0,
    )
    log_scrub_max_bytes_per_second: int = long_(
        10 * MIB,
        "Maximum bytes per second that the scrubber reads. A batch counts as 16 KiB or more. Raise it if a "
        "pass takes longer than log.scrub.interval.ms.",
        minimum=1,
    )
    num_recovery_threads_per_data_dir: int = int_(
        2,
        "Threads for each log directory that recover logs. Raise it if recovery after a crash is slow.",
        minimum=1,
    )
    remote_log_manager_task_interval_ms: int = long_(
        30_000,
        "How often, in milliseconds, the tiering work of each partition is planned. Lower it if rolled "
        "segments should be uploaded sooner.",
        minimum=1,
    )
    remote_log_delete_grace_ms: int = long_(
        3_600_000,
        "How long, in milliseconds, an object stays in the object store after it left the manifest. Raise "
        "it if Spark jobs that read the bucket run longer.",
        minimum=0,
    )
    remote_log_scrub_interval_ms: int = long_(
        604_800_000,
        "How often, in milliseconds, bucket and manifests are compared, in both directions. 0: never. "
        "Raise it if the requests of the comparison cost too much.",
        minimum=0,
    )
    remote_log_scrub_max_bytes_per_second: int = long_(
        1 * MIB,
        "Maximum bytes per second that a broker's bucket scrubber reads: of each segment that the broker "
        "leads, one chunk of up to 8 MiB in each pass. 0: compare only sizes and the checksums that the "
        "store keeps. Raise it to verify the bucket's bytes sooner.",
        minimum=0,
    )
    remote_log_scrub_max_requests_per_second: int = int_(
        10,
        "Maximum requests per second that a broker's bucket scrubber sends. Lower it if the store charges "
        "or limits requests.",
        minimum=1,
    )
    remote_log_merge_min_segments: int = int_(
        8,
        "Least number of successive small remote segments that a broker merges into one, which has at most "
        "`segment.bytes` and an eighth of the topic's retention. 0: segments are not merged. Raise it if "
        "merging costs too many requests.",
        minimum=0,
    )
    remote_log_merge_max_bytes_per_second: int = long_(
        32 * MIB,
        "Maximum bytes of remote segments that a broker merges or compacts per second, on average: each "
        "byte is read from the object store, by compaction up to twice, and written once. Lower it if this "
        "takes bandwidth from others, raise it if compaction of large topics takes too long.",
        minimum=MIB,
    )
    remote_log_metadata_cache_bytes: int = long_(
        256 * MIB,
        "Bytes of memory for manifests: three quarters for entries that every controller and broker keeps, "
        "a quarter for pages that a broker has read. With less memory, entries move to pages sooner. "
        "Raise it for clusters with more than a million remote segments.",
        minimum=16 * MIB,
    )
    remote_fetch_max_wait_ms: int = int_(
        500,
        "How long, in milliseconds, a Fetch waits for remote data. Later data is cached for the next "
        "Fetch. Raise it for consumers that give up after empty responses.",
        minimum=1,
    )
    remote_log_reader_threads: int = int_(
        10, "Maximum number of concurrent remote reads. Raise it if many consumers read old data.", minimum=1
    )

    remote_log_manager_copy_max_bytes_per_second: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes of segments that the broker uploads per second, on average over several segments "
        "(KIP-956): an upload begins once the bytes of those before it fit the rate. Set it if uploads take "
        "bandwidth from clients.",
        minimum=1,
    )
    remote_log_manager_fetch_max_bytes_per_second: int = long_(
        UNLIMITED_RATE,
        "Maximum bytes of remote segments that the broker reads per second (KIP-956). Set it if readers of "
        "old data take bandwidth from others.",
        minimum=1,
    )
