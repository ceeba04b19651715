"""Log events of a node's life, the metadata quorum, brokers, groups and transactions."""

from typing import Final

from tierlog.broker.log_events.event import Event

CLUSTER: Final = {
    "broker.fenced": Event(
        "this broker is fenced: it serves no clients",
        "None if it is starting or stopping. Otherwise check its network to the controllers, and its load.",
    ),
    "broker.heartbeat.rejected": Event(
        "the controller rejects heartbeats",
        "`why` has the reason. `tierlog quorum status` shows whether the quorum works.",
    ),
    "broker.heartbeat.unanswered": Event(
        "no controller answers",
        "Check the network and `tierlog quorum status`. docs/runbooks/lost-majority.md",
    ),
    "broker.left_isr": Event(
        "this broker's replicas leave the in-sync replicas until they catch up",
        "None: they catch up from their leaders.",
    ),
    "broker.registration.failed": Event(
        "not registered",
        "Check the network and `tierlog quorum status`; it is retried.",
    ),
    "broker.registration.repeated": Event(
        "registering again",
        "None, unless it recurs: then another process may run with the same node.id.",
    ),
    "broker.registration.waiting": Event(
        "waiting for the session of another process to end",
        "None after a crash. Otherwise stop the other process with the same node.id.",
    ),
    "broker.stopping.leading": Event(
        "stopping with leaderships that no other broker took over",
        "Their partitions are offline until this broker starts again, if it has the only in-sync replica.",
    ),
    "broker.stopping.unheard": Event(
        "stopping without handing over leaderships: no controller answers",
        "Check `tierlog quorum status`. Partitions fail over when the broker's session ends.",
    ),
    "broker.unclean_start": Event(
        "unflushed records may be lost: replicas leave the in-sync replicas until they catch up",
        "None: they catch up from their leaders. Find out why the machine or process ended.",
    ),
    "broker.unfenced": Event("this broker is unfenced: it serves clients"),
    "coordinator.load_failed": Event(
        "cannot load a coordinator shard; it is retried",
        "Groups or transactions of the partition wait. If it persists, check the log of the partition: "
        "docs/runbooks/damaged-log.md.",
    ),
    "coordinator.loaded": Event("coordinator shard loaded"),
    "coordinator.rebuilt": Event(
        "a coordinator shard failed and is rebuilt from its log",
        "Report this bug with its traceback; clients retry.",
    ),
    "coordinator.records.skipped": Event(
        "unusable records of a coordinator were skipped",
        "Report this bug. `tierlog log dump` shows the records.",
    ),
    "coordinator.topic.missing": Event(
        "cannot create an internal topic; clients wait for it",
        "Start enough brokers for its replication factor, or lower that in the settings.",
    ),
    "group.assignor.failed": Event(
        "an assignor failed; it is retried",
        "Report this bug with its traceback.",
    ),
    "group.lag.incomplete": Event(
        "the lag of some groups is not in the metrics",
        "Raise group.lag.metrics.max.partitions.",
    ),
    "group.regex.invalid": Event(
        "a regular expression is invalid",
        "Correct the subscription of the group's members.",
    ),
    "library.message": Event(
        "a message of a library that the node uses",
        "Report it as a bug if it has a traceback.",
    ),
    "loop.blocked": Event(
        "the event loop was blocked",
        "If it recurs, the machine has too little CPU or swaps, or this is a bug worth a report.",
    ),
    "metadata.disk.full": Event(
        "metadata disk is full: released the disk reserve",
        "Make space at once: docs/runbooks/full-disk.md.",
    ),
    "metadata.disk.hangs": Event(
        "the metadata disk hangs: this node takes no part in the quorum until it recovers",
        "Check the disk. Replace the node if it does not recover: docs/runbooks/replace-node.md.",
    ),
    "metadata.leaders.balanced": Event("elected preferred leaders"),
    "metadata.log.rejected": Event(
        "rejected the committed log of a quorum node",
        "`why` says what to do: often this node belongs to another cluster, or has an old data directory.",
    ),
    "metadata.observing": Event("not a member of the quorum: continuing as an observer"),
    "metadata.publisher.failed": Event(
        "a part of the node failed on new metadata",
        "Report this bug with its traceback.",
    ),
    "metadata.reserve.failed": Event(
        "cannot reserve disk space for the metadata log",
        "Make space on its disk: docs/runbooks/full-disk.md.",
    ),
    "node.failing": Event(
        "the node cannot continue",
        "Restart it. Report this bug with its traceback if it recurs.",
    ),
    "node.files.limited": Event(
        "RLIMIT_NOFILE is too low for log.max.open.files: fewer log files stay open",
        "Raise the limit (systemd: LimitNOFILE=) above `needed`.",
    ),
    "node.serving": Event("serving"),
    "node.start.stopped": Event("stopped during startup"),
    "node.stopped": Event("stopped"),
    "node.stopping": Event("begins to stop"),
    "node.task.failed": Event(
        "a request or a task failed",
        "The node continues. Report this bug with its traceback; if it recurs, a restart may help.",
    ),
    "node.task.goes_on": Event(
        "tasks have not ended since their cancellation, and are cancelled again",
        "None if the node then stops. Report their names as a bug if it does not, and kill it.",
    ),
    "quorum.leader.changed": Event("the quorum has a new leader"),
    "quorum.leader.lost": Event(
        "this node knows no leader of the quorum",
        "None if one is elected within seconds. If not, see in `tierlog quorum status` which voters respond.",
    ),
    "quorum.leadership.kept": Event("no other voter took quorum leadership"),
    "quorum.leadership.transferred": Event("transferred quorum leadership"),
    "quorum.member.unexpected_directory": Event(
        "a member sent a request from an unexpected directory",
        "If its disk was replaced, remove it from the quorum and add it again.",
    ),
    "quorum.response.rejected": Event(
        "rejected a response of a quorum node",
        "Give all nodes the same controller.quorum.secret, and check that nothing intercepts their traffic.",
    ),
    "quorum.version.mismatch": Event(
        "nodes of different versions do not understand each other",
        "Upgrade the older node: docs/howto/upgrade.md.",
    ),
    "quorum.version.refused": Event(
        "refused a node with another version",
        "Upgrade that node, or this one: docs/howto/upgrade.md.",
    ),
    "quorum.waiting": Event("waiting for a quorum"),
    "rebalance.ended": Event("moves that balanced the load have ended, and their throttle is removed"),
    "rebalance.held": Event("nothing is moved to balance the load: `why`"),
    "rebalance.started": Event("moves leaders and replicas to balance the load"),
    "sentinel.ended": Event("sentinel process ended; starting another", "None, unless it recurs."),
    "sentinel.start_failed": Event(
        "cannot start the sentinel: a crash of this broker is noticed only when its session ends",
        "Raise the limits of processes and memory; it is retried.",
    ),
    "sentinel.unreachable": Event(
        "cannot send instructions to the sentinel process; replacing it", "None, unless it recurs."
    ),
    "settings.changed": Event("settings have changed"),
    "settings.overridden": Event(
        "a setting of this node has no effect, since the cluster's value applies",
        "Change that with `tierlog broker alter --config` or `kafka-configs --entity-type brokers "
        "--entity-default`, or remove the node's own value from its file and its settings.",
    ),
    "token.expired.removed": Event("removed expired delegation tokens"),
    "topic.auto_creation.failed": Event(
        "cannot create a topic that a client requested",
        "`error` has the reason. Create the topic with `tierlog topic create`.",
    ),
    "traces.export_failed": Event(
        "the collector of traces accepts no spans: they are dropped until it does",
        "Check OTEL_EXPORTER_OTLP_ENDPOINT and the collector: docs/howto/logs-and-traces.md.",
    ),
    "traces.exported": Event("the collector of traces accepts spans again"),
    "transaction.marker.skipped": Event(
        "a partition has a later epoch than the transaction that ends; its marker is left out",
        "Check the transaction with `tierlog txn describe`.",
    ),
    "transaction.response.invalid": Event(
        "invalid response of a broker; its items are sent again",
        "If it recurs, check that all nodes have compatible versions: `tierlog cluster versions`.",
    ),
}
