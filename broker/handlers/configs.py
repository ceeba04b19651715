"""IncrementalAlterConfigs (v0-1) and AlterConfigs (v0-2), which replaces all settings of a resource.

Resources are validated, and sent to the controller, a few at a time. Each resource changes completely or not
at all, independently of the others.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST, TOO_LARGE
from tierlog.broker.handlers.turns import in_turns, weighted_slices
from tierlog.config.definitions import InvalidSetting
from tierlog.config.dynamic import (
    check_thread_counts,
    check_together,
    effective_settings,
    thread_counts,
    why_not_dynamic,
)
from tierlog.config.groups import check_consumer_settings
from tierlog.config.topic import is_topic_name
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
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import alter_configs, incremental_alter_configs
from tierlog.protocol.schema import Message

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
"""Kafka's resource types, without BROKER_LOGGER: log levels cannot be changed."""

CHANGES_PER_TURN = 200
RESOURCE_WEIGHT = 20
"""A resource counts as this many changes, because validating node settings takes half a millisecond."""
CHANGES_PER_COMMAND = 1_000
"""The controller decides a command in one turn of its event loop: about 50 ms."""
_Dynamic = tuple[Mapping[str, str], Mapping[str, str]]  # settings for all nodes, and for one
_OPERATIONS = frozenset(int(operation) for operation in ConfigOperation)


def incremental_alter_configs_handler(deps: Dependencies) -> Handler:
    response = incremental_alter_configs.IncrementalAlterConfigsResponse
    result = incremental_alter_configs.AlterConfigsResourceResponse
    return _handler(deps, partial(_incremental, deps), response, result)


def alter_configs_handler(deps: Dependencies) -> Handler:
    response, result = alter_configs.AlterConfigsResponse, alter_configs.AlterConfigsResourceResponse
    return _handler(deps, partial(_alter, deps), response, result)


def _handler(
    deps: Dependencies,
    change: Callable[[Any], ConfigResource | Outcome],
    response_kind: Callable[..., Message],
    result_kind: Callable[..., Any],
) -> Handler:
    @pending
    async def handle(context: RequestContext, request: Any) -> Reply:
        changes = await _validate_resources(request.resources, change)
        outcomes = await _submit(deps, changes, request.validate_only)
        return response_kind(
            responses=[
                result_kind(
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
        operation, name = unknown[0].config_operation, unknown[0].name
        return invalid(f"Unknown operation type {operation} for configuration '{name}'")
    given = [item for item in resource.configs if item.config_operation != ConfigOperation.DELETE]
    if unset := [item.name for item in given if item.value is None]:
        return invalid(f"Null value not supported for {', '.join(unset)}")
    # Any name can be deleted: kafka-reassign-partitions deletes throttles after a move whether they are set
    # or not.
    scope = _scope(deps, resource.resource_type, resource.resource_name, [item.name for item in given])
    if isinstance(scope, Outcome):
        return scope
    changes = tuple(
        ConfigChange(key=item.name, operation=ConfigOperation(item.config_operation), value=item.value)
        for item in resource.configs
    )
    return _validate_with_node(
        deps, ConfigResource(scope=scope, name=resource.resource_name, changes=changes)
    )


async def _validate_resources(
    resources: Sequence[Any], change: Callable[[Any], ConfigResource | Outcome]
) -> list[ConfigResource | Outcome]:
    """Validate each resource, a few per turn of the event loop. If there are too many, all get
    POLICY_VIOLATION: each resource, and each change of a setting, is at least one record."""
    changes = sum(len(resource.configs) for resource in resources)
    if max(len(resources), changes) > MAX_RECORDS_PER_REQUEST:
        return [Outcome(error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)] * len(resources)
    return await in_turns(
        resources, change, CHANGES_PER_TURN, lambda resource: RESOURCE_WEIGHT + len(resource.configs)
    )


def _alter(deps: Dependencies, resource: alter_configs.AlterConfigsResource) -> ConfigResource | Outcome:
    if unset := [item.name for item in resource.configs if item.value is None]:
        return invalid(f"Null value not supported for {', '.join(unset)}")
    keys = [item.name for item in resource.configs]
    scope = _scope(deps, resource.resource_type, resource.resource_name, keys)
    if isinstance(scope, Outcome):
        return scope
    return _validate_with_node(deps, _replace_all(deps, scope, resource))


def _replace_all(
    deps: Dependencies, scope: ConfigScope, resource: alter_configs.AlterConfigsResource
) -> ConfigResource:
    """Settings that the request does not contain return to their defaults."""
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
            return invalid("Default topic resources are not allowed.")
        if not is_topic_name(name):
            return not_a_topic(name)
        if name not in deps.metadata.image.topic_ids:
            return Outcome(
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=f"The topic '{name}' does not exist."
            )
        return ConfigScope.TOPIC
    if resource_type == BROKER:
        if fixed := [why for key in keys if (why := why_not_dynamic(key)) is not None]:
            return invalid(f"Cannot update these configs dynamically: {'; '.join(fixed)}")
        return ConfigScope.BROKER if name else ConfigScope.CLUSTER
    if resource_type in (CLIENT_METRICS, GROUP):
        return ConfigScope.GROUP if resource_type == GROUP else ConfigScope.CLIENT_METRICS
    return invalid(f"Unknown resource type {resource_type}")


def _validate_with_node(deps: Dependencies, resource: ConfigResource) -> ConfigResource | Outcome:
    """Validate a change of node or group settings together with the settings that this node started with,
    which the controller does not know."""
    if resource.scope not in (ConfigScope.BROKER, ConfigScope.CLUSTER, ConfigScope.GROUP):
        return resource
    image = deps.metadata.image
    try:
        if resource.scope is ConfigScope.GROUP:
            return _validate_group_settings(deps, resource)
        cluster_overrides = image.overrides(ConfigScope.CLUSTER, "")
        new_overrides = overrides_after(image, resource)
        if resource.scope is ConfigScope.CLUSTER:
            _check_change(deps, (cluster_overrides, {}), (new_overrides, {}))
        else:
            node_overrides = image.overrides(ConfigScope.BROKER, resource.name)
            _check_change(deps, (cluster_overrides, node_overrides), (cluster_overrides, new_overrides))
    except Refusal as refusal:
        return Outcome(error=refusal.error, message=refusal.message)
    except InvalidSetting as wrong:
        return invalid(str(wrong))
    return resource


def _validate_group_settings(deps: Dependencies, resource: ConfigResource) -> ConfigResource | Outcome:
    """Raises Refusal."""
    try:
        check_consumer_settings(deps.effective_settings, overrides_after(deps.metadata.image, resource))
    except InvalidSetting as wrong:
        return Outcome(error=ErrorCode.INVALID_CONFIG, message=str(wrong))
    return resource


def _check_change(deps: Dependencies, before: _Dynamic, after: _Dynamic) -> None:
    """Check that the changed settings are valid together and reachable from the current ones. Raises
    InvalidSetting."""
    settings_before, settings = (
        effective_settings(deps.settings, *before),
        effective_settings(deps.settings, *after),
    )
    check_together(settings, settings_before)
    check_thread_counts(thread_counts(settings_before, *before), thread_counts(settings, *after))


def not_a_topic(name: str) -> Outcome:
    return Outcome(error=ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"Topic name {name!r} is invalid")


def invalid(message: str) -> Outcome:
    return Outcome(error=ErrorCode.INVALID_REQUEST, message=message)


async def _submit(
    deps: Dependencies, changes: Sequence[ConfigResource | Outcome], validate_only: bool
) -> list[Outcome]:
    valid = [change for change in changes if isinstance(change, ConfigResource)]
    named = Counter((resource.scope, resource.name) for resource in valid)
    duplicate = invalid("Each resource must appear at most once.")
    decided = {key: duplicate for key, count in named.items() if count > 1}
    unique = (resource for resource in valid if named[resource.scope, resource.name] == 1)
    for batch in weighted_slices(unique, CHANGES_PER_COMMAND, lambda resource: 1 + len(resource.changes)):
        command = AlterConfigs(resources=tuple(batch), validate_only=validate_only)
        outcomes = (await deps.metadata.submit(command)).resources
        keys = ((resource.scope, resource.name) for resource in batch)
        decided |= dict(zip(keys, outcomes, strict=True))
        await asyncio.sleep(0)  # a command without changes may return without yielding
    return [
        change if isinstance(change, Outcome) else decided[change.scope, change.name] for change in changes
    ]
