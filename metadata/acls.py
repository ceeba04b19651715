"""Access control lists of the image: which principal may, or must not, do what to which resource.

Enumerations are numbered as in the Kafka protocol. `AclIndex` groups the entries as the authorizer looks them
up: by resource pattern, then by principal. Immutable, like the whole image. Called by evolve, the controller
and the broker's authorizer.
"""

import ipaddress
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import msgspec
from immutables import Map

WILDCARD = "*"
"""Name of a literal pattern that matches every resource of its type, and host that matches every host."""

WILDCARD_PRINCIPAL = "User:*"

CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1  # only in filters
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1  # only in filters
    MATCH = 2  # only in filters: patterns that apply to a resource of this name
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
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


class Permission(IntEnum):
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

Rules = Map[str, tuple[Rule, ...]]
"""Rules of a resource pattern by principal, each tuple in order."""


class AclIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All ACLs. An index with the same entries is equal, whatever their order was."""

    patterns: Map[ResourcePattern, Rules] = Map()
    prefixes: Map[ResourceType, tuple[str, ...]] = Map()  # names of prefixed patterns, in order
    count: int = 0

    def __contains__(self, entry: AccessControlEntry) -> bool:
        return _rule(entry) in self.patterns.get(_pattern(entry), _NO_RULES).get(entry.principal, ())

    def __iter__(self) -> Iterator[AccessControlEntry]:
        """In no order."""
        for pattern, rules in self.patterns.items():
            for principal, of_principal in rules.items():
                for rule in of_principal:
                    yield _entry(pattern, principal, rule)

    def __len__(self) -> int:
        return self.count

    def with_entry(self, entry: AccessControlEntry) -> "AclIndex":
        """The index with this entry. It changes nothing if it has it already."""
        if entry in self:
            return self
        pattern = _pattern(entry)
        rules = self.patterns.get(pattern)
        prefixes = self.prefixes
        if rules is None:
            rules = _NO_RULES
            if entry.pattern == PatternType.PREFIXED:
                prefixes = prefixes.set(entry.resource, _with(prefixes.get(entry.resource, ()), entry.name))
        of_principal = tuple(sorted((*rules.get(entry.principal, ()), _rule(entry))))
        return AclIndex(
            patterns=self.patterns.set(pattern, rules.set(entry.principal, of_principal)),
            prefixes=prefixes,
            count=self.count + 1,
        )

    def without_entry(self, entry: AccessControlEntry) -> "AclIndex":
        """The index without this entry. It changes nothing if it does not have it."""
        if entry not in self:
            return self
        pattern = _pattern(entry)
        rules, prefixes = self.patterns[pattern], self.prefixes
        left = tuple(rule for rule in rules[entry.principal] if rule != _rule(entry))
        rules = rules.set(entry.principal, left) if left else rules.delete(entry.principal)
        if rules:
            patterns = self.patterns.set(pattern, rules)
        else:
            patterns = self.patterns.delete(pattern)
            if entry.pattern == PatternType.PREFIXED:
                names = _without(prefixes[entry.resource], entry.name)
                prefixes = prefixes.set(entry.resource, names) if names else prefixes.delete(entry.resource)
        return AclIndex(patterns=patterns, prefixes=prefixes, count=self.count - 1)


def selected_patterns(index: AclIndex, wanted: AclFilter) -> list[ResourcePattern]:
    """The resource patterns that the filter selects, in order."""
    is_one = wanted.pattern in (PatternType.LITERAL, PatternType.PREFIXED) and wanted.name is not None
    if is_one and wanted.resource != ResourceType.ANY:
        pattern = wanted.resource, wanted.pattern, wanted.name or ""
        return [pattern] if pattern in index.patterns else []
    return sorted(pattern for pattern in index.patterns if wanted.selects_pattern(*pattern))


def selected_entries(
    index: AclIndex, pattern: ResourcePattern, wanted: AclFilter
) -> Iterator[AccessControlEntry]:
    """The entries of a resource pattern that the filter selects, in order."""
    rules = index.patterns[pattern]
    principals = sorted(rules) if wanted.principal is None else [wanted.principal]
    for principal in principals:
        for rule in rules.get(principal, ()):
            if wanted.selects_rule(rule):
                yield _entry(pattern, principal, rule)


def canonical_host(text: str) -> str | None:
    """An IP address in the form in which peers are compared; None if the text is no address. IPv4 addresses
    that are mapped to IPv6 become IPv4 addresses."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _entry(pattern: ResourcePattern, principal: str, rule: Rule) -> AccessControlEntry:
    return AccessControlEntry(
        resource=pattern[0],
        pattern=pattern[1],
        name=pattern[2],
        principal=principal,
        host=rule.host,
        operation=rule.operation,
        permission=rule.permission,
    )


def index_of(entries: Iterable[AccessControlEntry]) -> AclIndex:
    """The index of these entries: in one pass, because a snapshot may have thousands."""
    by_pattern: dict[ResourcePattern, dict[str, set[Rule]]] = {}
    for entry in entries:
        by_pattern.setdefault(_pattern(entry), {}).setdefault(entry.principal, set()).add(_rule(entry))
    prefixes: dict[ResourceType, list[str]] = {}
    for resource, kind, name in by_pattern:
        if kind == PatternType.PREFIXED:
            prefixes.setdefault(resource, []).append(name)
    return AclIndex(
        patterns=Map(
            {
                pattern: Map({name: tuple(sorted(rules)) for name, rules in of_pattern.items()})
                for pattern, of_pattern in by_pattern.items()
            }
        ),
        prefixes=Map({resource: tuple(sorted(names)) for resource, names in prefixes.items()}),
        count=sum(len(rules) for of_pattern in by_pattern.values() for rules in of_pattern.values()),
    )


_NO_RULES: Rules = Map()


def _pattern(entry: AccessControlEntry) -> ResourcePattern:
    return entry.resource, entry.pattern, entry.name


def _rule(entry: AccessControlEntry) -> Rule:
    return Rule(entry.host, entry.operation, entry.permission)


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    at = bisect_left(names, name)
    return (*names[:at], name, *names[at:])


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    at = bisect_left(names, name)
    return (*names[:at], *names[at + 1 :])
