"""Requests of the `acl` commands, and which operations exist for each resource type. Returns plain rows; the
commands parse options and print."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.metadata.acls import AclOperation, PatternType, Permission, ResourceType
from tierlog.protocol.messages import create_acls, delete_acls, describe_acls

RESOURCE_NAMES = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional-id",
    ResourceType.DELEGATION_TOKEN: "token",
    ResourceType.USER: "user",
}
OPERATIONS = {
    ResourceType.TOPIC: (
        "read",
        "write",
        "create",
        "delete",
        "alter",
        "describe",
        "describe-configs",
        "alter-configs",
    ),
    ResourceType.GROUP: ("read", "delete", "describe", "describe-configs", "alter-configs"),
    ResourceType.CLUSTER: (
        "create",
        "alter",
        "describe",
        "cluster-action",
        "describe-configs",
        "alter-configs",
        "idempotent-write",
    ),
    ResourceType.TRANSACTIONAL_ID: ("write", "describe", "two-phase-commit"),
    ResourceType.DELEGATION_TOKEN: ("describe",),
    ResourceType.USER: ("create-tokens", "describe-tokens"),
}
"""Operations of each type besides `all`, as in kafka-acls."""

Row = dict[str, str]


class Acl(NamedTuple):
    resource: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def row(self) -> Row:
        return {
            "resource": RESOURCE_NAMES.get(self.resource, self.resource.name.lower()),
            "name": self.name,
            "pattern": self.pattern.name.lower(),
            "principal": self.principal,
            "host": self.host,
            "operation": operation_name(self.operation),
            "permission": self.permission.name.lower(),
        }


class Filter(NamedTuple):
    """Selects ACLs. None and ANY select all."""

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def fields(self) -> dict[str, Any]:
        return {
            "resource_type_filter": self.resource,
            "resource_name_filter": self.name,
            "pattern_type_filter": self.pattern,
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": self.operation,
            "permission_type": self.permission,
        }


def operation_name(operation: AclOperation) -> str:
    return operation.name.lower().replace("_", "-")


def create(client: KafkaClient, acls: Sequence[Acl]) -> None:
    """Add ACLs. Those that exist are no error."""
    creations = [
        create_acls.AclCreation(
            resource_type=acl.resource,
            resource_name=acl.name,
            resource_pattern_type=acl.pattern,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    response = client.call(create_acls.CreateAclsRequest(creations=creations))
    for acl, result in zip(acls, response.results, strict=True):
        raise_for(result.error_code, result.error_message, f"the ACL of {acl.principal}")


def find(client: KafkaClient, filters: Iterable[Filter]) -> list[Acl]:
    """ACLs that any of the filters selects, in order."""
    found: set[Acl] = set()
    for each in filters:
        response = client.call(describe_acls.DescribeAclsRequest(**each.fields()))
        raise_for(response.error_code, response.error_message, "ACLs")
        found.update(_described(response))
    return sorted(found)


def _described(response: describe_acls.DescribeAclsResponse) -> Iterator[Acl]:
    for resource in response.resources:
        for acl in resource.acls:
            yield Acl(
                ResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                acl.principal,
                acl.host,
                AclOperation(acl.operation),
                Permission(acl.permission_type),
            )


def delete(client: KafkaClient, filters: Sequence[Filter]) -> list[Acl]:
    """Delete the ACLs that the filters select, and return them in order."""
    wanted = [delete_acls.DeleteAclsFilter(**each.fields()) for each in filters]
    response = client.call(delete_acls.DeleteAclsRequest(filters=wanted))
    deleted: set[Acl] = set()
    for result in response.filter_results:
        raise_for(result.error_code, result.error_message, "ACLs")
        for acl in result.matching_acls:
            raise_for(acl.error_code, acl.error_message, "ACLs")
            deleted.add(
                Acl(
                    ResourceType(acl.resource_type),
                    acl.resource_name,
                    PatternType(acl.pattern_type),
                    acl.principal,
                    acl.host,
                    AclOperation(acl.operation),
                    Permission(acl.permission_type),
                )
            )
    return sorted(deleted)
