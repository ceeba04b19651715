"""Alert rules of tiering: uploads, the object store, the bucket, and disks that fill because of it."""

from tierlog.monitoring.rules import CRITICAL, INFO, WARNING, Alert, Group

TIER_ALERTS = Group(
    "tierlog-remote-tier",
    (
        Alert(
            "TierlogUploadLag",
            "min by (instance) "
            '(min_over_time(kafka_server_brokertopicmetrics_remotecopylagbytes{topic=""}[30m])) > max by '
            '(instance) (max_over_time(kafka_server_brokertopicmetrics_remotecopylagbytes{topic=""}[30m] '
            "offset 1h))",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: uploads fall behind, {{ $value | humanize1024 }}B of rolled "
            "segments wait",
            description="Local disks fill up. If the local disks of all replicas were lost now, these "
            "records would be lost.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogUploadsLate",
            "max by (instance) (tierlog_remote_copy_behind_partitions) > 0",
            lasting="5m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value }} partitions have records that are not uploaded "
            "within remote.log.copy.max.lag.ms",
            description="If the local disks of all replicas were lost now, these records would be lost. "
            "`tierlog tier status` shows why.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogManifestsUnread",
            "max by (instance) (tierlog_remote_unread_manifests) > 0",
            lasting="5m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value }} partitions have no leader since the quorum's "
            "recovery",
            description="Their manifest in the object store cannot be read or committed. `tierlog cluster "
            "health` shows why.",
            page="runbooks/lost-majority-for-good.md",
        ),
        Alert(
            "TierlogUploadsFail",
            "min by (instance) "
            '(min_over_time(kafka_server_brokertopicmetrics_remotecopylagbytes{topic=""}[15m])) > 0 and '
            "sum by (instance) "
            '(increase(kafka_server_brokertopicmetrics_remotecopybytes_total{topic=""}[15m])) == 0',
            lasting="15m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value | humanize1024 }}B of rolled segments wait, and "
            "nothing is uploaded",
            description="Local disks fill up, because no segment is deleted before its upload. `tierlog "
            "tier status` shows why.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogObjectStoreUnavailable",
            "min by (instance) (tierlog_object_store_available) == 0",
            lasting="5m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: the object store does not respond, or is refused as unsuitable",
            description="Old offsets cannot be read and nothing is uploaded. Offsets on local disk are "
            "served.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogObjectStoreFails",
            "sum by (instance) "
            '(rate(tierlog_object_store_requests_total{outcome=~"error|timeout|unavailable"}[5m])) / sum '
            "by (instance) (rate(tierlog_object_store_requests_total[5m])) > 0.5",
            lasting="5m",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value | humanizePercentage }} of the calls of the object "
            "store fail",
            description="Old offsets cannot be read and nothing is uploaded. Offsets on local disk are "
            "served.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogRemoteReadsFail",
            "sum by (instance) "
            '(rate(kafka_server_brokertopicmetrics_remotefetcherrors_total{topic=""}[5m])) > 0',
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: remote reads fail",
            description="Consumers of old offsets get retriable errors.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogObjectStoreSlow",
            "histogram_quantile(0.99, sum by (instance, le) "
            '(rate(tierlog_object_store_request_seconds_bucket{operation="get"}[10m]))) > 5',
            lasting="15m",
            severity=WARNING,
            summary="{{ $labels.instance }}: 1% of the reads of the object store take longer than {{ "
            "$value | humanizeDuration }}",
            description="Consumers of old offsets are slow. Check the store and the network to it.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogDamagedObject",
            "max by (instance) (tierlog_remote_quarantined_objects) > 0",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $value }} objects in the bucket are missing or damaged",
            description="Their offsets are refused unless they are on local disk too.",
            page="runbooks/damaged-object.md",
        ),
        Alert(
            "TierlogScrubIncomplete",
            "max by (instance) (tierlog_remote_scrub_unchecked_segments) > 0",
            severity=WARNING,
            summary="{{ $labels.instance }}: {{ $value }} segments in the bucket could not be checked, "
            "although the object store responds",
            description="Their offsets may not be readable. The log has the reason with the event "
            "`bucket.segment.unchecked`: access denied, or archived.",
            page="runbooks/damaged-object.md",
        ),
        Alert(
            "TierlogUnknownObjects",
            "max by (instance) (tierlog_remote_unknown_objects) > 0",
            severity=INFO,
            summary="{{ $labels.instance }}: {{ $value }} unreferenced objects in the bucket",
            description="They only cost money. `tierlog tier gc --dry-run` lists them.",
            page="runbooks/damaged-object.md",
        ),
        Alert(
            "TierlogDeletionsFail",
            "max by (instance) (tierlog_remote_cleanup_failing) > 0",
            lasting="30m",
            severity=WARNING,
            summary="{{ $labels.instance }}: {{ $value }} deletions or documents fail in the object store",
            description="Deleted data stays in the bucket. The log has the reason of each with the event "
            "`cleanup.object.failed`.",
            page="runbooks/wrong-clock.md",
        ),
        Alert(
            "TierlogDeletionsWait",
            "max(tierlog_remote_delete_overdue_seconds) > 3600 unless max(tierlog_remote_snapshots) > 0",
            lasting="30m",
            severity=WARNING,
            summary="the oldest deletion in the object store is overdue for {{ $value | humanizeDuration }}",
            description="Deleted data stays in the bucket. Check the log for the events `cleanup.failed` and "
            "`cleanup.object.failed`.",
            page="runbooks/wrong-clock.md",
        ),
        Alert(
            "TierlogOldSnapshot",
            "max(tierlog_remote_snapshot_oldest_seconds) > 604800 and "
            "max(tierlog_remote_snapshot_held_bytes) > 0",
            severity=INFO,
            summary="a snapshot holds deleted data for {{ $value | humanizeDuration }}",
            description="Its jobs renew it, or its lease is long. `tierlog tier snapshots list` shows the "
            "bytes that it holds, `tierlog tier snapshots end` ends it.",
            page="howto/spark.md",
        ),
        Alert(
            "TierlogObjectStoreFlaps",
            "sum by (instance) (increase(tierlog_object_store_outages_total[1h])) > 3",
            severity=WARNING,
            summary="{{ $labels.instance }}: the object store became unavailable {{ $value | printf "
            '"%.0f" }} times in an hour',
            description="It responds to the probe and fails soon after. Reads of old offsets fail again "
            "and again.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogUploadsStall",
            "sum by (instance) (increase(tierlog_remote_copy_stalls_total[30m])) > 0",
            lasting="30m",
            severity=WARNING,
            summary="{{ $labels.instance }}: uploads take longer than 30 s plus 1 s per MiB",
            description="The store or the network to it is slow. Watch the bytes to upload.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogReadersRefused",
            "sum by (instance) (rate(tierlog_remote_readers_refused_total[5m])) > 0",
            lasting="10m",
            severity=WARNING,
            summary="{{ $labels.instance }}: more than 1,000 partitions wait for the object store",
            description="Further ones get no records until others are served. Check the latency of the "
            "store, and remote.log.reader.threads.",
            page="runbooks/bucket-down.md",
        ),
        Alert(
            "TierlogManifestFaults",
            "sum by (instance) (increase(tierlog_remote_manifest_faults_total[1h])) > 0",
            severity=WARNING,
            summary="{{ $labels.instance }}: manifest roots or documents in the bucket were missing, "
            "damaged or outdated",
            description="The cluster has written them again. Something else changes the bucket, or it was "
            "restored from a copy.",
            page="runbooks/damaged-object.md",
        ),
        Alert(
            "TierlogMergesFail",
            "sum by (instance) (increase(tierlog_remote_merge_errors_total[1h])) > 0",
            lasting="1h",
            severity=WARNING,
            summary="{{ $labels.instance }}: merges or compactions of remote segments fail, although the "
            "object store responds",
            description="The old segments stay and are served. The log has the reason, often a damaged "
            "object.",
            page="runbooks/damaged-object.md",
        ),
        Alert(
            "TierlogManifestMemory",
            "max by (instance) (tierlog_remote_manifest_memory_bytes / "
            "tierlog_remote_manifest_memory_budget_bytes) > 1",
            lasting="1h",
            severity=WARNING,
            summary="{{ $labels.instance }}: the manifests take {{ $value | humanizePercentage }} of "
            "their memory",
            description="Raise remote.log.metadata.cache.bytes on all nodes. tierlog.format must be at "
            "least 2, so that entries can move to pages.",
            page="explanation/tiering.md",
        ),
        Alert(
            "TierlogDiskLow",
            "(max by (instance, directory) (increase(tierlog_log_pressure_dropped_segments_total[15m])) > 0 "
            "or max by (instance, directory) (tierlog_log_directory_low) > 0) "
            "unless max by (instance, directory) (tierlog_log_directory_full) > 0",
            lasting="5m",
            severity=WARNING,
            summary="{{ $labels.instance }}: {{ $labels.directory }} has less free space than "
            "log.dir.free.bytes.min",
            description="Uploaded segments of topics with remote.log.disk.pressure.policy="
            "drop-oldest-uploaded leave the disk early. Once none is left, appends are refused.",
            page="runbooks/full-disk.md",
        ),
        Alert(
            "TierlogDiskFull",
            "max by (instance, directory) (tierlog_log_directory_full) > 0",
            severity=CRITICAL,
            summary="{{ $labels.instance }}: {{ $labels.directory }} is full, appends are refused",
            description="A tiered partition keeps everything that is not uploaded.",
            page="runbooks/full-disk.md",
        ),
    ),
)
