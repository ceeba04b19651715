"""Requests of the `acl` commands. Returns plain rows; the commands parse options and print."""

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

FILTERS_PER_REQUEST = 500
"""A broker accepts 1,000."""

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
    """Add ACLs. Those that exist already stay as they are."""
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


def delete(client: KafkaClient, acls: Sequence[Acl]) -> list[Acl]:
    """Delete these ACLs. Returns those that existed, in order."""
    deleted: set[Acl] = set()
    for start in range(0, len(acls), FILTERS_PER_REQUEST):
        some = acls[start : start + FILTERS_PER_REQUEST]
        wanted = [delete_acls.DeleteAclsFilter(**Filter(*acl).fields()) for acl in some]
        response = client.call(delete_acls.DeleteAclsRequest(filters=wanted))
        for acl, result in zip(some, response.filter_results, strict=True):
            raise_for(result.error_code, result.error_message, f"the ACL of {acl.principal}")
            for match in result.matching_acls:
                raise_for(match.error_code, match.error_message, f"the ACL of {acl.principal}")
                deleted.add(acl)
    return sorted(deleted)
