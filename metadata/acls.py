"""Access control lists of the image: which principal may, or must not, do what to which resource.

Enumerations are numbered as in the Kafka protocol. Spark's executors import this module with the records, and
have no persistent maps: the index of all entries is in `acl_index`.
"""

import ipaddress
from enum import IntEnum
from typing import NamedTuple

import msgspec

WILDCARD = "*"
"""Name of a literal pattern that matches every resource of its type, and host that matches every host."""

USER = "User:"
"""Beginning of every principal. Kafka's brokers know no other type either."""

WILDCARD_PRINCIPAL = f"{USER}*"

CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""

TEXT_MAX = 1_024
"""Maximum length in characters of a resource name or a principal, such as a distinguished name."""


class _Number(IntEnum):
    """Hashed in C. Enum's own method takes most of the time of a look-up with two members in its key."""

    __hash__ = int.__hash__


class ResourceType(_Number):
    UNKNOWN = 0
    ANY = 1  # only in filters
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Number):
    UNKNOWN = 0
    ANY = 1  # only in filters
    MATCH = 2  # only in filters: patterns that apply to a resource of this name
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Number):
    UNKNOWN = 0
    ANY = 1  # only in filters
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


OPERATIONS_OF = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE,
        AclOperation.DESCRIBE,
        AclOperation.TWO_PHASE_COMMIT,
    ),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""Operations that exist for each type of resource besides ALL (AclEntry.supportedOperations in
Kafka)."""


class Permission(_Number):
    UNKNOWN = 0
    ANY = 1  # only in filters
    DENY = 2
    ALLOW = 3


class AccessControlEntry(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One ACL. Two equal entries are the same ACL."""

    resource: ResourceType
    pattern: PatternType
    name: str
    principal: str  # as `User:name`
    host: str
    operation: AclOperation
    permission: Permission

    @property
    def order(self) -> tuple[int, int, str, str, str, int, int]:
        """Sort key."""
        return (
            self.resource,
            self.pattern,
            self.name,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects ACLs, as in DescribeAcls and DeleteAcls. None and ANY select all."""

    resource: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: Permission = Permission.ANY

    def selects_pattern(self, resource: ResourceType, pattern: PatternType, name: str) -> bool:
        if self.resource not in (ResourceType.ANY, resource):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, pattern):
            return False
        if self.name is None or self.name == name:
            return True
        if self.pattern != PatternType.MATCH:
            return False
        return self.name.startswith(name) if pattern == PatternType.PREFIXED else name == WILDCARD

    def selects_rule(self, rule: "Rule") -> bool:
        return (
            self.host in (None, rule.host)
            and self.operation in (AclOperation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )


class Rule(NamedTuple):
    """An ACL without its resource pattern and principal."""

    host: str
    operation: AclOperation
    permission: Permission


ResourcePattern = tuple[ResourceType, PatternType, str]


def canonical_host(text: str) -> str | None:
    """An IP address in the form in which peers are compared; None if the text is no address. IPv4 addresses
    that are mapped to IPv6 become IPv4 addresses. Zones of IPv6 addresses are dropped: they name a network
    interface of one host (RFC 4007, section 6)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address)))
