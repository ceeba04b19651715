"""Metric values of the remote tier.

Kafka's metrics of a partition come from its leader, so that a sum over all brokers counts it once. Called by
`metrics`.
"""

from collections import Counter
from collections.abc import Iterator

from tierlog.broker.gateway.exposition import PAUSE, Family, Sample, lazy_slices, single, slices
from tierlog.broker.gateway.node import Serving
from tierlog.broker.remote.tier_views import remote_bytes
from tierlog.broker.remote.tiering import RemoteTier
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.tiering.bucket_audit import UNKNOWN
from tierlog.tiering.metered_store import StoreCounts
from tierlog.tiering.page_tree import NODE_BYTES
from tierlog.tiering.planner import upload_lag
from tierlog.tiering.store_health import BreakerState, StoreHealth
from tierlog.tiering.tier_counts import RequestCounts, TopicCount, TransferCounts

ENTRIES_PER_WORK = 32  # summed up in the time of one partition, 4 µs

TOPICS = "kafka_server_brokertopicmetrics_"
THROTTLES = "kafka_server_remotelogmanager_remote_"
READER = "kafka_log_remote_remotestoragethreadpool_remotelogreader"


def tier_families(serving: Serving, image: ClusterImage) -> Iterator[Family]:
    """Metrics of the remote tier that only brokers have."""
    tier = serving.remote
    yield from _transfers("remotefetch", tier.log.fetches, image)
    yield from _transfers("remotecopy", serving.tiering.copies, image)
    yield from _upload_lag(serving, image)
    yield from _attempts("remotedelete", serving.storage_cleaner.deletes, image)
    yield "tierlog_remote_cleanup_failing", single(len(serving.storage_cleaner.failing))
    yield "tierlog_remote_delete_overdue_seconds", single(_overdue_s(serving, image))
    yield from _snapshots(serving, image)
    yield from _attempts("buildremotelogauxstate", tier.state_machine.starts, image)
    yield from _reads(tier)
    yield "tierlog_remote_restored_objects_total", single(serving.remote_repair.restored)
    yield from _store(tier.store_counts, tier.store.health)
    counts = tier.manager.counts
    idle = tier.manager.copies.idle_ratio
    yield "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent", single(idle)
    for kind, limit in (("fetch", tier.store.fetch_rate), ("copy", tier.manager.copy_rate)):
        yield f"{THROTTLES}{kind}_throttle_time_avg", single(1000 * limit.throttles.average_s)
        yield f"{THROTTLES}{kind}_throttle_time_max", single(1000 * limit.throttles.max_s)
    yield "tierlog_remote_copies_running", single(counts.uploading)
    yield "tierlog_remote_copy_stalls_total", single(counts.stalls)
    merger = serving.merger
    yield "tierlog_remote_merges_total", single(merger.merges)
    yield "tierlog_remote_merged_segments_total", single(merger.segments)
    yield "tierlog_remote_merged_bytes_total", single(merger.bytes)
    yield "tierlog_remote_merge_errors_total", single(merger.errors)
    compactor = merger.compactor
    yield "tierlog_remote_compactions_total", single(compactor.compactions)
    yield "tierlog_remote_compacted_segments_total", single(compactor.segments)
    yield "tierlog_remote_compaction_read_bytes_total", single(compactor.bytes_read)
    yield "tierlog_remote_compaction_kept_bytes_total", single(compactor.bytes_written)
    scrubber = serving.bucket_scrubber
    yield "tierlog_remote_scrub_passes_total", single(scrubber.passes)
    yield "tierlog_remote_scrub_progress_ratio", single(scrubber.progress)
    yield "tierlog_remote_scrub_segments_total", single(scrubber.segments)
    yield "tierlog_remote_scrub_read_bytes_total", single(scrubber.bytes_read)
    yield "tierlog_remote_scrub_damaged_segments", single(scrubber.damaged)
    yield "tierlog_remote_scrub_unchecked_segments", single(scrubber.unchecked)
    yield "tierlog_remote_scrub_manifest_faults", single(len(scrubber.manifest_faults))
    yield "tierlog_remote_manifest_faults_total", single(serving.manifest_check.faults)
    audit = scrubber.audit
    yield "tierlog_remote_unknown_objects", single(audit.objects[UNKNOWN])
    yield "tierlog_remote_unknown_bytes", single(audit.bytes[UNKNOWN])


def manifest_families(image: ClusterImage, node_id: int, budget_bytes: int) -> Iterator[Family]:
    """Metrics of the committed image. Every node reports those that begin with `tierlog_`. `budget_bytes`: of
    the image's manifest entries."""
    sizes: list[Sample] = []
    counts: list[Sample] = []
    led_bytes: Counter[str] = Counter()
    led_segments: Counter[str] = Counter()
    memory_bytes = 0
    for batch in lazy_slices(image.remote.items(), lambda item: _work_of(item[1])):
        yield PAUSE
        for key, remote in batch:
            memory_bytes += NODE_BYTES * len(remote.nodes)
            topic = image.topics.get(key.topic_id)
            if topic is None:
                continue
            size = remote_bytes(remote)
            segments = len(remote.entries) + sum(page.entries for page in remote.pages)
            sizes.append(((topic.name, str(key.partition)), size))
            counts.append(((topic.name, str(key.partition)), segments))
            if topic.partitions[key.partition].leader == node_id:
                led_bytes[topic.name] += size
                led_segments[topic.name] += segments
    yield f"{TOPICS}remotelogsizebytes", _with_total(led_bytes)
    yield f"{TOPICS}remotelogmetadatacount", _with_total(led_segments)
    yield "tierlog_remote_log_size_bytes", sizes
    yield "tierlog_remote_log_segments", counts
    yield "tierlog_remote_manifest_memory_bytes", single(memory_bytes)
    yield "tierlog_remote_manifest_memory_budget_bytes", single(budget_bytes)
    yield from _delete_queue(image, node_id)


def _work_of(remote: RemotePartition) -> float:
    """Time to sum up a manifest, in units of a partition without entries."""
    return 1 + (len(remote.entries) + len(remote.pages)) / ENTRIES_PER_WORK


def _delete_queue(image: ClusterImage, node_id: int) -> Iterator[Family]:
    lag_bytes: Counter[str] = Counter()
    lag_segments: Counter[str] = Counter()
    for batch in lazy_slices(image.delete_queue.values()):
        yield PAUSE
        for line in batch:
            if not isinstance(line, QueuedDelete) or not line.segments:
                continue
            partition = image.partition(line.topic_id, line.partition)
            if partition is not None and partition.leader == node_id:
                topic = image.topics[line.topic_id].name
                lag_bytes[topic] += line.log_bytes
                lag_segments[topic] += line.segments
    yield f"{TOPICS}remotedeletelagbytes", _with_total(lag_bytes)
    yield f"{TOPICS}remotedeletelagsegments", _with_total(lag_segments)
    yield "tierlog_remote_delete_queue_size", single(len(image.delete_queue))


def _upload_lag(serving: Serving, image: ClusterImage) -> Iterator[Family]:
    lag_bytes: Counter[str] = Counter()
    lag_segments: Counter[str] = Counter()
    ages_ms: dict[str, int] = {}
    now_ms = serving.clock.now_ms()
    for batch in slices(serving.tiering.tiered):
        yield PAUSE
        for replica in batch:
            if replica.config.remote_log_copy_disable:
                continue  # nothing will be uploaded
            topic = replica.name.topic
            lag = upload_lag(image.remote_partition(*replica.id), replica.segments, now_ms)
            lag_bytes[topic] += lag.bytes
            lag_segments[topic] += lag.segments
            since_append_ms = serving.tiering.lags.age_ms(replica.id)
            age_ms = lag.age_ms if since_append_ms is None else since_append_ms
            ages_ms[topic] = max(ages_ms.get(topic, 0), age_ms)
    yield f"{TOPICS}remotecopylagbytes", _with_total(lag_bytes)
    yield f"{TOPICS}remotecopylagsegments", _with_total(lag_segments)
    oldest_ms = max(ages_ms.values(), default=0)
    ages: list[Sample] = [((), oldest_ms / 1000), *(((topic,), ms / 1000) for topic, ms in ages_ms.items())]
    yield "tierlog_remote_copy_lag_seconds", ages
    yield "tierlog_remote_copy_behind_partitions", single(len(serving.tiering.lags.behind))
    yield "tierlog_remote_unread_manifests", single(len(serving.manifest_recovery.errors))


def _overdue_s(serving: Serving, image: ClusterImage) -> float:
    oldest_ms = image.delete_queue.oldest_ms
    if oldest_ms is None:
        return 0.0
    return max(0, serving.clock.now_ms() - oldest_ms - serving.storage_cleaner.grace_ms) / 1000


def _snapshots(serving: Serving, image: ClusterImage) -> Iterator[Family]:
    """As the storage cleaner saw them last."""
    snapshots, total = serving.storage_cleaner.snapshots, 0
    is_held = snapshots.is_held
    for batch in lazy_slices(image.delete_queue.values() if snapshots.live else ()):
        yield PAUSE
        total += sum(line.log_bytes for line in batch if isinstance(line, QueuedDelete) and is_held(line))
    now_ms = serving.clock.now_ms()
    oldest_ms = min((lease.created_ms for lease in snapshots.live), default=now_ms)
    yield "tierlog_remote_snapshots", single(len(snapshots.live))
    yield "tierlog_remote_snapshot_oldest_seconds", single(max(0, now_ms - oldest_ms) / 1000)
    yield "tierlog_remote_snapshot_held_bytes", single(total)


def _reads(tier: RemoteTier) -> Iterator[Family]:
    log, cache = tier.log, tier.cache
    yield f"{READER}taskqueuesize", single(cache.waiting)
    yield f"{READER}avgidlepercent", single(cache.idle_ratio)
    yield "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems", single(log.fetches.seconds)
    yield "tierlog_remote_readers", single(log.readers)
    yield "tierlog_remote_readers_refused_total", single(log.readers_refused)
    yield "tierlog_remote_cache_hits_total", single(cache.counts.hits)
    yield "tierlog_remote_cache_misses_total", single(cache.counts.misses)
    yield "tierlog_remote_cache_read_aheads_total", single(cache.counts.read_aheads)
    yield "tierlog_remote_cache_size_bytes", single(cache.bytes)
    yield "tierlog_remote_index_memory_bytes", single(log.index_bytes)
    yield "tierlog_remote_damaged_reads_total", single(log.quarantine.damaged_reads)
    yield "tierlog_remote_quarantined_objects", single(log.quarantine.objects)
    yield "tierlog_remote_missing_objects", single(log.quarantine.missing_objects)


def _store(counts: StoreCounts, health: StoreHealth) -> Iterator[Family]:
    yield "tierlog_object_store_available", single(int(health.state is BreakerState.CLOSED))
    yield "tierlog_object_store_refused_calls_total", single(health.refused_calls)
    yield "tierlog_object_store_outages_total", single(health.opened)
    yield "tierlog_object_store_requests_total", list(counts.requests.items())
    yield "tierlog_object_store_bytes_total", list(counts.bytes.items())
    yield (
        "tierlog_object_store_request_seconds",
        [((operation,), seconds) for operation, seconds in counts.seconds.items()],
    )


def _transfers(name: str, counts: TransferCounts, image: ClusterImage) -> Iterator[Family]:
    yield f"{TOPICS}{name}bytes_total", _by_topic(counts.bytes, image)
    yield from _attempts(name, counts, image)


def _attempts(name: str, counts: RequestCounts, image: ClusterImage) -> Iterator[Family]:
    yield f"{TOPICS}{name}requests_total", _by_topic(counts.requests, image)
    yield f"{TOPICS}{name}errors_total", _by_topic(counts.errors, image)


def _by_topic(count: TopicCount, image: ClusterImage) -> Iterator[Sample]:
    """Names are looked up when the lines are written, so that other work gets a turn between them."""
    numbers = list(count)
    yield (), count.total
    for topic_id, number in numbers:
        topic = image.topics.get(topic_id)
        if topic is not None:
            yield (topic.name,), number


def _with_total(by_topic: Counter[str]) -> Iterator[Sample]:
    yield (), by_topic.total()
    for topic, number in by_topic.items():
        yield (topic,), number
