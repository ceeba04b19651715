"""DescribeConfigs (v1-4): settings of topics, groups, client metrics subscriptions, this node and the
cluster. ListConfigResources (v0-1, KIP-1000, KIP-1142): resources that have, or may have, their own settings.

A resource takes several kilobytes in a response, most of them defaults that all resources of its type share.
Therefore default settings are encoded once and sent for each resource. Thousands of resources are described a
few in each turn of the event loop.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from tierlog.base.files import Part
from tierlog.broker.handlers.access import DENIED, MESSAGES, config_resource
from tierlog.broker.handlers.configs import (
    BROKER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    invalid,
    not_a_topic,
)
from tierlog.broker.handlers.context import Handler, Pending, RawReply, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.described import (
    Described,
    Source,
    describe_client_metrics,
    describe_cluster,
    describe_group,
    describe_node,
    describe_topic,
)
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST, TOO_LARGE
from tierlog.broker.handlers.turns import in_turns
from tierlog.config.topic import is_topic_name
from tierlog.metadata.acls import AclOperation
from tierlog.metadata.controller.commands import Outcome
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.codec import array_writer, nested_array_writer
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tierlog.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tierlog.protocol.primitives import STRING_BYTES_MAX

RESOURCES_PER_TURN = 20  # a topic with settings of its own takes half a millisecond
RUNS_MAX = 1_000
"""Maximum number of encoded results without overrides, and of encoded runs of consecutive default settings,
that are kept while one response is built."""
_OWN_SOURCES = frozenset({Source.TOPIC, Source.GROUP, Source.CLIENT_METRICS})
_SCOPES = {TOPIC: ConfigScope.TOPIC, GROUP: ConfigScope.GROUP, CLIENT_METRICS: ConfigScope.CLIENT_METRICS}


def describe_configs_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeConfigsRequest) -> Reply | Pending:
        # duplicates are dropped, so that a small request cannot ask for many copies of ten kilobytes
        once = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
        description, resources = _Description(deps, context, request), list(once.values())
        if len(resources) > RESOURCES_PER_TURN:
            return Pending(_describe_in_turns(description, resources))
        return description.reply([description.describe(resource) for resource in resources])

    return handle


async def _describe_in_turns(
    description: "_Description", resources: Sequence[DescribeConfigsResource]
) -> RawReply:
    describe = description.describe
    if len(resources) > MAX_RECORDS_PER_REQUEST:
        describe = description.refuse
    return description.reply(await in_turns(resources, describe, RESOURCES_PER_TURN))


@dataclass(frozen=True, slots=True)
class _Settings:
    """Encoded settings of a resource."""

    count: int
    pieces: tuple[bytes, ...]


class _Description:
    """The response to one request, from one image."""

    def __init__(self, deps: Dependencies, context: RequestContext, request: DescribeConfigsRequest) -> None:
        version = context.version
        self._access = context.access
        self._settings, self._image = deps.settings, deps.metadata.image
        self._request = request
        self._errors: Counter[int] = Counter()
        self._results = array_writer(DescribeConfigsResponse, version, "results")
        self._entries = nested_array_writer(
            DescribeConfigsResponse, version, DescribeConfigsResult, "configs"
        )
        self._without_overrides: dict[tuple[int, frozenset[str]], _Settings | Outcome] = {}
        """Settings of resources without overrides, by resource type and configuration keys."""
        self._runs: dict[tuple[int, tuple[str, ...]], bytes] = {}  # by type and names

    def reply(self, results: Sequence[Sequence[bytes]]) -> RawReply:
        whole = DescribeConfigsResponse()
        pieces = [piece for result in results for piece in result]
        parts: list[Part] = [self._results.before(whole, len(results)), *pieces, self._results.after(whole)]
        return RawReply(parts, self._errors)

    def refuse(self, resource: DescribeConfigsResource) -> Sequence[bytes]:
        return self._error_result(resource, Outcome(error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE))

    def describe(self, resource: DescribeConfigsResource) -> Sequence[bytes]:
        """The encoded result, in pieces."""
        found = self._lookup(resource)
        if isinstance(found, Outcome):
            return self._error_result(resource, found)
        result = _result(resource)
        return self._entries.before(result, found.count), *found.pieces, self._entries.after(result)

    def _lookup(self, resource: DescribeConfigsResource) -> _Settings | Outcome:
        kind, keys = resource.resource_type, frozenset(resource.configuration_keys or ())
        if self._access is not None:
            of, name = config_resource(kind, resource.resource_name)
            if not self._access.allows(AclOperation.DESCRIBE_CONFIGS, of, name):
                return Outcome(error=DENIED[of], message=MESSAGES[DENIED[of]])
        refused = self._validation_error(kind, resource.resource_name)
        if refused is not None:
            return refused
        if kind == BROKER:
            return self._settings_of(kind, self._describe_node(resource.resource_name), keys)
        overrides = self._image.overrides(_SCOPES[kind], resource.resource_name)
        if overrides:
            return self._settings_of(kind, self._describe(kind, overrides), keys)
        found = self._without_overrides.get((kind, keys))
        if found is None:
            found = self._settings_of(kind, self._describe(kind, {}), keys)
            if len(self._without_overrides) < RUNS_MAX:
                self._without_overrides[kind, keys] = found
        return found

    def _settings_of(
        self, kind: int, found: Sequence[Described], keys: frozenset[str]
    ) -> _Settings | Outcome:
        """The requested settings, or all if the request names none."""
        wanted = [item for item in found if not keys or item.name in keys]
        if (long := _too_long(wanted)) is not None:
            message = (
                f"The value of {long} is longer than the {STRING_BYTES_MAX} bytes that a response can carry."
                " Set a shorter value."
            )
            return Outcome(error=ErrorCode.INVALID_CONFIG, message=message)
        return _Settings(len(wanted), tuple(self._encoded(kind, wanted)))

    def _encoded(self, resource_type: int, found: Iterable[Described]) -> Iterable[bytes]:
        """The resource's own settings, and between them runs of defaults, each of which is encoded only
        once."""
        if resource_type == BROKER:
            # not kept: the only resources are this node and the cluster
            yield self._entries.elements(map(self._entry, found))
            return
        for is_own, run in groupby(found, lambda item: item.source in _OWN_SOURCES):
            items = list(run)
            if is_own:
                yield self._entries.elements(map(self._entry, items))
                continue
            key = resource_type, tuple(item.name for item in items)
            encoded = self._runs.get(key)
            if encoded is None:
                encoded = self._entries.elements(map(self._entry, items))
                if len(self._runs) < RUNS_MAX:
                    self._runs[key] = encoded
            yield encoded

    def _error_result(self, resource: DescribeConfigsResource, why: Outcome) -> Sequence[bytes]:
        result = _result(resource)
        result.error_code, result.error_message = why.error, why.message
        self._errors[why.error] += 1
        return self._entries.before(result, 0), self._entries.after(result)

    def _validation_error(self, kind: int, name: str) -> Outcome | None:
        if kind == BROKER:
            here = str(self._settings.node_id)
            message = f"Unexpected broker id, expected {here} or empty string, but received {name}"
            return None if name in ("", here) else invalid(message)
        if kind not in _SCOPES:
            return invalid(f"Unknown resource type {kind}")
        if kind == TOPIC and not is_topic_name(name):
            return not_a_topic(name)
        if kind == TOPIC and name not in self._image.topic_ids:
            return Outcome(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        title = "Group name" if kind == GROUP else "Client metrics subscription name"
        return None if name else invalid(f"{title} must not be empty")

    def _describe(self, kind: int, overrides: Mapping[str, str]) -> list[Described]:
        if kind == TOPIC:
            return describe_topic(self._settings, self._image, overrides)
        if kind == GROUP:
            return describe_group(self._settings, self._image, overrides)
        return describe_client_metrics(overrides)

    def _describe_node(self, name: str) -> list[Described]:
        if name == "":
            return describe_cluster(self._image.overrides(ConfigScope.CLUSTER, ""))
        return describe_node(self._settings, self._image)

    def _entry(self, item: Described) -> DescribeConfigsResourceResult:
        return DescribeConfigsResourceResult(
            name=item.name,
            value=item.value,
            read_only=item.read_only,
            config_source=item.source,
            is_sensitive=item.is_sensitive,
            synonyms=[
                DescribeConfigsSynonym(
                    name=synonym.name,
                    value=None if item.is_sensitive else synonym.value,
                    source=synonym.source,
                )
                for synonym in (item.listed_synonyms if self._request.include_synonyms else ())
            ],
            config_type=item.setting.type,
            documentation=item.setting.doc if self._request.include_documentation else None,
        )


def _result(resource: DescribeConfigsResource) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )


def _too_long(found: Iterable[Described]) -> str | None:
    """The name of a setting with an overlong value. An earlier version accepted it, or it is in the node's
    file."""
    for item in found:
        if any(len((synonym.value or "").encode()) > STRING_BYTES_MAX for synonym in item.synonyms):
            return item.name
    return None


BROKER_LOGGER = 8
RESOURCE_TYPES_VERSION = 1  # v0 lists only client metrics subscriptions


def list_config_resources_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: ListConfigResourcesRequest) -> Reply:
        requested = request.resource_types if context.version >= RESOURCE_TYPES_VERSION else [CLIENT_METRICS]
        types = set(requested) or set(_NAMES)
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


def _names_with_overrides(scope: ConfigScope) -> Callable[[ClusterImage], Iterable[str]]:
    return lambda image: sorted(name for of, name in image.configs if of is scope)


def _brokers(image: ClusterImage) -> Iterable[str]:
    return map(str, sorted(image.brokers))


_NAMES: Mapping[int, Callable[[ClusterImage], Iterable[str]]] = {
    GROUP: _names_with_overrides(ConfigScope.GROUP),
    CLIENT_METRICS: _names_with_overrides(ConfigScope.CLIENT_METRICS),
    BROKER_LOGGER: lambda image: (),  # log levels cannot be changed
    BROKER: _brokers,
    TOPIC: lambda image: sorted(image.topic_ids),
}
"""Resource type -> names, in Kafka's order."""
