"""Table of access: for each API, the operations on resources that a client needs (KIP-11, KIP-140).

`handlers.guard` enforces the rows before the handler runs, except those marked as `by_handler`: their
responses depend on access in more than one place, or are encoded in several turns. A denied request gets the
error of the resource type. If only some items of an array (`Each`) are denied, the others are processed, and
the response has the error for each denied one. Authorization comes first, so a client learns nothing about
resources that it may not describe. The page docs/reference/access.md and the test matrix are made from this
table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tierlog.broker.handlers.configs import GROUP as GROUP_CONFIG
from tierlog.broker.handlers.configs import TOPIC as TOPIC_CONFIG
from tierlog.broker.handlers.find_coordinator import GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE
from tierlog.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID

DENIED: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error of a denied resource."""

MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
"""Messages of these errors, as in Kafka."""


class Resource(NamedTuple):
    type: ResourceType
    name: str


CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


@dataclass(frozen=True, slots=True)
class Whole:
    """The cluster. A denial refuses the whole request."""

    says = "the cluster"


@dataclass(frozen=True, slots=True)
class Field:
    """The resource that a field names. A denial refuses the whole request; null needs no access."""

    name: str

    @property
    def says(self) -> str:
        return f"`{self.name}`"


@dataclass(frozen=True, slots=True)
class Every:
    """The resources that an array of names names. A denial of one refuses the whole request."""

    array: str

    @property
    def says(self) -> str:
        return f"all of `{self.array}`"


@dataclass(frozen=True, slots=True)
class Each:
    """The resources that the items of an array name, by `name`, `topic` or `topic_id`, or that are names
    themselves. A denied item gets an error of its own, while the others are processed."""

    array: str
    others: ErrorCode | None = None
    """The error of all other items if one is denied; None: they are processed."""

    @property
    def says(self) -> str:
        return f"each of `{self.array}`"


@dataclass(frozen=True, slots=True)
class Found:
    """Resources that no field names: the handler finds them, and checks them itself."""

    says: str


Names = Whole | Field | Every | Each | Found


@dataclass(frozen=True, slots=True)
class Row:
    """Access that requests of these versions need. `resource` is None if the request says which type it is.

    `or_cluster`: an operation on the cluster that is enough instead. `by_handler`: the handler checks it, as
    `note` says.
    """

    operation: AclOperation
    resource: ResourceType | None
    names: Names
    or_cluster: AclOperation | None = None
    versions: range = range(100)
    by_handler: bool = False
    note: str = ""


def _on_cluster(operation: AclOperation, or_cluster: AclOperation | None = None) -> tuple[Row, ...]:
    return (Row(operation, ResourceType.CLUSTER, Whole(), or_cluster),)


def _group(operation: AclOperation) -> Row:
    return Row(operation, ResourceType.GROUP, Field("group_id"))


def _topics(operation: AclOperation, array: str = "topics", **more: Any) -> Row:
    return Row(operation, ResourceType.TOPIC, Each(array), **more)


def _transactional_id() -> Row:
    return Row(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, Field("transactional_id"))


_OPERATIONS_NOTE = "authorized operations of the cluster, which need DESCRIBE; otherwise none are returned"

ACCESS: Mapping[str, tuple[Row, ...]] = {
    "AddOffsetsToTxn": (_transactional_id(), _group(AclOperation.READ)),
    "AddPartitionsToTxn": (
        Row(
            AclOperation.WRITE,
            ResourceType.TRANSACTIONAL_ID,
            Field("v3_and_below_transactional_id"),
            versions=range(4),
        ),
        Row(
            AclOperation.WRITE,
            ResourceType.TOPIC,
            Each("v3_and_below_topics", others=ErrorCode.OPERATION_NOT_ATTEMPTED),
            versions=range(4),
            note="up to version 3; if one is denied, the others get `OPERATION_NOT_ATTEMPTED`",
        ),
        Row(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, Whole(), versions=range(4, 100)),
    ),
    "AlterClientQuotas": _on_cluster(AclOperation.ALTER_CONFIGS),
    "AlterConfigs": (Row(AclOperation.ALTER_CONFIGS, None, Each("resources")),),
    "AlterPartitionReassignments": _on_cluster(AclOperation.ALTER),
    "AlterReplicaLogDirs": _on_cluster(AclOperation.ALTER),
    "AlterUserScramCredentials": _on_cluster(AclOperation.ALTER),
    "ApiVersions": (),
    "ConsumerGroupDescribe": (
        Row(AclOperation.DESCRIBE, ResourceType.GROUP, Each("group_ids"), by_handler=True),
        Row(
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            Found("topics of each group's members"),
            by_handler=True,
            note="a denied one fails its group",
        ),
    ),
    "ConsumerGroupHeartbeat": (
        _group(AclOperation.READ),
        Row(
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            Every("subscribed_topic_names"),
            note="a denied one refuses the whole request",
        ),
        Row(
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            Found("topics that `subscribed_topic_regex` may match"),
            by_handler=True,
            note="denied topics do not match, for all members of the group until the next refresh",
        ),
    ),
    "CreateAcls": _on_cluster(AclOperation.ALTER),
    "CreateDelegationToken": (
        Row(
            AclOperation.CREATE_TOKENS,
            ResourceType.USER,
            Found("the principal of `owner_principal_name`, such as `User:ada`"),
            by_handler=True,
            note="if it is not the client's own",
        ),
    ),
    "CreatePartitions": (_topics(AclOperation.ALTER),),
    "CreateTopics": (
        _topics(AclOperation.CREATE, or_cluster=AclOperation.CREATE),
        _topics(
            AclOperation.DESCRIBE_CONFIGS,
            by_handler=True,
            note="settings in the response, which a denial leaves out",
        ),
    ),
    "DeleteAcls": _on_cluster(AclOperation.ALTER),
    "DeleteGroups": (Row(AclOperation.DELETE, ResourceType.GROUP, Each("groups_names")),),
    "DeleteRecords": (_topics(AclOperation.DELETE),),
    "DeleteTopics": (
        _topics(AclOperation.DELETE, "topic_names", or_cluster=AclOperation.DELETE, versions=range(6)),
        _topics(AclOperation.DELETE, or_cluster=AclOperation.DELETE, versions=range(6, 100)),
    ),
    "DescribeAcls": _on_cluster(AclOperation.DESCRIBE),
    "DescribeClientQuotas": _on_cluster(AclOperation.DESCRIBE_CONFIGS),
    "DescribeCluster": (
        Row(AclOperation.DESCRIBE, ResourceType.CLUSTER, Whole(), by_handler=True, note=_OPERATIONS_NOTE),
    ),
    "DescribeConfigs": (Row(AclOperation.DESCRIBE_CONFIGS, None, Each("resources"), by_handler=True),),
    "DescribeDelegationToken": (
        Row(
            AclOperation.DESCRIBE,
            ResourceType.DELEGATION_TOKEN,
            Found("the id of each token of `owners`"),
            by_handler=True,
            note="only permitted tokens are returned, and those that the client owns, created or may renew",
        ),
        Row(
            AclOperation.DESCRIBE_TOKENS,
            ResourceType.USER,
            Found("the owner of each token of `owners`"),
            by_handler=True,
            note="enough instead of the operation on the token",
        ),
    ),
    "DescribeGroups": (Row(AclOperation.DESCRIBE, ResourceType.GROUP, Each("groups"), by_handler=True),),
    "DescribeLogDirs": _on_cluster(AclOperation.DESCRIBE),
    "DescribeProducers": (_topics(AclOperation.READ),),
    "DescribeQuorum": _on_cluster(AclOperation.DESCRIBE),
    "DescribeTopicPartitions": (
        _topics(
            AclOperation.DESCRIBE,
            by_handler=True,
            note="if all topics are requested, only permitted ones are returned",
        ),
    ),
    "DescribeTransactions": (
        Row(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, Each("transactional_ids"), by_handler=True),
        Row(
            AclOperation.DESCRIBE,
            ResourceType.TOPIC,
            Found("topics of each transaction"),
            by_handler=True,
            note="only permitted topics are returned",
        ),
    ),
    "DescribeUserScramCredentials": _on_cluster(AclOperation.DESCRIBE),
    "ElectLeaders": _on_cluster(AclOperation.ALTER),
    "EndTxn": (_transactional_id(),),
    "ExpireDelegationToken": (),
    "Fetch": (
        _topics(
            AclOperation.READ,
            by_handler=True,
            note="requests of consumers; also each partition of a fetch session, every time it is used",
        ),
        Row(
            AclOperation.CLUSTER_ACTION,
            ResourceType.CLUSTER,
            Whole(),
            by_handler=True,
            note="requests of replicas; each partition of a denied one gets TOPIC_AUTHORIZATION_FAILED",
        ),
    ),
    "FindCoordinator": (
        Row(AclOperation.DESCRIBE, None, Field("key"), versions=range(4)),
        Row(AclOperation.DESCRIBE, None, Each("coordinator_keys"), versions=range(4, 100)),
    ),
    "Heartbeat": (_group(AclOperation.READ),),
    "IncrementalAlterConfigs": (Row(AclOperation.ALTER_CONFIGS, None, Each("resources")),),
    "InitProducerId": (
        _transactional_id(),
        Row(
            AclOperation.TWO_PHASE_COMMIT,
            ResourceType.TRANSACTIONAL_ID,
            Field("transactional_id"),
            by_handler=True,
            note="with `enable2_pc`",
        ),
        Row(
            AclOperation.IDEMPOTENT_WRITE,
            ResourceType.CLUSTER,
            Whole(),
            by_handler=True,
            note="without a transactional id; WRITE on any topic is enough instead",
        ),
    ),
    "JoinGroup": (_group(AclOperation.READ),),
    "LeaveGroup": (_group(AclOperation.READ),),
    "ListConfigResources": _on_cluster(AclOperation.DESCRIBE_CONFIGS),
    "ListGroups": (
        Row(
            AclOperation.DESCRIBE,
            ResourceType.GROUP,
            Found("all groups that match the filters"),
            or_cluster=AclOperation.DESCRIBE,
            by_handler=True,
            note="only permitted groups are returned",
        ),
    ),
    "ListOffsets": (_topics(AclOperation.DESCRIBE),),
    "ListPartitionReassignments": _on_cluster(AclOperation.DESCRIBE),
    "ListTransactions": (
        Row(
            AclOperation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            Found("all transactional ids that match the filters"),
            by_handler=True,
            note="only permitted transactional ids are returned",
        ),
    ),
    "Metadata": (
        _topics(
            AclOperation.DESCRIBE,
            by_handler=True,
            note="if all topics are requested, only permitted ones are returned",
        ),
        _topics(
            AclOperation.CREATE,
            or_cluster=AclOperation.CREATE,
            by_handler=True,
            note="topics that the request would create",
        ),
        Row(AclOperation.DESCRIBE, ResourceType.CLUSTER, Whole(), by_handler=True, note=_OPERATIONS_NOTE),
    ),
    "OffsetCommit": (_group(AclOperation.READ), _topics(AclOperation.READ)),
    "OffsetDelete": (_group(AclOperation.DELETE), _topics(AclOperation.READ)),
    "OffsetFetch": (
        Row(
            AclOperation.DESCRIBE,
            ResourceType.GROUP,
            Each("groups"),
            by_handler=True,
            note="`group_id` before version 8",
        ),
        _topics(
            AclOperation.DESCRIBE,
            by_handler=True,
            note="if all topics are requested, only permitted ones are returned",
        ),
    ),
    "OffsetForLeaderEpoch": (_topics(AclOperation.DESCRIBE, or_cluster=AclOperation.CLUSTER_ACTION),),
    "Produce": (_transactional_id(), _topics(AclOperation.WRITE, "topic_data")),
    "RenewDelegationToken": (),
    "SaslAuthenticate": (),
    "SaslHandshake": (),
    "SyncGroup": (_group(AclOperation.READ),),
    "TxnOffsetCommit": (_transactional_id(), _group(AclOperation.READ), _topics(AclOperation.READ)),
    "UnregisterBroker": _on_cluster(AclOperation.ALTER),
    "UpdateFeatures": _on_cluster(AclOperation.ALTER),
    "WriteTxnMarkers": _on_cluster(AclOperation.CLUSTER_ACTION, or_cluster=AclOperation.ALTER),
}
"""By name of the API. No row: every client that has a connection may send it."""


def resource_of(row: Row, request: Any, item: Any, image: ClusterImage) -> Resource | None:
    """The resource that an item of a request, or one of its fields, names. None for a topic id that is
    unknown, and for what is no resource: the handler answers these."""
    if row.resource is None:
        if hasattr(item, "resource_type"):
            return config_resource(item.resource_type, item.resource_name)
        return coordinated_resource(request.key_type, item)
    if isinstance(item, str):
        return Resource(row.resource, item)
    topic_id = getattr(item, "topic_id", ZERO_UUID)
    if topic_id != ZERO_UUID:
        topic = image.topics.get(topic_id)
        return None if topic is None else Resource(row.resource, topic.name)
    name = item.topic if hasattr(item, "topic") else item.name
    return None if name is None else Resource(row.resource, name)


def config_resource(kind: int, name: str) -> Resource:
    """The resource whose settings are those of a config resource: for nodes, and all that has no resource
    type of its own, the cluster."""
    if kind == TOPIC_CONFIG:
        return Resource(ResourceType.TOPIC, name)
    return Resource(ResourceType.GROUP, name) if kind == GROUP_CONFIG else CLUSTER


def coordinated_resource(key_type: int, key: str) -> Resource | None:
    """The resource that a coordinator is for."""
    if key_type == TRANSACTION_KEY_TYPE:
        return Resource(ResourceType.TRANSACTIONAL_ID, key)
    return Resource(ResourceType.GROUP, key) if key_type == GROUP_KEY_TYPE else None


def missing_rows(apis: Iterable[str]) -> list[str]:
    """APIs that the table does not have."""
    return sorted(set(apis) - ACCESS.keys())
