"""Requests of clients whose access ACLs decide, for tierlog and for Apache Kafka.

Both brokers begin with `allow.everyone.if.no.acl.found`, and get ACLs that allow everything from ADMIN_HOST.
From then on every resource has an ACL, so clients of other addresses may do only what ACLs allow. The
principal is the same for all: addresses tell clients apart without any authentication.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from every_request import MAKE, Place
from waiting import until
from wire_client import Client, message

from tierlog.broker.handlers.access import ACCESS, CLUSTER, Each, Found, Row
from tierlog.metadata.acls import AclOperation, PatternType, Permission, ResourceType
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from tierlog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tierlog.protocol.messages.describe_acls import DescribeAclsRequest

ADMIN_HOST, HOST = "127.0.0.1", "127.0.0.2"
ANY = 1
AUTHORIZATION_ERRORS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
FILTERED = {"ListGroups": "groups", "ListTransactions": "transaction_states"}
"""APIs whose responses leave out what is denied, and the array."""
REQUESTS = MAKE | {
    "CreateAcls": lambda place: {
        "creations": [
            {
                "resource_type": ResourceType.TOPIC,
                "resource_name": place.topic,
                "principal": "User:ada",
                "host": "*",
                "operation": AclOperation.READ,
                "permission_type": Permission.ALLOW,
            }
        ]
    },
    "DeleteAcls": lambda place: {"filters": [every_acl_of("192.0.2.1")]},
    "DescribeAcls": lambda place: every_acl_of("192.0.2.1"),
}
"""Valid requests if the node has an authorizer."""


def every_acl_of(host: str | None) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": host,
        "operation": ANY,
        "permission_type": ANY,
    }


class Acls:
    """Changes the ACLs of a broker, and waits until it has applied them."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        for resource in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            self.allow(AclOperation.ALL, resource, "*", host=ADMIN_HOST)
        self.allow(AclOperation.ALL, *CLUSTER, host=ADMIN_HOST)

    def allow(self, operation: AclOperation, resource: ResourceType, name: str, **more: Any) -> None:
        self.add((operation, resource, name), **more)

    def add(
        self,
        *entries: tuple[AclOperation, ResourceType, str],
        host: str = HOST,
        principal: str = "User:ANONYMOUS",
        pattern: PatternType = PatternType.LITERAL,
        permission: Permission = Permission.ALLOW,
    ) -> None:
        creations = [
            AclCreation(
                resource_type=resource,
                resource_name=name,
                resource_pattern_type=pattern,
                principal=principal,
                host=host,
                operation=operation,
                permission_type=permission,
            )
            for operation, resource, name in entries
        ]
        response = self.admin.send("CreateAcls", 3, CreateAclsRequest(creations=creations))
        assert not any(result.error_code for result in response.results), response
        wanted = {(*entry, permission) for entry in entries}
        until(lambda: wanted <= set(self.of(host)), "the ACLs are applied")

    def revoke(self, host: str = HOST) -> None:
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**every_acl_of(host))])
        assert not self.admin.send("DeleteAcls", 3, request).filter_results[0].error_code
        until(lambda: not list(self.of(host)), "the ACLs are gone")

    def of(self, host: str) -> Iterator[tuple[int, int, str, int]]:
        described = self.admin.send("DescribeAcls", 3, DescribeAclsRequest(**every_acl_of(host)))
        assert not described.error_code
        for resource in described.resources:
            for acl in resource.acls:
                yield acl.operation, resource.resource_type, resource.resource_name, acl.permission_type

    @contextmanager
    def granted(self, *entries: tuple[AclOperation, ResourceType, str]) -> Iterator[None]:
        """These permissions for HOST, and no others."""
        self.revoke()
        if entries:
            self.add(*entries)
        yield
        self.revoke()


def rows_of(api: str, version: int) -> list[Row]:
    """The rows that the request of MAKE needs in this version."""
    return [
        row
        for row in ACCESS[api]
        if version in row.versions
        and (api, row.operation, row.resource) not in OPTIONAL
        and (api, type(row.names)) not in WITHOUT_NAMES
    ]


WITHOUT_NAMES = {("ConsumerGroupHeartbeat", Found)}
"""Rows for names that the requests of MAKE do not lead to: the member has no regular expression."""

OPTIONAL = {
    # token_sides.py has those of clients that logged in; others are refused before
    ("CreateDelegationToken", AclOperation.CREATE_TOKENS, ResourceType.USER),
    ("DescribeDelegationToken", AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
    ("DescribeDelegationToken", AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ("CreateTopics", AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC),  # only leaves out settings
    ("DescribeCluster", AclOperation.DESCRIBE, ResourceType.CLUSTER),  # only for authorized operations
    ("DescribeTransactions", AclOperation.DESCRIBE, ResourceType.TOPIC),  # the transaction has no topic
    ("Fetch", AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER),  # for replicas
    ("InitProducerId", AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID),
    ("InitProducerId", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),  # the producer has no such id
    ("Metadata", AclOperation.CREATE, ResourceType.TOPIC),  # the topic exists
    ("Produce", AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID),  # the batch has no such id
    ("Metadata", AclOperation.DESCRIBE, ResourceType.CLUSTER),  # only for authorized operations
}


def permissions_of(rows: Iterable[Row]) -> list[tuple[AclOperation, ResourceType, str]]:
    """Permissions for what the rows need, on all resources of their types."""
    found = []
    for row in rows:
        kind = row.resource
        if kind is None:  # the requests of MAKE are about settings of topics, and coordinators of groups
            kind = ResourceType.GROUP if row.operation == AclOperation.DESCRIBE else ResourceType.TOPIC
        found.append((row.operation, kind, CLUSTER.name if kind == ResourceType.CLUSTER else "*"))
    return found


def send(client: Client, api: str, version: int, place: Place) -> Any:
    return client.send(api, version, message(api, REQUESTS[api](place)))


def arrays_of(api: str, version: int) -> list[str]:
    """Arrays of the request whose items are permitted or denied independently."""
    arrays = [row.names.array for row in rows_of(api, version) if isinstance(row.names, Each)]
    made = REQUESTS[api](Place("t", uuid.UUID(int=1), "g"))
    return [array for array in dict.fromkeys(arrays) if array in made and api not in FILTERED]


def request_for_both(api: str, version: int, permitted: Place, denied: Place) -> Any:
    """A request with the items of the requests for both places."""
    values, others = REQUESTS[api](permitted), REQUESTS[api](denied)
    both = {array: [*values[array], *others[array]] for array in arrays_of(api, version)}
    return message(api, values | both)


def permissions_for(rows: Iterable[Row], place: Place) -> list[tuple[AclOperation, ResourceType, str]]:
    """Permissions for the resources of one place only."""
    found = []
    for operation, kind, _ in permissions_of(rows):
        names = {
            ResourceType.TOPIC: [place.topic, place.fresh],
            ResourceType.GROUP: [place.group, place.fresh],
            ResourceType.TRANSACTIONAL_ID: [place.fresh],
        }.get(kind, [CLUSTER.name])
        found += [(operation, kind, name) for name in names]
    return found
