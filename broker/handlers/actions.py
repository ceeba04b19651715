"""Table of actions: what the audit log says about a request of each API that changes the cluster.

`ACTIONS` has a row for each of these APIs, and NO_ACTION names the others. A test fails for an API that is in
neither. `targets` reads from the request what is changed; `outcomes` reads from the response how that ended.
Values of settings, salts, keys and passwords stay out. docs/reference/audit-log.md is made from this table.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tierlog.broker.handlers.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC
from tierlog.metadata.acls import AclOperation, PatternType, Permission, ResourceType
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.scram import MECHANISMS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID

CONFIG_TYPES = {TOPIC: "TOPIC", BROKER: "BROKER", CLIENT_METRICS: "CLIENT_METRICS", GROUP: "GROUP"}
CONFIG_OPERATIONS = ("SET", "DELETE", "APPEND", "SUBTRACT")

SCRAM_NAMES = {int(mechanism): mechanism.sasl_name for mechanism in MECHANISMS}

Key = tuple[str, int | None]
"""Name of a resource, and a partition's number: the response to an action has the same."""


class Target(NamedTuple):
    """Something that a request changes. `details`: what the API says about the change."""

    type: str
    name: str
    key: Key
    details: Mapping[str, Any] = {}


Targets = Callable[[Any, ClusterImage], Iterator[Target]]
Changes = Callable[[Any, int], Iterator[Mapping[str, Any]]]
"""Returns what a response says about the changes of the target with this number."""


@dataclass(frozen=True, slots=True)
class Action:
    """`resources` and `details`: for the reference page. `results`: array of the response with one item for
    each target in their order, if its items have no names. `changes`: if the request does not name what it
    changes."""

    resources: str
    details: str
    targets: Targets
    results: str = ""
    changes: Changes | None = None


def _named(kind: str, name: str, number: int | None = None, /, **details: Any) -> Target:
    shown = name if number is None else f"{name}-{number}"
    return Target(kind, shown, (name, number), details)


# ---- what requests change ---------------------------------------------------------------------------


def _quotas(request: Any, image: ClusterImage) -> Iterator[Target]:
    for entry in request.entries:
        changes = {one.key: None if one.remove else one.value for one in entry.ops}
        yield _named("QUOTA", _entity(entry.entity), quotas=changes)


def _configs(request: Any, image: ClusterImage) -> Iterator[Target]:
    for one in request.resources:
        settings = [each.name for each in one.configs]
        kind = CONFIG_TYPES.get(one.resource_type, str(one.resource_type))
        yield Target(kind, one.resource_name, _config_key(one), {"settings": settings})


def _changed_configs(request: Any, image: ClusterImage) -> Iterator[Target]:
    for one in request.resources:
        settings = [
            f"{_name_in(CONFIG_OPERATIONS, each.config_operation)} {each.name}" for each in one.configs
        ]
        kind = CONFIG_TYPES.get(one.resource_type, str(one.resource_type))
        yield Target(kind, one.resource_name, _config_key(one), {"settings": settings})


def _reassignments(request: Any, image: ClusterImage) -> Iterator[Target]:
    for topic in request.topics:
        for one in topic.partitions:
            replicas = None if one.replicas is None else list(one.replicas)
            yield _named("PARTITION", topic.name, one.partition_index, replicas=replicas)


def _directories(request: Any, image: ClusterImage) -> Iterator[Target]:
    for directory in request.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                yield _named("PARTITION", topic.name, number, directory=directory.path)


def _users(request: Any, image: ClusterImage) -> Iterator[Target]:
    for change, credentials in (("DELETE", request.deletions), ("SET", request.upsertions)):
        for one in credentials:
            mechanism = SCRAM_NAMES.get(one.mechanism, str(one.mechanism))
            yield _named("USER", one.name, change=change, mechanism=mechanism)


def _created_acls(request: Any, image: ClusterImage) -> Iterator[Target]:
    for at, one in enumerate(request.creations):
        kind = _member(ResourceType, one.resource_type)
        pattern = _member(PatternType, one.resource_pattern_type)
        yield Target(
            kind, one.resource_name, ("", at), {"pattern": pattern, **_rule(one, one.principal, one.host)}
        )


def _deleted_acls(request: Any, image: ClusterImage) -> Iterator[Target]:
    for at, one in enumerate(request.filters):
        kind = _member(ResourceType, one.resource_type_filter)
        pattern = _member(PatternType, one.pattern_type_filter)
        rule = _rule(one, one.principal_filter, one.host_filter)
        yield Target(kind, one.resource_name_filter or "", ("", at), {"pattern": pattern, **rule})


def _acls_that_went(response: Any, number: int) -> Iterator[Mapping[str, Any]]:
    for one in response.filter_results[number].matching_acls:
        yield {
            "type": _member(ResourceType, one.resource_type),
            "name": one.resource_name,
            "pattern": _member(PatternType, one.pattern_type),
            **_rule(one, one.principal, one.host),
        }


def _created_topics(request: Any, image: ClusterImage) -> Iterator[Target]:
    for one in request.topics:
        partitions = len(one.assignments) or one.num_partitions
        replicas = len(one.assignments[0].broker_ids) if one.assignments else one.replication_factor
        settings = [each.name for each in one.configs]
        yield _named("TOPIC", one.name, partitions=partitions, replication_factor=replicas, settings=settings)


def _created_partitions(request: Any, image: ClusterImage) -> Iterator[Target]:
    for one in request.topics:
        yield _named("TOPIC", one.name, partitions=one.count)


def _deleted_topics(request: Any, image: ClusterImage) -> Iterator[Target]:
    for name in request.topic_names:
        yield _named("TOPIC", name)
    for one in request.topics:
        if one.topic_id == ZERO_UUID:
            yield _named("TOPIC", one.name or "")
            continue
        topic = image.topics.get(one.topic_id)
        name = "" if topic is None else topic.name
        yield Target("TOPIC", name, (str(one.topic_id), None), {"topic_id": str(one.topic_id)})


def _deleted_records(request: Any, image: ClusterImage) -> Iterator[Target]:
    for topic in request.topics:
        for one in topic.partitions:
            yield _named("PARTITION", topic.name, one.partition_index, before_offset=one.offset)


def _deleted_groups(request: Any, image: ClusterImage) -> Iterator[Target]:
    return (_named("GROUP", name) for name in request.groups_names)


def _deleted_offsets(request: Any, image: ClusterImage) -> Iterator[Target]:
    for topic in request.topics:
        for one in topic.partitions:
            yield _named("PARTITION", topic.name, one.partition_index, group=request.group_id)


def _elections(request: Any, image: ClusterImage) -> Iterator[Target]:
    kind = _name_in(("PREFERRED", "UNCLEAN"), request.election_type)
    if request.topic_partitions is None:
        yield Target("CLUSTER", "all partitions", ("", None), {"election": kind})
    for topic in request.topic_partitions or ():
        for number in topic.partitions:
            yield _named("PARTITION", topic.topic, number, election=kind)


def _brokers(request: Any, image: ClusterImage) -> Iterator[Target]:
    yield _named("BROKER", str(request.broker_id))


def _features(request: Any, image: ClusterImage) -> Iterator[Target]:
    for one in request.feature_updates:
        yield _named("FEATURE", one.feature, level=one.max_version_level)


def _new_token(request: Any, image: ClusterImage) -> Iterator[Target]:
    renewers = [f"{one.principal_type}:{one.principal_name}" for one in request.renewers]
    owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    yield _named(
        "DELEGATION_TOKEN", "", owner=owner if request.owner_principal_name else None, renewers=renewers
    )


def _token(request: Any, image: ClusterImage) -> Iterator[Target]:
    yield _named("DELEGATION_TOKEN", "")


_SETTINGS = "`settings`: names, without values"
_ACL = "`pattern`, `principal`, `host`, `operation`, `permission`"

ACTIONS: Mapping[str, Action] = {
    "AlterClientQuotas": Action("the user, client id or address", "`quotas`: new values", _quotas),
    "AlterConfigs": Action("topic, broker, group or subscription", _SETTINGS, _configs),
    "AlterPartitionReassignments": Action("partitions", "`replicas`", _reassignments),
    "AlterReplicaLogDirs": Action("partitions", "`directory`", _directories),
    "AlterUserScramCredentials": Action("users", "`change` (`SET`, `DELETE`), `mechanism`", _users),
    "CreateAcls": Action("the pattern's resource", _ACL, _created_acls, "results"),
    "CreateDelegationToken": Action("delegation tokens, by id", "`owner`, `renewers`", _new_token),
    "CreatePartitions": Action("topics", "`partitions`: the new number", _created_partitions),
    "CreateTopics": Action("topics", f"`partitions`, `replication_factor`, {_SETTINGS}", _created_topics),
    "DeleteAcls": Action(
        "the filter's resource",
        f"{_ACL} of the filter. `deleted`: the ACLs that went, with `type`, `name` and these fields",
        _deleted_acls,
        "filter_results",
        _acls_that_went,
    ),
    "DeleteGroups": Action("groups", "", _deleted_groups),
    "DeleteRecords": Action("partitions", "`before_offset`", _deleted_records),
    "DeleteTopics": Action("topics", "`topic_id`, if the client named that", _deleted_topics),
    "ElectLeaders": Action("partitions", "`election`: `PREFERRED`, `UNCLEAN`", _elections),
    "ExpireDelegationToken": Action("delegation tokens, by id", "", _token),
    "IncrementalAlterConfigs": Action(
        "topic, broker, group or subscription", f"{_SETTINGS}, with the operation", _changed_configs
    ),
    "OffsetDelete": Action("partitions", "`group`", _deleted_offsets),
    "RenewDelegationToken": Action("delegation tokens, by id", "", _token),
    "UnregisterBroker": Action("brokers", "", _brokers),
    "UpdateFeatures": Action("features", "`level`", _features),
}
"""By name of the API."""

NO_ACTION: Mapping[str, frozenset[str]] = {
    "records and offsets of clients": frozenset(
        {"Fetch", "ListOffsets", "OffsetCommit", "OffsetFetch", "OffsetForLeaderEpoch", "Produce"}
    ),
    "members of groups": frozenset(
        {"ConsumerGroupHeartbeat", "Heartbeat", "JoinGroup", "LeaveGroup", "SyncGroup"}
    ),
    "transactions": frozenset(
        {
            "AddOffsetsToTxn",
            "AddPartitionsToTxn",
            "EndTxn",
            "InitProducerId",
            "TxnOffsetCommit",
            "WriteTxnMarkers",
        }
    ),
    "logins, whose failures have entries of their own": frozenset({"SaslAuthenticate", "SaslHandshake"}),
    "reads": frozenset(
        {
            "ApiVersions",
            "ConsumerGroupDescribe",
            "DescribeAcls",
            "DescribeClientQuotas",
            "DescribeCluster",
            "DescribeConfigs",
            "DescribeDelegationToken",
            "DescribeGroups",
            "DescribeLogDirs",
            "DescribeProducers",
            "DescribeQuorum",
            "DescribeTopicPartitions",
            "DescribeTransactions",
            "DescribeUserScramCredentials",
            "FindCoordinator",
            "ListConfigResources",
            "ListGroups",
            "ListPartitionReassignments",
            "ListTransactions",
            "Metadata",
        }
    ),
}
"""APIs without entries for what they do, by reason. Denied requests have entries nevertheless."""


# ---- how it ended -----------------------------------------------------------------------------------


def outcomes(action: Action, response: Any) -> Callable[[Target], int]:
    """The error code of each target, by a decoded response."""
    codes: dict[Key, int] = {}
    if action.results:
        for at, item in enumerate(getattr(response, action.results)):
            codes["", at] = item.error_code
    else:
        for key, code in _codes(response, ""):
            codes[key] = codes.get(key) or code
    whole = getattr(response, "error_code", 0)
    return lambda target: whole or codes.get(target.key) or codes.get((target.key[0], None), 0)


def outcome_name(code: int) -> str:
    """The outcome as entries have it."""
    try:
        return ErrorCode(code).name if code else "OK"
    except ValueError:
        return f"ERROR_{code}"


def _codes(struct: Any, name: str) -> Iterator[tuple[Key, int]]:
    """The error code of each named item in a response, with its key."""
    for field in struct.FIELDS:
        if field.nested is None:
            continue
        value = getattr(struct, field.name)
        for item in value if isinstance(value, list) else ():
            of_item, number = _key_of(item)
            key = of_item or name, number
            if hasattr(item, "error_code"):
                yield key, item.error_code
                if topic_id := getattr(item, "topic_id", None):
                    yield (str(topic_id), None), item.error_code
            yield from _codes(item, key[0])


def _key_of(item: Any) -> Key:
    number = getattr(item, "partition_index", getattr(item, "partition_id", None))
    if hasattr(item, "entity"):
        return _entity(item.entity), number
    if hasattr(item, "resource_name"):
        return _config_key(item)
    for name in ("name", "topic", "topic_name", "user", "group_id", "feature"):
        if (value := getattr(item, name, None)) is not None:
            return str(value), number
    return "", number


def _config_key(item: Any) -> Key:
    return item.resource_name, item.resource_type


def _entity(parts: Any) -> str:
    named = sorted((one.entity_type, one.entity_name) for one in parts)
    return ",".join(f"{kind}={'<default>' if name is None else name}" for kind, name in named)


def _rule(one: Any, principal: str | None, host: str | None) -> dict[str, Any]:
    return {
        "principal": principal,
        "host": host,
        "operation": _member(AclOperation, one.operation),
        "permission": _member(Permission, one.permission_type),
    }


def _member(enumeration: Any, number: int) -> str:
    try:
        return str(enumeration(number).name)
    except ValueError:
        return str(number)


def _name_in(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def reference_table() -> list[str]:
    """Rows of the actions, as Markdown."""
    rows = (f"| {name} | {one.resources} | {one.details} |" for name, one in sorted(ACTIONS.items()))
    return ["| API | resources | details |", "| --- | --- | --- |", *rows]
