"""Prometheus metrics, under names that Kafka's exporters use where they have one. Collected when scraped."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tierlog.broker.gateway.node import Node
from tierlog.broker.runtime.data_directories import DataDirectories
from tierlog.broker.runtime.log_cleaner import LogCleaner
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.wire.api import APIS


def render(node: Node) -> bytes:
    """The text format; a registry of its own, so that nothing of the process leaks in."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(node))
    return generate_latest(registry)


class _Collector:
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        lag = self._node.loop_lag.seconds
        yield HistogramMetricFamily(
            "tierlog_loop_lag_seconds",
            "How late a timer fires: what holds up the event loop holds up every client",
            buckets=list(lag.cumulative()),
            sum_value=lag.total,
        )
        if self._node.listener is not None:
            yield CounterMetricFamily(
                "kafka_server_bytes_in", "Bytes received from clients", self._node.listener.received_bytes
            )
            yield CounterMetricFamily(
                "kafka_server_bytes_out", "Bytes sent to clients", self._node.listener.sent_bytes
            )
            yield GaugeMetricFamily(
                "kafka_server_socket_server_connection_count",
                "Open connections",
                self._node.listener.connections,
            )
            yield CounterMetricFamily(
                "kafka_server_socket_server_refused_connections",
                "Connections refused at a bound",
                sum(self._node.listener.refused.values()),
            )
        if self._node.replicas is not None:
            yield from self._logs(list(self._node.replicas))
            yield GaugeMetricFamily(
                "kafka_server_replica_manager_offline_replica_count",
                "Replicas whose log or log directory has failed",
                self._node.replicas.offline_count,
            )
            yield from _directories(self._node.replicas.directories)
        if self._node.cleaner is not None:
            yield from _cleaner(self._node.cleaner)
        yield from self._remote()

    def _requests(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(
            "kafka_network_request_duration_seconds", "From the request to its answer", labels=["request"]
        )
        failures = CounterMetricFamily(
            "kafka_network_request_failures", "Requests that failed as a whole", labels=["request"]
        )
        for api, stats in sorted(self._node.stats.by_api.items()):
            if not stats.seconds.count:
                continue
            times.add_metric([APIS[api].name], list(stats.seconds.cumulative()), stats.seconds.total)
            failures.add_metric([APIS[api].name], stats.failures)
        yield times
        yield failures

    def _logs(self, replicas: list[Replica]) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        families: dict[str, tuple[str, Callable[[Replica], int]]] = {
            "kafka_log_log_size": ("Bytes on local disk", lambda replica: replica.log.size_bytes),
            "kafka_log_log_start_offset": (
                "First offset, over both tiers",
                lambda replica: replica.log_start_offset,
            ),
            "kafka_log_log_local_start_offset": (
                "First offset on local disk",
                lambda replica: replica.local_log_start_offset,
            ),
            "kafka_log_log_end_offset": ("Next offset", lambda replica: replica.log_end_offset),
            "kafka_cluster_partition_high_watermark": (
                "First offset that is not committed",
                lambda replica: replica.high_watermark,
            ),
        }
        for name, (doc, value) in families.items():
            family = GaugeMetricFamily(name, doc, labels=labels)
            for replica in replicas:
                family.add_metric([replica.name.topic, str(replica.name.partition)], value(replica))
            yield family
        yield GaugeMetricFamily(
            "kafka_server_replica_manager_partition_count", "Replicas on this broker", len(replicas)
        )

    def _remote(self) -> Iterator[Metric]:
        image = self._node.metadata.image
        labels = ["topic", "partition"]
        size = GaugeMetricFamily(
            "kafka_log_remote_remote_log_size_bytes", "Bytes in the object store", labels=labels
        )
        count = GaugeMetricFamily(
            "kafka_log_remote_remote_log_segments", "Segments in the object store", labels=labels
        )
        for key, remote in image.remote.items():
            topic = image.topics.get(key.topic_id)
            if topic is None:
                continue
            where = [topic.name, str(key.partition)]
            paged = sum(page.log_bytes for page in remote.pages)
            size.add_metric(where, paged + sum(entry.log_bytes for entry in remote.entries))
            count.add_metric(where, len(remote.entries) + sum(page.entries for page in remote.pages))
        yield size
        yield count
        yield GaugeMetricFamily(
            "kafka_log_remote_delete_queue_size",
            "Objects that wait for their deletion",
            len(image.delete_queue),
        )


def _cleaner(cleaner: LogCleaner) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kafka_log_log_cleaner_manager_uncleanable_partitions_count",
        "Logs whose compaction failed, left alone until the next start",
        cleaner.uncleanable,
    )
    yield GaugeMetricFamily(
        "kafka_log_log_cleaner_manager_max_dirty_percent",
        "Dirty share of the dirtiest log",
        100 * cleaner.most_dirty,
    )
    yield CounterMetricFamily(
        "tierlog_log_cleaner_read_bytes", "Bytes that compaction read", cleaner.bytes_read
    )
    yield CounterMetricFamily(
        "tierlog_log_cleaner_written_bytes", "Bytes that compaction kept", cleaner.bytes_written
    )


def _directories(directories: DataDirectories) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kafka_log_log_manager_offline_log_directory_count",
        "Log directories that have failed",
        len(directories.offline),
    )
    full = GaugeMetricFamily(
        "tierlog_log_directory_full", "Whether appends wait for room in it", labels=["directory"]
    )
    for directory in directories.online:
        full.add_metric([str(directory.path)], int(directory.is_full))
    yield full
