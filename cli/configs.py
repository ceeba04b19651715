"""Settings of a topic, a broker or all brokers, read and changed by Kafka's requests. For the commands."""

from collections.abc import Iterable, Mapping

from tierlog.cli.client import KafkaClient, raise_for
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
    """By their names. `broker`: who is asked; None: any. Raises CliError about `what`."""
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
) -> None:
    """All or none. `broker`: who is asked; None: any. Raises CliError about `what`."""
    changes = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in sets.items()]
    changes += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in unsets]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    [result] = client.call(IncrementalAlterConfigsRequest(resources=[resource]), broker).responses
    raise_for(result.error_code, result.error_message, what)
