"""Log events of log directories, logs, replication and maintenance."""

from typing import Final

from tierlog.broker.log_events.event import Event

STORAGE: Final = {
    "checkpoint.differs": Event(
        "a checkpoint and its copy differ: the smaller offsets are taken",
        "None: more of the log is checked. Check the disk if it recurs.",
    ),
    "checkpoint.unreadable": Event(
        "a checkpoint is unreadable",
        "None: `instead` says what is used. Check the disk if it recurs.",
    ),
    "checkpoint.write_failed": Event(
        "cannot write checkpoints",
        "Check the disk, and its free space: docs/runbooks/full-disk.md.",
    ),
    "compaction.batch.kept": Event(
        "a batch cannot be compacted and is kept as it is; consumers may fail to read it",
        "Delete it with DeleteRecords when the consumers have passed it.",
    ),
    "compaction.ended": Event("compacted a log"),
    "compaction.failed": Event(
        "a log cannot be compacted and is left as it is",
        "If a damage is the cause, follow docs/runbooks/damaged-log.md; else report this bug.",
    ),
    "compaction.interrupted": Event(
        "a segment was deleted while its log was compacted; the log will be compacted again"
    ),
    "compaction.no_space": Event(
        "not enough space to compact a log; the log will be compacted again later",
        "Make space: docs/runbooks/full-disk.md.",
    ),
    "fetch.decode_failed": Event(
        "cannot decode a response",
        "Check that all nodes have compatible versions: `tierlog cluster versions`.",
    ),
    "fetch.failed": Event("a fetcher failed and reconnects", "Report this bug with its traceback."),
    "fetch.leader.unreachable": Event(
        "cannot reach a leader",
        "None while a broker restarts. Otherwise docs/runbooks/lost-broker.md.",
    ),
    "fetch.partition.failed": Event(
        "fetching a partition failed",
        "If it recurs, check the disk; else report this bug with its traceback.",
    ),
    "fetch.partition.rejected": Event(
        "cannot fetch a partition now",
        "None: it is retried. If it persists, `tierlog partition list` shows its leader and replicas.",
    ),
    "fetch.rejected": Event(
        "a leader rejected a fetch request",
        "None: it is retried. If it persists, compare the versions and ACLs of the brokers.",
    ),
    "flush.failed": Event("flush failed", "Check the disk: its log directory goes offline if it fails."),
    "isr.rejected": Event(
        "the controller rejected in-sync sets", "None: the broker asks again with newer metadata."
    ),
    "isr.unanswered": Event(
        "the controller does not answer",
        "Check `tierlog quorum status`; it is retried.",
    ),
    "log.aligned": Event("a follower aligns its log with its leader's"),
    "log.close_failed": Event(
        "a log did not close cleanly",
        "None: the next start checks the log. Check the disk if it recurs.",
    ),
    "log.damage.unserved": Event("a replica cannot serve the damaged range"),
    "log.damage.unserved_remote": Event("a replica cannot serve a range that is damaged in the object store"),
    "log.damaged": Event("a log is damaged", "None if the repair succeeds; docs/runbooks/damaged-log.md"),
    "log.intact": Event("a suspected log is intact", "None. Check memory and disk if it recurs."),
    "log.maintenance.failed": Event(
        "log maintenance failed",
        "Check the disk, and its free space: docs/runbooks/full-disk.md.",
    ),
    "log.open_failed": Event(
        "cannot open a log for now",
        "`error` has the reason. It is retried; check the disk.",
    ),
    "log.read_failed": Event("cannot read a log", "Check the disk: docs/runbooks/damaged-log.md."),
    "log.repair_failed": Event("cannot repair a log", "Follow docs/runbooks/damaged-log.md."),
    "log.repaired": Event(
        "repaired a log from another replica",
        "Check the disk: it has returned other bytes than were written.",
    ),
    "log.shorter_than_checkpoint": Event(
        "a log ends before the end that its checkpoints record: files were lost or restored from an older "
        "copy; this replica leaves the in-sync set and fetches from the leader",
        "If no other replica has its records, stop the broker at once and restore the newer files.",
    ),
    "log.truncate_failed": Event(
        "cannot truncate a damaged log", "Check the disk: docs/runbooks/damaged-log.md."
    ),
    "log.truncated": Event(
        "truncated a log at its damage; the rest is fetched again", "Check the disk if it recurs."
    ),
    "log.truncated.start": Event(
        "truncated a log at damage",
        "None after a crash: the replica fetches the rest from its leader.",
    ),
    "log.unlink_failed": Event("cannot unlink", "Check the permissions of the directory, and the disk."),
    "log_dir.close_failed": Event(
        "a log directory was not closed cleanly",
        "None: the next start checks its logs. Check the disk if it recurs.",
    ),
    "log_dir.close_hangs": Event(
        "a log directory was not closed cleanly: it hangs",
        "Check the disk. The next start checks its logs.",
    ),
    "log_dir.failed": Event(
        "a log directory went offline",
        "Replace the disk and restart the broker; other replicas serve its partitions. "
        "docs/runbooks/lost-broker.md",
    ),
    "log_dir.full": Event(
        "a log directory is full: appends are refused",
        "Make space: docs/runbooks/full-disk.md.",
    ),
    "log_dir.offline": Event(
        "a log directory is offline",
        "Replace or mount the disk and restart the broker, or remove the directory from log.dirs.",
    ),
    "log_dir.partition.duplicate": Event(
        "a partition was found twice; the copy in the directory that was offline is set aside",
        "Delete the copy that `aside` names when the partition is in sync.",
    ),
    "log_dir.partition.moved": Event(
        "a partition may have moved to a directory that is not in log.dirs; the old copy is set aside",
        "Add that directory to log.dirs, or delete the old copy when the partition is in sync.",
    ),
    "log_dir.partition.move_completed": Event(
        "a partition had moved when the node stopped", "None: the old copy is removed."
    ),
    "log_dir.partition.unknown": Event(
        "the cluster does not know this partition; its directory was renamed",
        "Delete the directory if the topic was deleted.",
    ),
    "log_dir.pressure": Event(
        "free space is below log.dir.free.bytes.min, or the disk is full: local segments of topics with "
        "remote.log.disk.pressure.policy=drop-oldest-uploaded are deleted",
        "Make space, or lower local.retention.bytes: docs/runbooks/full-disk.md.",
    ),
    "log_dir.pressure.ended": Event("a disk has enough free space again"),
    "log_dir.space.back": Event("a log directory has free space again"),
    "logs.opened": Event("logs opened"),
    "move.cancelled": Event("a move to another log directory was cancelled"),
    "move.cleanup_failed": Event(
        "a replica has moved to another log directory; the next start removes the old one",
        "Check the disk of the old directory.",
    ),
    "move.delayed": Event(
        "a move between log directories is delayed",
        "`why` has the reason; it is retried.",
    ),
    "move.ended": Event("a replica has moved to another log directory"),
    "move.failed": Event(
        "a replica cannot move to another log directory",
        "Check both disks, then start the move again: `tierlog partition move-dir`.",
    ),
    "partition.offline": Event(
        "a partition is offline",
        "`why` has the reason. Other replicas serve it if there are any: docs/runbooks/damaged-log.md.",
    ),
    "partition.remove_failed": Event(
        "cannot remove a deleted partition",
        "Check the disk. The next start removes it.",
    ),
    "replica.not_leading": Event(
        "cannot lead yet: the log cannot be compared with the remote log, or be moved to its end",
        "Check the object store: docs/runbooks/bucket-down.md. It is retried.",
    ),
    "replica.report.accepted": Event("the controller accepted a report of replicas"),
    "replica.report.rejected": Event(
        "the controller rejected a report", "None: it is sent again with newer metadata."
    ),
    "replica.report.unanswered": Event(
        "the controller does not respond to a report of replicas",
        "Check `tierlog quorum status`; it is retried.",
    ),
    "replica.tier_epochs.differ": Event(
        "the leader epochs of the local log and the manifest differ, but their records are the same",
        "None: the records are right. Report this bug.",
    ),
    "replica.unclean.local_dropped": Event(
        "after an unclean election, remote segments have other records than the new leader's log, which "
        "starts after them: the local log is discarded",
        "Records of the old leader may be lost: set unclean.leader.election.enable=false to prevent it.",
    ),
    "replica.unclean.remote_dropped": Event(
        "after an unclean election, remote segments have other records than the new leader's log: they "
        "leave the manifest",
        "Records of the old leader may be lost: set unclean.leader.election.enable=false to prevent it.",
    ),
}
