"""Dynamic settings of one broker and of all brokers apply at once and after a restart."""

from collections.abc import Callable
from typing import Any

import pytest
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import describe_configs, incremental_alter_configs
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.testing import TierlogBroker

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
OF_NODE, OF_ALL, AT_START, DEFAULT = 2, 3, 4, 5
OWN, ALL = "1", ""
MESSAGE_MAX = "message.max.bytes"


def alter(client: Client, resource: str, name: str, value: str | None, *, check: bool = False) -> ErrorCode:
    change = incremental_alter_configs.AlterableConfig(
        name=name, config_operation=DELETE if value is None else SET, value=value
    )
    requested = incremental_alter_configs.AlterConfigsResource(
        resource_type=BROKER, resource_name=resource, configs=[change]
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[requested], validate_only=check
    )
    [answer] = client.send("IncrementalAlterConfigs", 1, request).responses
    return ErrorCode(answer.error_code)


def synonyms(client: Client, kind: int, resource: str, name: str) -> list[tuple[str, str | None, int]]:
    requested = describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=resource, configuration_keys=[name]
    )
    request = describe_configs.DescribeConfigsRequest(resources=[requested], include_synonyms=True)
    [config] = client.send("DescribeConfigs", 4, request).results[0].configs
    assert (config.value, config.config_source) == (config.synonyms[0].value, config.synonyms[0].source)
    return [(one.name, one.value, one.source) for one in config.synonyms]


def batch(size: int) -> bytes:
    return bytes(encode_batch([NewRecord(1_700_000_000_000, None, b"v" * size, ())]))


def test_topic_defaults_apply_at_once_and_after_a_restart(
    tierlog_broker_factory: Callable[..., TierlogBroker],
) -> None:
    broker = tierlog_broker_factory({MESSAGE_MAX: "900000"})
    client = Client(broker.bootstrap)
    topic, other = client.create(), client.create(max_message_bytes="800000")
    client.wait_for_leaders(topic)
    assert alter(client, ALL, MESSAGE_MAX, "500") == ErrorCode.NONE
    assert client.produce(topic, batch(1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(other, batch(1000)).error_code == ErrorCode.NONE
    assert alter(client, OWN, MESSAGE_MAX, "5000") == ErrorCode.NONE
    assert client.produce(topic, batch(1000)).error_code == ErrorCode.NONE

    values = (("5000", OF_NODE), ("500", OF_ALL), ("900000", AT_START), ("1048588", DEFAULT))
    reported = [(MESSAGE_MAX, value, source) for value, source in values]
    assert synonyms(client, TOPIC, topic, "max.message.bytes") == reported
    assert synonyms(client, BROKER, OWN, MESSAGE_MAX) == reported

    broker.restart()
    client = Client(broker.bootstrap)
    client.wait_for_leaders(topic)
    assert client.produce(topic, batch(6000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert [alter(client, resource, MESSAGE_MAX, None) for resource in (OWN, ALL)] == [ErrorCode.NONE] * 2
    assert client.produce(topic, batch(6000)).error_code == ErrorCode.NONE


def test_static_and_invalid_settings_are_rejected(
    tierlog_session_broker: TierlogBroker,
) -> None:
    client = Client(tierlog_session_broker.bootstrap)
    for name, value in (
        ("num.partitions", "3"),
        ("log.retention.hours", "3"),
        (MESSAGE_MAX, "many"),
        (MESSAGE_MAX, "-1"),
        ("log.local.retention.ms", "999999999999"),
        ("max.connections.per.ip.overrides", "here:5"),
    ):
        for resource in (OWN, ALL):
            assert alter(client, resource, name, value) == ErrorCode.INVALID_REQUEST, name
    assert alter(client, ALL, MESSAGE_MAX, "5", check=True) == ErrorCode.NONE
    assert synonyms(client, BROKER, OWN, MESSAGE_MAX) == [(MESSAGE_MAX, "1048588", DEFAULT)]


def test_changed_connection_limits_apply(tierlog_broker: TierlogBroker) -> None:
    client = Client(tierlog_broker.bootstrap)
    assert alter(client, ALL, "max.connections.per.ip", "1") == ErrorCode.NONE
    with pytest.raises((ConnectionError, OSError)):
        refused: Any = Client(tierlog_broker.bootstrap)
        refused.create()
    assert alter(client, ALL, "max.connections.per.ip", None) == ErrorCode.NONE
    Client(tierlog_broker.bootstrap).create()
