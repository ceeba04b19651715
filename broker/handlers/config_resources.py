"""ListConfigResources (v0-1, KIP-1000, KIP-1142): resources that have, or may have, their own settings."""

from collections.abc import Callable, Iterable, Mapping

from tierlog.broker.handlers.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

BROKER_LOGGER = 8
TYPES_FROM = 1  # v0 lists only client metrics subscriptions


def list_config_resources_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: ListConfigResourcesRequest) -> Reply:
        asked = request.resource_types if context.version >= TYPES_FROM else [CLIENT_METRICS]
        types = set(asked) or set(_NAMES)
        if not types <= _NAMES.keys():
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=resource_type)
                for resource_type, names in _NAMES.items()
                if resource_type in types
                for name in names(deps.metadata.image)
            ]
        )

    return handle


def _with_settings(scope: ConfigScope) -> Callable[[ClusterImage], Iterable[str]]:
    return lambda image: sorted(name for of, name in image.configs if of is scope)


def _brokers(image: ClusterImage) -> Iterable[str]:
    return map(str, sorted(image.brokers))


_NAMES: Mapping[int, Callable[[ClusterImage], Iterable[str]]] = {
    GROUP: _with_settings(ConfigScope.GROUP),
    CLIENT_METRICS: _with_settings(ConfigScope.CLIENT_METRICS),
    BROKER_LOGGER: lambda image: (),  # log levels cannot be changed
    BROKER: _brokers,
    TOPIC: lambda image: sorted(image.topic_ids),
}
"""Resource type -> names, in Kafka's order."""
