"""The dashboard of tiering: uploads, remote reads, the object store, and the bucket's content."""

from tierlog.monitoring.grafana import Dashboard, panel, row

_UPLOADS = row(
    "Uploads",
    panel(
        "Age of the oldest record that is not uploaded",
        "s",
        "Time whose records would be lost with all local disks. It grows until a segment is rolled, and "
        "falls with its upload.",
        ('max by (topic) (tierlog_remote_copy_lag_seconds{topic!=""})', "{{topic}}"),
    ),
    panel(
        "Bytes to upload",
        "bytes",
        "Rolled segments that wait. A line that only rises means that uploads are slower than producers.",
        ('sum by (topic) (kafka_server_brokertopicmetrics_remotecopylagbytes{topic!=""})', "{{topic}}"),
    ),
    panel(
        "Segments to upload",
        "short",
        "Many small segments cost more requests than a few large ones: raise segment.bytes or segment.ms.",
        ('sum by (topic) (kafka_server_brokertopicmetrics_remotecopylagsegments{topic!=""})', "{{topic}}"),
    ),
    panel(
        "Upload rate",
        "Bps",
        "It should follow the rate of producers. At remote.log.manager.copy.max.bytes.per.second it is flat.",
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotecopybytes_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}}",
        ),
    ),
    panel(
        "Uploads and errors",
        "ops",
        "Errors are retried. `tierlog tier status` shows the last one of each partition.",
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotecopyrequests_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}} uploads",
        ),
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotecopyerrors_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}} errors",
        ),
    ),
    panel(
        "Uploads running, and stalls in an hour",
        "short",
        "A stall is an upload of more than 30 s plus 1 s per MiB: the store or the network to it is slow.",
        ("sum by (instance) (tierlog_remote_copies_running)", "{{instance}} running"),
        ("sum by (instance) (increase(tierlog_remote_copy_stalls_total[1h]))", "{{instance}} stalls"),
    ),
    panel(
        "Partitions whose uploads are late",
        "short",
        "Above 0, records are older than remote.log.copy.max.lag.ms and only on local disks.",
        ("max by (instance) (tierlog_remote_copy_behind_partitions)", "{{instance}}"),
    ),
    panel(
        "Free upload slots",
        "percentunit",
        "Near 0 all the time, uploads wait for each other: the store or the network to it is the limit.",
        (
            "avg by (instance) (kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent)",
            "{{instance}}",
        ),
    ),
    panel(
        "Waits for the bandwidth limits (mean)",
        "ms",
        "Above 0, remote.log.manager.copy.max.bytes.per.second or its counterpart for reads slows a node.",
        (
            "max by (instance) (kafka_server_remotelogmanager_remote_copy_throttle_time_avg)",
            "{{instance}} uploads",
        ),
        (
            "max by (instance) (kafka_server_remotelogmanager_remote_fetch_throttle_time_avg)",
            "{{instance}} reads",
        ),
    ),
)

_READS = row(
    "Reads",
    panel(
        "Bytes read by consumers from the remote tier",
        "Bps",
        "Consumers of old offsets. A live consumer that shows here has fallen behind local retention.",
        (
            "sum by (topic) (rate(kafka_server_brokertopicmetrics_remotefetchbytes_total"
            '{topic!=""}[$__rate_interval]))',
            "{{topic}}",
        ),
    ),
    panel(
        "Remote reads and errors",
        "ops",
        "Clients repeat a read that failed. Errors that last mean that old offsets cannot be read.",
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotefetchrequests_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}} reads",
        ),
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotefetcherrors_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}} errors",
        ),
    ),
    panel(
        "Time of a remote read (99%)",
        "ms",
        "Compare it with the latency of the store's get below: the rest is waiting for a place.",
        (
            "histogram_quantile(0.99, sum by (le, instance) (rate("
            "kafka_log_remote_remotelogmanager_remotelogreaderfetchrateandtimems_bucket[$__rate_interval])))",
            "{{instance}}",
        ),
    ),
    panel(
        "Cache hit ratio",
        "percentunit",
        "Several readers of the same offsets share chunks. A low ratio with slow reads: raise "
        "remote.cache.bytes.",
        (
            "sum by (instance) (rate(tierlog_remote_cache_hits_total[$__rate_interval])) / "
            "(sum by (instance) (rate(tierlog_remote_cache_hits_total[$__rate_interval])) + "
            "sum by (instance) (rate(tierlog_remote_cache_misses_total[$__rate_interval])))",
            "{{instance}}",
        ),
    ),
    panel(
        "Readers that wait",
        "short",
        "Partitions that wait for data. Those that wait for a place need more remote.log.reader.threads.",
        ("sum by (instance) (tierlog_remote_readers)", "{{instance}} for data"),
        (
            "sum by (instance) (kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize)",
            "{{instance}} for a place",
        ),
    ),
    panel(
        "Free places to download",
        "percentunit",
        "Near 0, readers wait for remote.log.reader.threads.",
        (
            "avg by (instance) (kafka_log_remote_remotestoragethreadpool_remotelogreaderavgidlepercent)",
            "{{instance}}",
        ),
    ),
)

_STORE = row(
    "Object store",
    panel(
        "Object store available (circuit breaker), and outages in an hour",
        "short",
        "0: the breaker is open, and calls fail at once until a probe succeeds.",
        ("min by (instance) (tierlog_object_store_available)", "{{instance}} available"),
        ("sum by (instance) (increase(tierlog_object_store_outages_total[1h]))", "{{instance}} outages"),
    ),
    panel(
        "Requests by operation and kind",
        "ops",
        "What the store bills. Many gets by few readers: raise remote.cache.bytes.",
        (
            "sum by (operation, kind) (rate(tierlog_object_store_requests_total[$__rate_interval]))",
            "{{operation}} {{kind}}",
        ),
    ),
    panel(
        "Failed requests by outcome",
        "ops",
        "not_found and precondition_failed are answers of a healthy store. timeout, unavailable and error "
        "are failures.",
        (
            'sum by (outcome) (rate(tierlog_object_store_requests_total{outcome!="ok"}[$__rate_interval]))',
            "{{outcome}}",
        ),
    ),
    panel(
        "Bytes by operation and kind",
        "Bps",
        "Traffic to and from the bucket. Reads of the kind segment serve consumers, merges and the scrubber.",
        (
            "sum by (operation, kind) (rate(tierlog_object_store_bytes_total[$__rate_interval]))",
            "{{operation}} {{kind}}",
        ),
    ),
    panel(
        "Latency by operation (99%)",
        "s",
        "Retries included. A put lasts longer for a larger segment; a get should not change.",
        (
            "histogram_quantile(0.99, sum by (le, operation) "
            "(rate(tierlog_object_store_request_seconds_bucket[$__rate_interval])))",
            "{{operation}}",
        ),
    ),
    panel(
        "Calls that the breaker refused, and readers that found no place",
        "ops",
        "Both are 0 in a healthy cluster.",
        (
            "sum by (instance) (rate(tierlog_object_store_refused_calls_total[$__rate_interval]))",
            "{{instance}} calls",
        ),
        (
            "sum by (instance) (rate(tierlog_remote_readers_refused_total[$__rate_interval]))",
            "{{instance}} readers",
        ),
    ),
)

_CONTENT = row(
    "Content and damage",
    panel(
        "Bytes in the bucket",
        "bytes",
        "Growth without an end: check retention.ms and retention.bytes of the topic.",
        ('sum by (topic) (kafka_server_brokertopicmetrics_remotelogsizebytes{topic!=""})', "{{topic}}"),
    ),
    panel(
        "Segments in the bucket",
        "short",
        "Each costs memory in the manifest. Merges reduce them.",
        ('sum by (topic) (kafka_server_brokertopicmetrics_remotelogmetadatacount{topic!=""})', "{{topic}}"),
    ),
    panel(
        "Deletions that wait, and deletion errors",
        "short",
        "Deletions wait for remote.log.delete.grace.ms and for snapshots. The oldest overdue one raises an "
        "alert.",
        ("max(tierlog_remote_delete_queue_size)", "waiting"),
        (
            "sum by (instance) (rate(kafka_server_brokertopicmetrics_remotedeleteerrors_total"
            '{topic=""}[$__rate_interval]))',
            "{{instance}} errors/s",
        ),
    ),
    panel(
        "Quarantine: damaged and missing objects, and wrong manifests in an hour",
        "short",
        "Everything above 0 needs docs/runbooks/damaged-object.md.",
        ("max by (instance) (tierlog_remote_quarantined_objects)", "{{instance}} in quarantine"),
        ("max by (instance) (tierlog_remote_missing_objects)", "{{instance}} missing"),
        (
            "sum by (instance) (increase(tierlog_remote_manifest_faults_total[1h]))",
            "{{instance}} manifests",
        ),
    ),
    panel(
        "Findings of the bucket scrubber",
        "short",
        "Damage needs docs/runbooks/damaged-object.md. Unreferenced objects only cost money.",
        ("max by (instance) (tierlog_remote_scrub_damaged_segments)", "{{instance}} damaged"),
        ("max by (instance) (tierlog_remote_scrub_unchecked_segments)", "{{instance}} not checked"),
        ("max(tierlog_remote_unknown_objects)", "unreferenced"),
    ),
    panel(
        "Progress of the bucket scrubber",
        "percentunit",
        "1: no pass is running. A pass that never ends: its rate limit is too low for the bucket.",
        ("max by (instance) (tierlog_remote_scrub_progress_ratio)", "{{instance}}"),
    ),
    panel(
        "Live snapshots of readers, and the age of the oldest in hours",
        "short",
        "A snapshot holds deleted data, which costs money, until its lease ends.",
        ("max(tierlog_remote_snapshots)", "snapshots"),
        ("max(tierlog_remote_snapshot_oldest_seconds) / 3600", "hours"),
    ),
)

_UPKEEP = row(
    "Upkeep and memory",
    panel(
        "Merges and compactions in an hour, and errors",
        "short",
        "Errors although the store responds: the log has the reason, often a damaged object.",
        ("sum by (instance) (increase(tierlog_remote_merges_total[1h]))", "{{instance}} merges"),
        ("sum by (instance) (increase(tierlog_remote_compactions_total[1h]))", "{{instance}} compactions"),
        ("sum by (instance) (increase(tierlog_remote_merge_errors_total[1h]))", "{{instance}} errors"),
    ),
    panel(
        "Segments that merges and compactions replaced in an hour",
        "short",
        "Work of the upkeep. It costs reads and writes of the store.",
        ("sum by (instance) (increase(tierlog_remote_merged_segments_total[1h]))", "{{instance}} merged"),
        (
            "sum by (instance) (increase(tierlog_remote_compacted_segments_total[1h]))",
            "{{instance}} compacted",
        ),
    ),
    panel(
        "Memory of the manifests, and its budget",
        "bytes",
        "Above the budget, raise remote.log.metadata.cache.bytes on all nodes.",
        ("max by (instance) (tierlog_remote_manifest_memory_bytes)", "{{instance}}"),
        ("max by (instance) (tierlog_remote_manifest_memory_budget_bytes)", "{{instance}} budget"),
    ),
    panel(
        "Memory of indexes, and chunk cache on disk",
        "bytes",
        "The chunks are bounded by remote.cache.bytes.",
        ("max by (instance) (tierlog_remote_index_memory_bytes)", "{{instance}} indexes"),
        ("max by (instance) (tierlog_remote_cache_size_bytes)", "{{instance}} chunks"),
    ),
)

TIERING = Dashboard(
    name="tiering",
    title="tiering",
    description="Uploads to the bucket, reads of old offsets, and the object store. Runbook: bucket-down.",
    rows=(_UPLOADS, _READS, _STORE, _CONTENT, _UPKEEP),
)
