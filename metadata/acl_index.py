"""Index of all access control lists: groups them as the authorizer looks them up.

That is by resource pattern, then by principal. Immutable, like the whole image. Called by evolve, the
controller and the broker's authorizer.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import msgspec
from immutables import Map

from tierlog.metadata.acls import (
    AccessControlEntry,
    AclFilter,
    PatternType,
    ResourcePattern,
    ResourceType,
    Rule,
)

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
