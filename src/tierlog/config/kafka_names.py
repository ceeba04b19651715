"""Broker settings of Kafka 4.3 that tierlog does not use: which of them can be set while brokers run.

Kafka's dynamic settings are accepted, kept and shown, so that scripts written for Kafka work; their
documentation says that they have no effect. Settings that Kafka reads at startup are rejected, as in Kafka.
Settings that would promise missing security features or storage are rejected too.
"""

import re
from typing import Any

from tierlog.config.definitions import Setting, SettingType, Value

INT, LONG, LIST, BOOLEAN = SettingType.INT, SettingType.LONG, SettingType.LIST, SettingType.BOOLEAN

NO_EFFECT = " Accepted, kept and shown as in Kafka; it has no effect."


def _inert(name: str, type: SettingType, default: Value, why: str, **bounds: Any) -> Setting:
    return Setting(name=name, type=type, default=default, doc=why + NO_EFFECT, **bounds)


INERT_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _inert("background.threads", INT, 10, "Background tasks run on the event loop.", minimum=1),
        _inert(
            "compression.gzip.level",
            INT,
            -1,
            "Batches are compressed at the codec's default level.",
            choices=("-1", *map(str, range(1, 10))),
        ),
        _inert(
            "compression.lz4.level",
            INT,
            9,
            "Batches are compressed at the codec's default level.",
            minimum=1,
            maximum=17,
        ),
        _inert(
            "compression.zstd.level",
            INT,
            3,
            "Batches are compressed at the codec's default level.",
            minimum=-131_072,
            maximum=22,
        ),
        _inert("config.providers", LIST, (), "The providers file, env and directory need no setting."),
        _inert(
            "group.coordinator.cached.buffer.max.bytes",
            INT,
            1048588,
            "The group coordinator caches no buffers.",
            minimum=524_288,
        ),
        _inert("group.share.assignment.interval.ms", INT, 1000, "Share groups are not supported.", minimum=0),
        _inert(
            "group.streams.assignment.interval.ms", INT, 1000, "Streams groups are not supported.", minimum=0
        ),
        _inert(
            "log.cleaner.io.buffer.size", INT, 524288, "The cleaner reads windows of a fixed size.", minimum=0
        ),
        # Kafka accepts 0 in a file and later fails with a division by zero
        _inert("log.cleaner.threads", INT, 1, "The log cleaner compacts one log at a time.", minimum=1),
        _inert("metric.reporters", LIST, (), "Metrics are available at /metrics of the admin server."),
        _inert("num.io.threads", INT, 8, "The event loop handles requests.", minimum=1),
        _inert("num.network.threads", INT, 3, "The event loop serves connections.", minimum=1),
        _inert(
            "remote.list.offsets.request.timeout.ms",
            LONG,
            30000,
            "ListOffsets searches the object store for up to 30 s.",
            minimum=1,
        ),
        _inert(
            "remote.log.index.file.cache.total.size.bytes",
            LONG,
            1073741824,
            "remote.cache.bytes bounds the cache of remote data.",
            minimum=1,
        ),
        _inert(
            "remote.log.manager.copier.thread.pool.size",
            INT,
            10,
            "Eight segments are copied at a time.",
            minimum=1,
        ),
        _inert(
            "remote.log.manager.expiration.thread.pool.size",
            INT,
            10,
            "One broker deletes expired objects.",
            minimum=1,
        ),
        _inert(
            "remote.log.manager.follower.thread.pool.size",
            INT,
            2,
            "Followers need no thread for remote data.",
            minimum=1,
        ),
        _inert(
            "share.coordinator.cached.buffer.max.bytes",
            INT,
            1048588,
            "Share groups are not supported.",
            minimum=524_288,
        ),
    )
}
"""Kafka's default and bounds of each setting, and why it has no effect."""

THREAD_COUNTS = frozenset(
    {
        "background.threads",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
    }
)
"""Settings that are thread counts in Kafka. A change may at most double or halve the value (KIP-226)."""

_READ_AT_START = """
add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds client.quota.callback.class
controlled.shutdown.enable
controller.listener.names controller.quorum.append.linger.ms controller.quorum.auto.join.enable
controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes
controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.socket.timeout.ms
create.topic.policy.class.name
delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners
fetch.purgatory.purge.interval.requests
group.coordinator.append.linger.ms group.coordinator.background.threads
group.coordinator.threads group.share.assignors
group.share.delivery.count.limit group.share.heartbeat.interval.ms
group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
group.share.max.share.sessions group.share.max.size group.share.min.assignment.interval.ms
group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
group.share.min.session.timeout.ms group.share.partition.max.record.locks
group.share.record.lock.duration.ms group.share.session.timeout.ms group.streams.heartbeat.interval.ms
group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
group.streams.num.standby.replicas group.streams.session.timeout.ms
initial.broker.registration.timeout.ms inter.broker.listener.name kafka.metrics.polling.interval.secs
kafka.metrics.reporters log.dir.failure.timeout.ms log.flush.start.offset.checkpoint.interval.ms
metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
metadata.max.retention.bytes metadata.max.retention.ms metrics.num.samples metrics.recording.level
metrics.sample.window.ms num.replica.alter.log.dirs.threads offsets.load.buffer.size
offsets.topic.compression.codec producer.purgatory.purge.interval.requests queued.max.requests
remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable replica.high.watermark.checkpoint.interval.ms
replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
replication.quota.window.size.seconds request.timeout.ms share.coordinator.append.linger.ms
share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
share.coordinator.state.topic.num.partitions share.coordinator.state.topic.replication.factor
share.coordinator.state.topic.segment.bytes share.coordinator.threads share.coordinator.write.timeout.ms
share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms socket.listen.backlog.size telemetry.max.bytes
transaction.state.log.load.buffer.size
"""
READ_AT_START = frozenset(_READ_AT_START.split())

MISSING_FEATURES = {
    "listeners": "listeners are opened once, at startup",
    "principal.builder.class": "principals come from certificates (ssl.principal.mapping.rules) and logins",
    "cordoned.log.dirs": "log directories cannot be cordoned",
}
"""Dynamic settings of Kafka that are rejected, since an operator would rely on their effect."""

SECURITY = ("ssl.", "sasl.", "security.", "listener.name.")
"""Prefixes of security settings, rejected for the same reason. Files of keys and certificates are read again
when they are replaced."""


SECRET_NAME = re.compile(
    r"(?:^|[._-])(?:pass|password|passwd|passphrase|secret|credentials?|token|jaas)(?:$|[._-])"
    r"|(?:access|api|encryption|private|secret)[._-]?key(?:$|[._-])",
    re.IGNORECASE,
)
"""Names whose values are secrets. The quorum would keep them unencrypted, in the directory of every node that
votes, without any use for them."""


def why_not_settable(name: str) -> str | None:
    """For a name that is not a setting of tierlog: why it is rejected. None: it is accepted and has no
    effect."""
    if name in READ_AT_START:
        return "read by a node at startup, and unknown to tierlog"
    if name.startswith(SECURITY):
        return "security settings are read by a node at startup"
    if SECRET_NAME.search(name):
        return "unknown to tierlog, and the metadata log keeps no secrets: its snapshots are not encrypted"
    return MISSING_FEATURES.get(name)
