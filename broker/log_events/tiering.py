"""Log events of tiering and the object store."""

from typing import Final

from tierlog.broker.log_events.event import Event

TIERING: Final = {
    "bulk_load.committed": Event("a bulk load is committed"),
    "bulk_load.ended": Event("a bulk load was not continued"),
    "bucket.check.incomplete": Event(
        "segments in the bucket could not be checked",
        "Check the store and its credentials: docs/runbooks/bucket-down.md. The next pass tries again.",
    ),
    "bucket.damaged": Event(
        "the bucket lacks what the manifests list",
        "Follow docs/runbooks/damaged-object.md.",
    ),
    "bucket.list_failed": Event(
        "the bucket cannot be listed",
        "Allow ListBucket for the credentials, or check the store: docs/runbooks/bucket-down.md.",
    ),
    "bucket.scrub_failed": Event(
        "the bucket cannot be scrubbed",
        "It is retried. If it persists: docs/runbooks/bucket-down.md.",
    ),
    "bucket.segment.unchecked": Event(
        "a segment in the bucket cannot be checked",
        "`error` has the reason. The next pass tries again.",
    ),
    "bucket.unreferenced": Event(
        "the bucket has unreferenced objects",
        "`tierlog tier gc --dry-run` lists them.",
    ),
    "cleanup.blocked": Event(
        "the object store refuses deletions, all of them wait",
        "Allow DeleteObject for the credentials of object.store.url.",
    ),
    "cleanup.failed": Event(
        "cleanup of remote storage failed",
        "It is retried. If it persists: docs/runbooks/bucket-down.md.",
    ),
    "cleanup.object.failed": Event(
        "cleanup of an object fails, others continue",
        "`error` has the reason: often a retention lock or a policy of the bucket.",
    ),
    "cleanup.object.succeeded": Event("cleanup of an object succeeds again"),
    "cleanup.objects.deleted": Event("remote objects deleted"),
    "cleanup.waiting": Event(
        "deletions wait: the bucket still lists the objects",
        "None, unless it persists: then something else may write to the bucket.",
    ),
    "manifest.damaged": Event(
        "a manifest in the bucket is damaged and will be replaced",
        "Find out what else writes to the bucket: docs/runbooks/damaged-object.md.",
    ),
    "manifest.recovery.adopted": Event(
        "the quorum was recovered, and the manifest in the bucket is adopted: the recovered one is older, or "
        "lists missing objects",
        "Compare the offsets with what you expect: docs/runbooks/lost-majority-for-good.md.",
    ),
    "manifest.recovery.missing": Event(
        "the quorum was recovered, and the bucket has no manifest",
        "None if the partition was never tiered: docs/runbooks/lost-majority-for-good.md.",
    ),
    "manifest.recovery.unread": Event(
        "cannot lead: the quorum was recovered, and the manifest in the bucket must be read",
        "Check the object store: docs/runbooks/lost-majority-for-good.md.",
    ),
    "manifest.wrong": Event(
        "a manifest in the bucket is wrong and is written again",
        "Find out what else writes to the bucket: docs/runbooks/damaged-object.md.",
    ),
    "merge.ended": Event("merge ended"),
    "merge.failed": Event("segments were not merged or compacted", "None: a later pass tries again."),
    "merge.segments": Event("segments merged"),
    "remote_cache.above_budget": Event(
        "remote reads use more memory than remote.cache.memory.bytes",
        "Raise remote.cache.memory.bytes, or lower remote.log.reader.threads.",
    ),
    "remote_compaction.ended": Event("compacted a remote log"),
    "remote_object.damaged": Event("a remote object is damaged", "Follow docs/runbooks/damaged-object.md."),
    "remote_object.damaged.more": Event(
        "more remote objects are damaged or missing",
        "`tierlog doctor` counts them; GET /v1/tier/damaged lists them.",
    ),
    "remote_object.missing": Event("a remote object is missing", "Follow docs/runbooks/damaged-object.md."),
    "remote_object.restore_failed": Event(
        "a damaged remote object cannot be restored yet",
        "It is retried. If it persists: docs/runbooks/damaged-object.md.",
    ),
    "remote_object.restored": Event(
        "a damaged remote object was restored",
        "Find out what has changed the bucket: docs/runbooks/damaged-object.md.",
    ),
    "remote_object.well": Event(
        "a damaged remote object reads well again", "None. Check the network to the store if it recurs."
    ),
    "replacement.ended": Event("a replacement of segments was not continued"),
    "replacement.segments": Event("a job has replaced segments"),
    "snapshot.cleanup_failed": Event("snapshots that have ended are not removed yet", "None: it is retried."),
    "snapshot.ended": Event("a snapshot has ended"),
    "store.accepted": Event("the object store is accepted"),
    "store.available": Event("the object store is available again"),
    "store.check.undeleted": Event(
        "an object of the store's check was not deleted",
        "Allow DeleteObject for the credentials, and delete the object that `key` names.",
    ),
    "store.no_checksum": Event(
        "the object store verifies no CRC-32C", "None: uploads are read back, which takes longer."
    ),
    "store.probe_failed": Event(
        "the probe of the object store has failed", "Report this bug with its traceback."
    ),
    "store.refused": Event(
        "the object store is refused",
        "Set object.store.url to another store, or correct the configuration of this one: it is checked "
        "again every few minutes.",
    ),
    "store.unavailable": Event(
        "the object store is unavailable",
        "It is probed until it responds: docs/runbooks/bucket-down.md.",
    ),
    "store.unset": Event(
        "remote data cannot be read: object.store.url is not set",
        "Set object.store.url to the store that has it: `directory` if this node was standalone until "
        "now. All brokers must reach it.",
    ),
    "tier.replica.start_failed": Event(
        "cannot start a replica from the tier",
        "It is retried. If it persists: docs/runbooks/bucket-down.md.",
    ),
    "tier.replica.started": Event("started a replica from the tier"),
    "tiering.blocked": Event("tiering is blocked", "`reason` says what must be changed."),
    "tiering.diverged": Event(
        "cannot lead: remote segments with other records are still in the manifest",
        "Check the object store: docs/runbooks/bucket-down.md. It is retried.",
    ),
    "tiering.failed": Event(
        "tiering failed",
        "It is retried. If it persists, check the store: docs/runbooks/bucket-down.md.",
    ),
    "tiering.retention.failed": Event("local retention failed", "Check the disk; it is retried."),
    "tiering.roll_failed": Event("cannot roll a segment", "Check the disk; it is retried."),
    "tiering.timer.failed": Event("tiering's timer failed", "Report this bug with its traceback."),
    "topic.description.unreadable": Event(
        "a topic's description cannot be read",
        "Find out what else writes to the bucket: docs/runbooks/damaged-object.md.",
    ),
    "upload.ended": Event("upload ended"),
    "upload.in_time": Event("records are uploaded in time again"),
    "upload.late": Event(
        "records are not uploaded in time",
        "Check the store: docs/runbooks/bucket-down.md. If it works, uploads are slower than the load.",
    ),
    "upload.segment": Event("segment tiered"),
    "upload.stalled": Event("an upload does not end", "Check the network to the store."),
    "upload.unfinished.aborted": Event("aborted unfinished uploads"),
}
