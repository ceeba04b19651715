"""Faults of a watched cluster, and the alerts that each of them raises.

The tests of each change cause those in EACH_CHANGE; for those in NIGHTLY there is time at night only.
A fault registers how to undo each harm before it does it, so that a test which fails leaves none behind.
"""

from collections.abc import Callable
from contextlib import ExitStack

import watched_bucket as bucket
import watched_nodes as nodes
from watched_cluster import WatchedCluster

Fault = Callable[[WatchedCluster, ExitStack], None]
EACH_CHANGE: dict[Fault, set[str]] = {
    nodes.group_stands_still: {"TierlogGroupLag"},
    nodes.clock_is_wrong: {"TierlogClockSkew"},
    nodes.disk_is_full: {"TierlogDiskFull", "TierlogUnderReplicated"},
    bucket.bucket_is_down: {"TierlogObjectStoreUnavailable"},
    nodes.broker_is_dead: {"TierlogNodeDown", "TierlogBrokerFenced", "TierlogUnderReplicated"},
    nodes.majority_is_dead: {"TierlogNoController"},
}

NIGHTLY: dict[Fault, set[str]] = {
    nodes.audit_disk_is_full: {"TierlogAuditEntriesLost"},
    nodes.disk_is_low: {"TierlogDiskLow"},
    nodes.metadata_disk_is_low: {"TierlogMetadataDiskLow"},
    nodes.directory_fails: {"TierlogDirectoryOffline"},
    nodes.log_is_damaged: {"TierlogDamagedLog", "TierlogUncleanable"},
    nodes.few_open_files: {"TierlogOpenFiles"},
    nodes.event_loop_is_late: {"TierlogEventLoopSlow"},
    nodes.task_has_a_bug: {"TierlogUnexpectedFailures"},
    nodes.balancing_is_held: {"TierlogRebalanceHeld"},
    nodes.disk_hangs: {"TierlogMetadataBehind"},
    nodes.followers_cannot_fetch: {"TierlogIsrFlaps"},
    nodes.group_beyond_the_limit: {"TierlogGroupLagLeftOut"},
    nodes.certificate_ends_soon: {"TierlogCertificateExpiresSoon"},
    nodes.certificate_is_unreadable: {"TierlogCertificateNotReloaded"},
    bucket.bucket_stays_down: {
        "TierlogObjectStoreFails",
        "TierlogUploadLag",
        "TierlogUploadsFail",
        "TierlogUploadsLate",
    },
    bucket.history_is_unreadable: {"TierlogRemoteReadsFail"},
    bucket.bucket_is_slow: {"TierlogObjectStoreSlow"},
    bucket.link_is_slow: {"TierlogUploadsStall"},
    bucket.bucket_flaps: {"TierlogObjectStoreFlaps"},
    bucket.many_readers_wait: {"TierlogReadersRefused"},
    bucket.object_is_damaged: {"TierlogDamagedObject", "TierlogMergesFail"},
    bucket.object_is_denied: {"TierlogScrubIncomplete"},
    bucket.deletions_are_denied: {"TierlogDeletionsFail", "TierlogDeletionsWait"},
    bucket.snapshot_is_old: {"TierlogOldSnapshot"},
    bucket.document_is_missing: {"TierlogManifestFaults"},
    bucket.stray_object: {"TierlogUnknownObjects"},
    nodes.version_is_unknown: {"TierlogVersionProblems"},
    nodes.only_replica_is_dead: {"TierlogOfflinePartitions", "TierlogUnderMinIsr", "TierlogMoveWaits"},
    nodes.move_is_stuck: {"TierlogMoveStuck"},
}
FAULTS = {**EACH_CHANGE, **NIGHTLY}
