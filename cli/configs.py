"""Reads and changes settings of a topic, a broker or all brokers with Kafka's requests."""

from collections.abc import Iterable, Mapping

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.cli.errors import usage
from tierlog.config.definitions import InvalidSetting, Setting, find_setting
from tierlog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from tierlog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
SET, DELETE = 0, 1


def described(
    client: KafkaClient, kind: int, name: str, what: str, *, broker: int | None = None
) -> list[DescribeConfigsResourceResult]:
    """Settings sorted by name. `broker`: the broker to ask; None: any. `what`: prefix of error messages."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    [result] = client.call(DescribeConfigsRequest(resources=[resource]), broker).results
    raise_for(result.error_code, result.error_message, what)
    return sorted(result.configs, key=lambda config: config.name)


def alter(
    client: KafkaClient,
    kind: int,
    name: str,
    what: str,
    *,
    sets: Mapping[str, str],
    unsets: Iterable[str],
    broker: int | None = None,
    hint: str = "",
) -> None:
    """Apply all changes, or none. `broker`: the broker to ask; None: any. `what`: prefix of error
    messages. `hint`: for an invalid request."""
    changes = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in sets.items()]
    changes += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in unsets]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    [result] = client.call(IncrementalAlterConfigsRequest(resources=[resource]), broker).responses
    raise_for(result.error_code, result.error_message, what, hint=hint)


def check_known(names: Iterable[str], settings: dict[str, Setting], hint: str) -> None:
    """Raises CliError for an unknown setting. Brokers accept any name, as in Kafka, but here it is a typo."""
    for name in names:
        try:
            find_setting(settings, name)
        except InvalidSetting as unknown:
            raise usage(str(unknown), hint=hint) from None
