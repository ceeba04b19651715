"""Series of the usual Kafka dashboards: which tierlog has, which Prometheus derives, and which are missing.

The dashboards are kafka_exporter's (Grafana 7589) and Confluent's for the JMX exporter. `RECORDED` become
recording rules, so that brokers need not export anything twice.
"""

from collections.abc import Iterator

RULE_FILE = "kafka_names.yml"
PAGE_HEAD = """# Kafka's usual dashboards

Series for which kafka_exporter's dashboard (Grafana 7589) and Confluent's dashboards for the JMX
exporter (cluster, topics) ask, and further ones of kafka_exporter. The cluster dashboard was read
in part, so it may ask for series that the table lacks. Prometheus derives the *recorded* ones by
the rules in `kafka_names.yml`, which `tierlog generate alerts` writes: name the file under
`rule_files`. The dashboards select `job="kafka-broker"` and `job="kafka-controller"`: replace both
by the name of your job when you import them.
"""

_QUANTILES = ("0.5", "0.95", "0.99")
_TOPICS = "kafka_server_brokertopicmetrics_"
_REQUESTS = "kafka_network_requestmetrics_"
_CONTROLLER = "kafka_controller_kafkacontroller_"
_REPLICAS = "kafka_server_replicamanager_"
_SOCKETS = "kafka_server_socket_server_metrics_"
_CONNECTIONS = "kafka_server_socketservermetrics_"
_GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
_PARTITION = "job, topic, partition"
_IDLE = "clamp_min(1 - rate(process_cpu_seconds_total[5m]) and on (job, instance) tierlog_build_info, 0)"

NATIVE = (
    "kafka_consumergroup_current_offset",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_lag_sum",
    "kafka_log_log_logendoffset",
    "kafka_log_log_logstartoffset",
    "kafka_log_log_size",
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    *(
        f"{_GROUPS}numgroups{state}"
        for state in ("", "stable", "preparingrebalance", "completingrebalance", "empty", "dead")
    ),
    f"{_CONTROLLER}activecontrollercount",
    f"{_CONTROLLER}globalpartitioncount",
    f"{_CONTROLLER}globaltopiccount",
    f"{_CONTROLLER}offlinepartitionscount",
    f"{_CONTROLLER}preferredreplicaimbalancecount",
    f"{_REPLICAS}leadercount",
    f"{_REPLICAS}partitioncount",
    f"{_REPLICAS}underminisrpartitioncount",
    f"{_REPLICAS}underreplicatedpartitions",
)

RECORDED = {
    "kafka_brokers": f"max by (job) ({_CONTROLLER}activebrokercount)",
    "kafka_consumergroup_current_offset_sum": "sum by (job, consumergroup, topic) "
    "(kafka_consumergroup_current_offset)",
    "kafka_topic_partition_current_offset": f"max by ({_PARTITION}) (tierlog_partition_high_watermark)",
    "kafka_topic_partition_oldest_offset": f"max by ({_PARTITION}) (kafka_log_log_logstartoffset)",
    "kafka_topic_partition_replicas": f"count by ({_PARTITION}) (kafka_log_log_size)",
    "kafka_topic_partitions": f"count by (job, topic) (count by ({_PARTITION}) (kafka_log_log_size))",
    "kafka_log_log_tiersize": f"max by ({_PARTITION}) (tierlog_remote_log_size_bytes)",
    f"{_TOPICS}bytesinpersec": f"{_TOPICS}bytesin_total",
    f"{_TOPICS}bytesoutpersec": f"{_TOPICS}bytesout_total",
    f"{_TOPICS}messagesinpersec": f"{_TOPICS}messagesin_total",
    f"{_REQUESTS}requestspersec": f"{_REQUESTS}requests_total",
    f"{_REQUESTS}errorspersec": f"{_REQUESTS}errors_total",
    f"{_REPLICAS}isrshrinkspersec": f"{_REPLICAS}isrshrinks_total",
    f"{_REPLICAS}isrexpandspersec": f"{_REPLICAS}isrexpands_total",
    f"{_CONNECTIONS}connection_count": "tierlog_connections",
    f"{_CONNECTIONS}connection_creation_rate": f"rate({_SOCKETS}connection_creation_total[5m])",
    f"{_CONNECTIONS}connection_close_rate": "sum by (job, instance) "
    f"(rate({_SOCKETS}connection_close_total[5m]))",
    "kafka_network_socketserver_networkprocessoravgidlepercent": _IDLE,
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_total": _IDLE,
    "kafka_server_replicafetchermanager_maxlag": "max by (job, instance) (max by (job, topic, partition) "
    "(kafka_log_log_logendoffset) - on (job, topic, partition) group_right () kafka_log_log_logendoffset)",
}

RECORDED_QUANTILES = tuple(f"{_REQUESTS}{part}timems" for part in ("total", "local", "remote"))
"""Series with a label quantile, from tierlog's histograms of the same name."""

BESIDE_DASHBOARDS = frozenset(
    {
        "kafka_brokers",
        "kafka_consumergroup_current_offset",
        "kafka_consumergroup_current_offset_sum",
        "kafka_consumergroup_lag_sum",
        "kafka_topic_partition_oldest_offset",
        "kafka_topic_partition_replicas",
    }
)
"""Series of kafka_exporter for which its dashboard does not ask. They count in no share."""

MISSING = {
    f"{_TOPICS}totalproducerequestspersec": "requests are counted by API, not by topic",
    f"{_TOPICS}totalfetchrequestspersec": "requests are counted by API, not by topic",
    "kafka_controller_controllerstats_uncleanleaderelectionspersec": "not counted; the log has each",
    "kafka_server_replicafetchermanager_minfetchrate": "not measured",
    f"{_CONNECTIONS}connections": "connections are not counted by client software",
}
SENSELESS = {
    "kafka_network_requestchannel_requestqueuesize": "one event loop, no queue between threads",
    "kafka_network_requestchannel_responsequeuesize": "one event loop, no queue between threads",
    f"{_REQUESTS}requestqueuetimems": "one event loop, no queue between threads",
    f"{_REQUESTS}responsequeuetimems": "one event loop, no queue between threads",
    f"{_REQUESTS}responsesendtimems": "the kernel sends; tierlog_connections_blocked counts slow clients",
    f"{_TOPICS}producemessageconversionspersec": "old message formats are not converted",
    f"{_TOPICS}fetchmessageconversionspersec": "old message formats are not converted",
    "jvm_memory_bytes_used": "no JVM; process_resident_memory_bytes",
    "jvm_gc_collection_seconds_sum": "no JVM; tierlog_loop_lag_seconds shows pauses",
}


def shown() -> tuple[str, ...]:
    """Series with data, natively or recorded."""
    return (*NATIVE, *RECORDED, *RECORDED_QUANTILES)


def recording_rules() -> str:
    """The rule file."""
    return "\n".join(["groups:", "  - name: kafka-names", "    rules:", *_rules(), ""])


def _rules() -> Iterator[str]:
    for name, expression in RECORDED.items():
        yield f"      - record: {name}"
        yield f"        expr: '{expression}'"
        if name.endswith("maxlag"):
            yield "        labels: {clientid: Replica}"
    for name in RECORDED_QUANTILES:
        for quantile in _QUANTILES:
            yield f"      - record: {name}"
            yield (
                f"        expr: 'histogram_quantile({quantile}, sum by (job, instance, request, le) "
                f"(rate({name}_bucket[5m])))'"
            )
            yield f'        labels: {{quantile: "{quantile}"}}'


def reference_page() -> str:
    """The page docs/reference/kafka-dashboards.md, below its header."""
    lines = [PAGE_HEAD, "| series | state | why, or what else |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | exported | |" for name in NATIVE]
    lines += [f"| `{name}` | recorded | |" for name in (*RECORDED, *RECORDED_QUANTILES)]
    lines += [f"| `{name}` | missing | {why} |" for name, why in MISSING.items()]
    lines += [f"| `{name}` | senseless | {why} |" for name, why in SENSELESS.items()]
    return "\n".join([*lines, ""])
