"""Authorizer: decides by ACLs, as Kafka's StandardAuthorizer does (KIP-801).

A denial wins over every permission. Without an ACL that applies, access is denied, unless no ACL at all names
the resource and `allow.everyone.if.no.acl.found` is on. Super users may do everything. A permission for READ,
WRITE, DELETE or ALTER implies DESCRIBE, and one for ALTER_CONFIGS implies DESCRIBE_CONFIGS. Denials imply
nothing.

ACLs come from the current image, so a change applies to the next check. Decisions are kept until the ACLs
change: a client repeats the same few. The memory that they take is bounded. `Starts` finds the prefixes that
apply to a name. It is built again when the set of prefixes has changed, 4 ms for 50,000 of them.
Called by the handlers (`handlers.access`).
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from tierlog.base.safeguards import safeguard
from tierlog.config.authorization import AuthorizerSettings
from tierlog.metadata.acl_index import (
    AclIndex,
    Rules,
)
from tierlog.metadata.acls import (
    OPERATIONS_OF,
    TEXT_MAX,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    canonical_host,
)
from tierlog.metadata.image import ClusterImage

DECISIONS_MAX = 50_000
"""Decisions that are kept, about 10 MB with usual names. Beyond it all are forgotten."""

ANY_DECISIONS_MAX = 5_000
"""Decisions about any resource of a type that are kept: a client needs one."""

KEPT_NAME_MAX = {ResourceType.TOPIC: 249}
"""Length in characters of the longest names whose decisions are kept; TEXT_MAX for other types. Clients
choose the names. Access is checked before they are validated, when they may have 32 KiB."""

KEPT_CHARACTERS_MAX = 8 << 20
"""Characters of the names and principals of all decisions that are kept: 8 MiB, 32 MiB outside the Basic
Multilingual Plane. Beyond it all are forgotten."""

DENIED_MAX = 100
"""Denials of one request that the audit log can have."""

IMPLYING = {
    AclOperation.DESCRIBE: frozenset(
        {
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.ALL,
        }
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.ALL}
    ),
}
"""Operations whose permission is also one for the key."""


class Metadata(Protocol):
    """Holds the current image."""

    @property
    def image(self) -> ClusterImage: ...


LENGTHS_MAX = 16
"""Up to so many different lengths of prefixes, look-ups of each length cost less than binary searches."""

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALL, DENY = AclOperation.ALL, Permission.DENY

_Decision = tuple[str, str, AclOperation, ResourceType, str]


class Authorizer:
    """Decides by the ACLs of the current image."""

    def __init__(
        self, metadata: Metadata, super_users: frozenset[str] = frozenset(), allow_if_no_acl: bool = False
    ) -> None:
        self._metadata = metadata
        self._super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._acls = AclIndex()
        self._decisions: dict[_Decision, bool] = {}
        self._characters = 0  # names and principals in _decisions
        self._any_decisions: dict[tuple[str, str, AclOperation, ResourceType], bool] = {}
        self._starts: dict[ResourceType, Starts] = {}

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows(
        self,
        principal: str,
        host: str,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
        keep: bool = True,
    ) -> bool:
        """Whether the principal, connected from this address, may do this. `keep`: keep the decision, because
        it may be needed again soon."""
        if self._metadata.image.acls is not self._acls:
            self._forget()
        key = principal, host, operation, resource, name
        decision = self._decisions.get(key)
        if decision is None:
            decision = principal in self._super_users or self._decide(*key)
            if keep:
                self._keep(key, decision)
        return decision

    def _keep(self, key: _Decision, decision: bool) -> None:
        principal, _, _, resource, name = key
        if len(name) > KEPT_NAME_MAX.get(resource, TEXT_MAX) or len(principal) > TEXT_MAX:
            return
        self._characters += len(name) + len(principal)
        if len(self._decisions) >= DECISIONS_MAX or self._characters > KEPT_CHARACTERS_MAX:
            self._decisions.clear()
            self._characters = len(name) + len(principal)
        self._decisions[key] = decision

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the principal may do this to any resource of the type, existing or not (Kafka's
        `authorizeByResourceType`). Implied operations do not count."""
        if self._metadata.image.acls is not self._acls:
            self._forget()
        key = principal, host, operation, resource
        decision = self._any_decisions.get(key)
        if decision is None:
            decision = self._decide_any(*key)
            if len(self._any_decisions) >= ANY_DECISIONS_MAX:
                self._any_decisions.clear()
            if len(principal) <= TEXT_MAX:
                self._any_decisions[key] = decision
        return decision

    def _forget(self) -> None:
        before, self._acls = self._acls, self._metadata.image.acls
        for resource in list(self._starts):
            if before.prefixes.get(resource) is not self._acls.prefixes.get(resource):
                del self._starts[resource]
        self._forget_decisions()

    @safeguard("decisions about access end with the ACLs that they came from")
    def _forget_decisions(self) -> None:
        self._decisions.clear()
        self._characters = 0
        self._any_decisions.clear()

    def _decide(
        self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str
    ) -> bool:
        rules = self._rules_for(resource, name)
        address, is_allowed = _address(host), False
        allowing = IMPLYING.get(operation) or (operation, ALL)
        for of_pattern in rules:
            for holder in (principal, WILDCARD_PRINCIPAL):
                of_holder = of_pattern.get(holder)
                if of_holder is None:
                    continue
                for rule_host, rule_operation, permission in of_holder:
                    if rule_host != WILDCARD and rule_host != address:
                        continue
                    if permission != DENY:
                        is_allowed = is_allowed or rule_operation in allowing
                    elif rule_operation in (operation, ALL):
                        return False
        return is_allowed or (not rules and self._allow_if_no_acl)

    def _rules_for(self, resource: ResourceType, name: str) -> list[Rules]:
        """The rules of each pattern that applies to the resource."""
        patterns = self._acls.patterns
        named = patterns.get((resource, LITERAL, name))
        found = [] if named is None else [named]
        if name != WILDCARD and (for_all := patterns.get((resource, LITERAL, WILDCARD))) is not None:
            found.append(for_all)
        if (prefixes := self._acls.prefixes.get(resource)) is None:
            return found
        if (starts := self._starts.get(resource)) is None:
            starts = self._starts[resource] = Starts(prefixes)
        found += [
            patterns[resource, PREFIXED, start]
            for length in starts.lengths
            if (start := name[:length]) in starts.names and length <= len(name)
        ]
        if not starts.lengths and (at := bisect_right(prefixes, name)):
            parents = starts.parents
            prefix: str | None = prefixes[at - 1]
            while prefix is not None:
                if name.startswith(prefix):
                    found.append(patterns[resource, PREFIXED, prefix])
                if prefix not in parents:
                    parents[prefix] = next(prefixes_of(prefix[:-1], prefixes), None)
                prefix = parents[prefix]
        return found

    def _decide_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        if self.allows(principal, host, operation, resource, "hardcode"):  # the name that Kafka tries
            return True
        wanted, address = (operation, AclOperation.ALL), _address(host)
        allowed: list[tuple[PatternType, str]] = []
        denied_names, denied_prefixes = set[str](), set[str]()
        for holder in (principal, WILDCARD_PRINCIPAL):
            of_holder = self._acls.holders.get((resource, holder))
            for (kind, name), rules in () if of_holder is None else of_holder.items():
                permissions = {
                    rule.permission
                    for rule in rules
                    if rule.operation in wanted and rule.host in (WILDCARD, address)
                }
                if DENY in permissions:
                    (denied_prefixes if kind == PREFIXED else denied_names).add(name)
                if Permission.ALLOW in permissions:
                    allowed.append((kind, name))
        if WILDCARD in denied_names:
            return False
        in_order = tuple(sorted(denied_prefixes))
        return any(
            next(prefixes_of(name, in_order), None) is None and (kind == PREFIXED or name not in denied_names)
            for kind, name in allowed
        )


def authorizer_of(settings: AuthorizerSettings, metadata: Metadata) -> Authorizer | None:
    """The authorizer of a node, if it has one."""
    if not settings.authorizer_class_name:
        return None
    return Authorizer(metadata, settings.super_user_names, settings.allow_everyone_if_no_acl_found)


class Access:
    """Permissions of one client. Made for each request, because a client may authenticate again as another
    principal. `denied`: the first DENIED_MAX checks that failed, in order, for the audit log. `is_refused`:
    the whole request was refused."""

    __slots__ = ("_authorizer", "_host", "_principal", "denied", "is_refused")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self._authorizer = authorizer
        self._principal = principal
        self._host = host
        self.denied: dict[tuple[AclOperation, ResourceType, str], None] | None = None
        self.is_refused = False

    def allows(self, operation: AclOperation, resource: ResourceType, name: str, keep: bool = True) -> bool:
        """Whether the client may do this. Decisions about long lists are not to be kept: they would push out
        those of all other clients."""
        if self._authorizer.allows(self._principal, self._host, operation, resource, name, keep):
            return True
        if self.denied is None:
            self.denied = {}
        if len(self.denied) < DENIED_MAX:
            self.denied[operation, resource, name] = None
        return False

    def allows_instead(
        self, operation: AclOperation, resource: ResourceType, name: str, keep: bool = True
    ) -> bool:
        """Whether a permission exists that would be enough in place of another one, which was denied."""
        return self._authorizer.allows(self._principal, self._host, operation, resource, name, keep)

    def allows_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        return self._authorizer.allows_any(self._principal, self._host, operation, resource)

    def operations(self, resource: ResourceType, name: str) -> int:
        """Bits of the operations that the client may do (KIP-430)."""
        allowed = (
            each for each in OPERATIONS_OF[resource] if self.allows_instead(each, resource, name, keep=False)
        )
        return sum(1 << operation for operation in allowed)


def authorized_operations(access: Access | None, resource: ResourceType, name: str) -> int:
    """Bits of the operations that a client may do (KIP-430): all of them without an authorizer."""
    if access is not None:
        return access.operations(resource, name)
    return sum(1 << operation for operation in OPERATIONS_OF[resource])


class Starts:
    """How the prefixes of a name are found: with few lengths of prefixes, which is usual, by a look-up of its
    start of each length. Otherwise by binary searches, whose results are kept."""

    __slots__ = ("lengths", "names", "parents")

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        lengths = set(map(len, prefixes))
        is_short = len(lengths) <= LENGTHS_MAX
        self.lengths = tuple(lengths) if is_short else ()
        self.names = frozenset(prefixes) if is_short else frozenset[str]()
        self.parents: dict[str, str | None] = {}
        """By prefix the longest other one that it begins with."""


def prefixes_of(name: str, prefixes: tuple[str, ...]) -> Iterator[str]:
    """The members of a sorted tuple that are a prefix of the name, the longest first.

    Each step finds the greatest member that is not above `key`. If that is no prefix of the name, the
    prefixes that are left are no longer than the start that it shares with `key`. The search continues with
    this start.
    """
    key = name
    while at := bisect_right(prefixes, key):
        found = prefixes[at - 1]
        if name.startswith(found):
            yield found
            key = found[:-1]
        else:
            key = key[: _common(key, found)]


def _common(one: str, other: str) -> int:
    """Length of the common prefix of two texts of which neither is a prefix of the other."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _address(host: str) -> str:
    """A peer's address as ACLs have it. An IPv6 address may come with a zone."""
    return (canonical_host(host) or host) if ":" in host else host
