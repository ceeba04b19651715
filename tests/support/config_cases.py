"""Requests about settings and features whose responses are compared with Apache Kafka's (test_like_kafka)."""

from typing import Any

from wire_client import Client, message

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32  # resource types


def clear(broker_id: str, *names: str) -> dict[str, Any]:
    changes = [{"name": name, "config_operation": 1, "value": None} for name in names]
    return {"resources": [{"resource_type": BROKER, "resource_name": broker_id, "configs": changes}]}


def set_node(broker_id: str, name: str, value: str, *, check: bool = False) -> dict[str, Any]:
    changes = [{"name": name, "config_operation": 0, "value": value}]
    resource = {"resource_type": BROKER, "resource_name": broker_id, "configs": changes}
    return {"resources": [resource], "validate_only": check}


def alter_of(kind: int, resource: str, name: str, value: str | None, operation: int = 0) -> dict[str, Any]:
    changes = [{"name": name, "config_operation": operation, "value": value}]
    return {"resources": [{"resource_type": kind, "resource_name": resource, "configs": changes}]}


def replace_all(group: str, name: str, value: str | None) -> dict[str, Any]:
    resource = {"resource_type": GROUP, "resource_name": group, "configs": [{"name": name, "value": value}]}
    return {"resources": [resource]}


def describe_of(kind: int, resource: str, *keys: str) -> dict[str, Any]:
    requested = {"resource_type": kind, "resource_name": resource, "configuration_keys": list(keys) or None}
    return {"resources": [requested], "include_synonyms": True}


def feature(name: str, level: int, **more: Any) -> dict[str, Any]:
    return {"feature_updates": [{"feature": name, "max_version_level": level, **more}]}


CONFIG_CASES: dict[str, list[tuple[str, int, dict[str, Any]]]] = {
    "delete settings of a broker": [
        ("IncrementalAlterConfigs", 1, clear("1", "leader.replication.throttled.rate")),
        ("IncrementalAlterConfigs", 1, clear("1", "leader.replication.throttled.rate", "node.id")),
        ("IncrementalAlterConfigs", 1, clear("1")),
    ],
    "settings of nodes": [
        ("IncrementalAlterConfigs", 1, request)
        for request in (
            set_node("1", "num.partitions", "3"),
            set_node("", "num.partitions", "3"),
            set_node("", "log.retention.hours", "3"),
            set_node("1", "message.max.bytes", "many"),
            set_node("", "message.max.bytes", "-1"),
            set_node("", "log.local.retention.ms", "999999999999"),
            set_node("1", "min.insync.replicas", "1"),
            set_node("one", "message.max.bytes", "1"),
            set_node("1", "log.retention.ms", "1000", check=True),
            set_node("", "leader.replication.throttled.rate", "1000", check=True),
            set_node("", "log.cleaner.io.max.bytes.per.second", "1000", check=True),
            set_node("", "max.connections.per.ip", "-1"),
            set_node("", "min.insync.replicas", "1"),
            *(
                set_node(resource, name, value, check=True)
                for resource in ("1", "")
                for name, value in (
                    ("log.cleaner.threads", "2"),
                    ("log.cleaner.threads", "many"),
                    ("num.network.threads", "4"),
                    ("num.io.threads", "9"),
                    ("background.threads", "11"),
                    ("num.replica.fetchers", "2"),
                    ("num.replica.fetchers", "0"),
                    ("num.replica.fetchers", "3"),
                    ("num.network.threads", "-5"),
                    ("num.network.threads", "7"),
                    ("num.io.threads", "3"),
                    ("num.io.threads", "4"),
                    ("log.cleaner.threads", "0"),
                    ("log.cleaner.threads", "-1"),
                    ("compression.gzip.level", "0"),
                    ("compression.gzip.level", "99"),
                    ("compression.lz4.level", "18"),
                    ("compression.zstd.level", "-131073"),
                    ("group.coordinator.cached.buffer.max.bytes", "524287"),
                    ("remote.log.index.file.cache.total.size.bytes", "0"),
                    ("unclean.leader.election.enable", "true"),
                    ("unclean.leader.election.enable", "maybe"),
                    ("remote.log.reader.threads", "11"),
                    ("metric.reporters", ""),
                    ("transaction.partition.verification.enable", "false"),
                    ("my.own.setting", "x"),
                    ("queued.max.requests", "5"),
                    ("group.consumer.session.timeout.ms", "45000"),
                    ("group.consumer.assignment.interval.ms", "500"),
                    ("group.consumer.assignment.interval.ms", "-1"),
                    ("group.consumer.assignment.interval.ms", "15001"),
                    ("ssl.keystore.location", "/x"),
                    ("node.id", "3"),
                )
            ),
            alter_of(BROKER, "1", "log.cleaner.threads", "3", operation=2),
            alter_of(BROKER, "", "min.insync.replicas", None, operation=1),
            alter_of(BROKER, "1", "min.insync.replicas", None, operation=1),
        )
    ],
    "settings that are kept, whatever they do": [
        *[
            ("IncrementalAlterConfigs", 1, alter_of(BROKER, name, *setting))
            for name in ("1", "")
            for setting in (("my.own.setting", "x"), ("background.threads", "11"))
        ],
        *[
            (
                "DescribeConfigs",
                4,
                describe_of(BROKER, name, "my.own.setting", "background.threads", "num.io.threads"),
            )
            for name in ("1", "")
        ],
        *[
            ("IncrementalAlterConfigs", 1, alter_of(BROKER, name, setting, None, operation=1))
            for name in ("1", "")
            for setting in ("my.own.setting", "background.threads")
        ],
    ],
    "settings of groups": [
        *[
            ("IncrementalAlterConfigs", 1, alter_of(GROUP, "$t", name, value))
            for name, value in (
                ("consumer.session.timeout.ms", "50000"),
                ("consumer.session.timeout.ms", "1"),
                ("consumer.session.timeout.ms", "60001"),
                ("consumer.session.timeout.ms", "soon"),
                ("consumer.heartbeat.interval.ms", "4999"),
                ("consumer.heartbeat.interval.ms", "15000"),
                ("consumer.heartbeat.interval.ms", "15001"),
                ("consumer.assignment.interval.ms", "0"),
                ("consumer.assignment.interval.ms", "-1"),
                ("consumer.assignment.interval.ms", "15001"),
                ("share.auto.offset.reset", "earliest"),
                ("share.auto.offset.reset", "sooner"),
                ("nothing", "1"),
            )
        ],
        ("IncrementalAlterConfigs", 1, alter_of(GROUP, "", "consumer.session.timeout.ms", "50000")),
        *[("DescribeConfigs", 4, describe_of(GROUP, name)) for name in ("$t", "$t-no", "")],
        ("ListConfigResources", 1, {"resource_types": [GROUP]}),
        ("AlterConfigs", 2, replace_all("$t", "consumer.session.timeout.ms", "46000")),
        ("AlterConfigs", 2, replace_all("$t", "consumer.session.timeout.ms", "4600")),
        ("AlterConfigs", 2, replace_all("$t", "consumer.session.timeout.ms", None)),
        ("AlterConfigs", 2, replace_all("", "consumer.session.timeout.ms", "46000")),
        *[
            ("IncrementalAlterConfigs", 1, alter_of(GROUP, "$t", name, None, operation=1))
            for name in (
                "consumer.session.timeout.ms",
                "consumer.heartbeat.interval.ms",
                "consumer.assignment.interval.ms",
                "share.auto.offset.reset",
            )
        ],
    ],
    "settings of client metrics": [
        *[
            ("IncrementalAlterConfigs", 1, alter_of(CLIENT_METRICS, "$t", name, value))
            for name, value in (
                ("interval.ms", "1000"),
                ("interval.ms", "5"),
                ("match", "client_id=x,client_software_name=y"),
                ("match", "x"),
                ("metrics", "org.apache."),
                ("nothing", "1"),
            )
        ],
        ("IncrementalAlterConfigs", 1, alter_of(CLIENT_METRICS, "", "interval.ms", "1000")),
        *[("DescribeConfigs", 4, describe_of(CLIENT_METRICS, name)) for name in ("$t", "$t-no", "")],
        ("ListConfigResources", 0, {}),
        *[("ListConfigResources", 1, {"resource_types": types}) for types in ([16, 32, 4], [99], [0])],
        *[
            ("IncrementalAlterConfigs", 1, alter_of(CLIENT_METRICS, "$t", name, None, operation=1))
            for name in ("interval.ms", "match", "metrics")
        ],
    ],
    "settings of nothing that has them": [
        ("IncrementalAlterConfigs", 1, alter_of(kind, "1", "x", "1")) for kind in (0, 3, 64)
    ],
    "features": [
        ("UpdateFeatures", version, request)
        for version in (0, 1, 2)
        for request in (
            feature("$t", 1),
            feature("$t", 0),
            feature("metadata.version", 30),
            feature("metadata.version", 31),
            feature("metadata.version", 29),
            feature("metadata.version", -1),
            feature("eligible.leader.replicas.version", 1),
            feature("group.version", 2),
            feature("kraft.version", 0),
            feature("kraft.version", 2),
            feature("transaction.version", 3),
            {"feature_updates": [{"feature": "$t", "max_version_level": 1, "upgrade_type": 7}]},
            {"feature_updates": []},
        )
    ],
}


SET, DELETE = 0, 1
OF_ALL_BROKERS = 3
OWN_SOURCE = {TOPIC: 1, BROKER: 2, CLIENT_METRICS: 7, GROUP: 8}
"""Resource type -> what DescribeConfigs calls the source of a value that was set on the resource itself."""


def wait_for_configs(client: Client, sent: Any, answer: Any) -> None:
    """Wait until a change is visible: Kafka's brokers learn of it after the response has been sent."""
    for resource, reported in zip(sent.resources, answer.responses, strict=True):
        for change in resource.configs if not reported.error_code else ():
            if change.config_operation in (SET, DELETE):
                while not _is_described(client, resource, change):
                    pass


def _is_described(client: Client, resource: Any, change: Any) -> bool:
    kind, name = resource.resource_type, resource.resource_name
    source = OWN_SOURCE[kind] if name else OF_ALL_BROKERS
    request = message("DescribeConfigs", describe_of(kind, name, change.name))
    configs = client.send("DescribeConfigs", 4, request).results[0].configs
    values = [one.value for config in configs for one in config.synonyms if one.source == source]
    if change.config_operation == DELETE:
        return not values
    return change.value in values or None in values  # None stands for a secret
