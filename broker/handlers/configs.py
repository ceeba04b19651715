"""DescribeConfigs (v1-4), IncrementalAlterConfigs (v0-1), AlterConfigs (v0-2, which replaces all)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tierlog.broker.handlers.cluster import is_topic_name
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.described import (
    Described,
    describe_client_metrics,
    describe_cluster,
    describe_group,
    describe_node,
    describe_topic,
)
from tierlog.broker.settings.definitions import InvalidSetting
from tierlog.broker.settings.running import (
    check_thread_counts,
    check_together,
    settings_now,
    thread_counts,
    why_fixed,
)
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages import alter_configs, incremental_alter_configs
from tierlog.broker.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tierlog.metadata.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    Outcome,
)
from tierlog.metadata.controller.configs import overrides_after
from tierlog.metadata.controller.decision import Refusal
from tierlog.metadata.records import ConfigScope

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
"""Kafka's resource types. BROKER_LOGGER, 8, is not among them: log levels do not change."""

RESOURCES_PER_TURN = 10  # to check the settings of a node takes a millisecond
MAX_RESOURCES_PER_REQUEST = 10_000  # as in Kafka, each is a record at least (MAX_RECORDS_PER_USER_OP)
Resource = TypeVar("Resource")
_Dynamic = tuple[Mapping[str, str], Mapping[str, str]]  # what is set for all nodes, and for one
_OPERATIONS = frozenset(int(operation) for operation in ConfigOperation)


def describe_configs_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeConfigsRequest) -> Reply:
        # Twenty bytes of a request must not be worth any number of copies of ten kilobytes.
        once = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
        return DescribeConfigsResponse(
            results=[_describe(deps, request, resource) for resource in once.values()]
        )

    return handle


def _describe(
    deps: Dependencies, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    found = _described(deps, resource)
    if isinstance(found, Outcome):
        result.error_code, result.error_message = found.error, found.message
        return result
    keys = resource.configuration_keys
    result.configs = [
        _entry(item, request.include_synonyms, request.include_documentation)
        for item in found
        if not keys or item.name in keys  # an empty list asks for all, too
    ]
    return result


def _described(deps: Dependencies, resource: DescribeConfigsResource) -> list[Described] | Outcome:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        if not is_topic_name(name):
            return _not_a_topic(name)
        if name not in deps.metadata.image.topic_ids:
            return Outcome(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(deps.settings, deps.metadata.image, deps.metadata.image.topic_overrides(name))
    if resource.resource_type == BROKER:
        if name == "":
            return describe_cluster(deps.metadata.image.overrides(ConfigScope.CLUSTER, ""))
        if name != str(deps.settings.node_id):
            here = deps.settings.node_id
            message = f"Unexpected broker id, expected {here} or empty string, but received {name}"
            return Outcome(error=ErrorCode.INVALID_REQUEST, message=message)
        return describe_node(deps.settings, deps.metadata.image)
    if resource.resource_type == CLIENT_METRICS:
        if not name:
            return _invalid("Client metrics subscription name must not be empty")
        return describe_client_metrics(deps.metadata.image.overrides(ConfigScope.CLIENT_METRICS, name))
    if resource.resource_type == GROUP:
        if not name:
            return _invalid("Group name must not be empty")
        return describe_group(deps.metadata.image.overrides(ConfigScope.GROUP, name))
    return _invalid(f"Unknown resource type {resource.resource_type}")


def _entry(item: Described, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=item.name,
        value=item.value,
        read_only=item.read_only,
        config_source=item.source,
        is_sensitive=item.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=synonym.name, value=None if item.is_sensitive else synonym.value, source=synonym.source
            )
            for synonym in (item.listed if synonyms else ())
        ],
        config_type=item.setting.type,
        documentation=item.setting.doc if documentation else None,
    )


def incremental_alter_configs_handler(deps: Dependencies) -> Handler:
    async def handle(
        context: RequestContext, request: incremental_alter_configs.IncrementalAlterConfigsRequest
    ) -> Reply:
        changes = await _in_turns(request.resources, lambda resource: _incremental(deps, resource))
        outcomes = await _alter(deps, changes, request.validate_only)
        return incremental_alter_configs.IncrementalAlterConfigsResponse(
            responses=[
                incremental_alter_configs.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, outcome in zip(request.resources, outcomes, strict=True)
            ]
        )

    return handle


def _incremental(
    deps: Dependencies, resource: incremental_alter_configs.AlterConfigsResource
) -> ConfigResource | Outcome:
    if unknown := [item for item in resource.configs if item.config_operation not in _OPERATIONS]:
        return _invalid(f"operation {unknown[0].config_operation} of {unknown[0].name}")
    given = [item for item in resource.configs if item.config_operation != ConfigOperation.DELETE]
    if unset := [item.name for item in given if item.value is None]:
        return _invalid(f"Null value not supported for {', '.join(unset)}")
    # Whatever is not set can be deleted: kafka-reassign-partitions deletes throttles when a move has ended,
    # whether there were any or not.
    scope = _scope(deps, resource.resource_type, resource.resource_name, [item.name for item in given])
    if isinstance(scope, Outcome):
        return scope
    changes = tuple(
        ConfigChange(key=item.name, operation=ConfigOperation(item.config_operation), value=item.value)
        for item in resource.configs
    )
    return _fitting(deps, ConfigResource(scope=scope, name=resource.resource_name, changes=changes))


def alter_configs_handler(deps: Dependencies) -> Handler:
    async def handle(context: RequestContext, request: alter_configs.AlterConfigsRequest) -> Reply:
        changes = await _in_turns(request.resources, lambda resource: _replaced(deps, resource))
        outcomes = await _alter(deps, changes, request.validate_only)
        return alter_configs.AlterConfigsResponse(
            responses=[
                alter_configs.AlterConfigsResourceResponse(
                    error_code=outcome.error,
                    error_message=outcome.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource, outcome in zip(request.resources, outcomes, strict=True)
            ]
        )

    return handle


async def _in_turns(
    resources: Sequence[Resource], change: Callable[[Resource], ConfigResource | Outcome]
) -> list[ConfigResource | Outcome]:
    """The change of each resource, a few in a turn of the event loop; none if there are too many."""
    if len(resources) > MAX_RESOURCES_PER_REQUEST:
        message = "Unable to perform excessively large batch operation."
        return [Outcome(error=ErrorCode.POLICY_VIOLATION, message=message)] * len(resources)
    changes = []
    for number, resource in enumerate(resources, 1):
        changes.append(change(resource))
        if number % RESOURCES_PER_TURN == 0:
            await asyncio.sleep(0)
    return changes


def _replaced(deps: Dependencies, resource: alter_configs.AlterConfigsResource) -> ConfigResource | Outcome:
    keys = [item.name for item in resource.configs]
    scope = _scope(deps, resource.resource_type, resource.resource_name, keys)
    if unset := [item.name for item in resource.configs if item.value is None]:
        scope = _invalid(f"Null value not supported for {', '.join(unset)}")
    return scope if isinstance(scope, Outcome) else _fitting(deps, _replace_all(deps, scope, resource))


def _replace_all(
    deps: Dependencies, scope: ConfigScope, resource: alter_configs.AlterConfigsResource
) -> ConfigResource:
    """What is not named goes back to its default."""
    kept = {item.name for item in resource.configs}
    overrides = deps.metadata.image.overrides(scope, resource.resource_name)
    dropped = [key for key in overrides if key not in kept]
    sets = [
        ConfigChange(key=item.name, operation=ConfigOperation.SET, value=item.value)
        for item in resource.configs
    ]
    deletes = [ConfigChange(key=key, operation=ConfigOperation.DELETE) for key in sorted(dropped)]
    return ConfigResource(scope=scope, name=resource.resource_name, changes=(*sets, *deletes))


def _scope(deps: Dependencies, resource_type: int, name: str, keys: Iterable[str]) -> ConfigScope | Outcome:
    if resource_type == TOPIC:
        if not name:
            return _invalid("Default topic resources are not allowed.")
        if not is_topic_name(name):
            return _not_a_topic(name)
        if name not in deps.metadata.image.topic_ids:
            return Outcome(
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"The topic '{name}' does not exist."
            )
        return ConfigScope.TOPIC
    if resource_type == BROKER:
        if fixed := [why for key in keys if (why := why_fixed(key)) is not None]:
            return _invalid(f"Cannot update these configs dynamically: {'; '.join(fixed)}")
        return ConfigScope.BROKER if name else ConfigScope.CLUSTER
    if resource_type in (CLIENT_METRICS, GROUP):
        return ConfigScope.GROUP if resource_type == GROUP else ConfigScope.CLIENT_METRICS
    return _invalid(f"Unknown resource type {resource_type}")


def _fitting(deps: Dependencies, resource: ConfigResource) -> ConfigResource | Outcome:
    """Settings of nodes must make sense beside those that this one was started with, if they did; the
    controller does not know them."""
    if resource.scope not in (ConfigScope.BROKER, ConfigScope.CLUSTER):
        return resource
    image = deps.metadata.image
    try:
        of_cluster, after = image.overrides(ConfigScope.CLUSTER, ""), overrides_after(image, resource)
        if resource.scope is ConfigScope.CLUSTER:
            _check_change(deps, (of_cluster, {}), (after, {}))
        else:
            of_node = image.overrides(ConfigScope.BROKER, resource.name)
            _check_change(deps, (of_cluster, of_node), (of_cluster, after))
    except Refusal as refusal:
        return Outcome(error=refusal.error, message=refusal.message)
    except InvalidSetting as invalid:
        return _invalid(str(invalid))
    return resource


def _check_change(deps: Dependencies, before: _Dynamic, after: _Dynamic) -> None:
    """Raises InvalidSetting."""
    settings_before, settings = settings_now(deps.settings, *before), settings_now(deps.settings, *after)
    check_together(settings, settings_before)
    check_thread_counts(thread_counts(settings_before, *before), thread_counts(settings, *after))


def _not_a_topic(name: str) -> Outcome:
    return Outcome(error=ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"{name!r} cannot be a topic")


def _invalid(message: str) -> Outcome:
    return Outcome(error=ErrorCode.INVALID_REQUEST, message=message)


async def _alter(
    deps: Dependencies, changes: Sequence[ConfigResource | Outcome], validate_only: bool
) -> list[Outcome]:
    good = tuple(change for change in changes if isinstance(change, ConfigResource))
    decided: list[Outcome] = []
    if good:
        reply = await deps.metadata.submit(AlterConfigs(resources=good, validate_only=validate_only))
        decided = list(reply.resources)
    answers = iter(decided)
    return [change if isinstance(change, Outcome) else next(answers) for change in changes]
