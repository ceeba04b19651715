"""Index of all access control lists: groups them as the authorizer looks them up.

That is by resource pattern, then by principal, and the other way round. Immutable, like the whole image.
Called by evolve, the controller and the broker's authorizer.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from immutables import Map, MapMutation

from tierlog.metadata.acls import (
    AccessControlEntry,
    AclFilter,
    PatternType,
    ResourcePattern,
    ResourceType,
    Rule,
)

K = TypeVar("K")
V = TypeVar("V")

Rules = Map[str, tuple[Rule, ...]]
"""Rules of a resource pattern by principal, each tuple in order."""

Holder = tuple[ResourceType, str]
"""A principal, and a type of resources for which it has ACLs."""

KindAndName = tuple[PatternType, str]
"""A resource pattern without its type."""


class AclIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All ACLs. An index with the same entries is equal, whatever their order was."""

    patterns: Map[ResourcePattern, Rules] = Map()
    holders: Map[Holder, Map[KindAndName, tuple[Rule, ...]]] = Map()  # the same rules by principal
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

    def with_entries(self, entries: Iterable[AccessControlEntry]) -> "AclIndex":
        """The index with these entries too. Takes one pass over `prefixes`, however many entries are new."""
        return self._changed({entry: None for entry in entries if entry not in self}, {})

    def without_entries(self, entries: Iterable[AccessControlEntry]) -> "AclIndex":
        """The index without these entries. Takes one pass over `prefixes`, however many entries it loses."""
        return self._changed({}, {entry: None for entry in entries if entry in self})

    def _changed(
        self, added: dict[AccessControlEntry, None], removed: dict[AccessControlEntry, None]
    ) -> "AclIndex":
        if not added and not removed:
            return self
        changes: dict[ResourcePattern, dict[str, tuple[list[Rule], list[Rule]]]] = {}
        for at, some in enumerate((added, removed)):
            for entry in some:
                of_pattern = changes.setdefault(_pattern(entry), {})
                of_pattern.setdefault(entry.principal, ([], []))[at].append(_rule(entry))
        patterns, by_holder = self.patterns.mutate(), dict[Holder, dict[KindAndName, tuple[Rule, ...]]]()
        new_names, old_names = dict[ResourceType, set[str]](), dict[ResourceType, set[str]]()
        for pattern, of_principals in changes.items():
            resource, kind, name = pattern
            before = self.patterns.get(pattern, _NO_RULES)
            rules = before.mutate()
            for principal, (more, fewer) in of_principals.items():
                kept = [rule for rule in before.get(principal, ()) if rule not in fewer]
                left = tuple(sorted((*kept, *more)))
                _set(rules, principal, left)
                by_holder.setdefault((resource, principal), {})[kind, name] = left
            after = rules.finish()
            _set(patterns, pattern, after)
            if kind == PatternType.PREFIXED and bool(before) != bool(after):
                (new_names if after else old_names).setdefault(resource, set()).add(name)
        return AclIndex(
            patterns=patterns.finish(),
            holders=_with_holders(self.holders, by_holder),
            prefixes=_with_names(self.prefixes, new_names, old_names),
            count=self.count + len(added) - len(removed),
        )


def cost_of(index: AclIndex, wanted: AclFilter) -> int:
    """About how many resource patterns and principals are read for the filter."""
    if _names_one(wanted):
        rules = index.patterns.get((wanted.resource, wanted.pattern, wanted.name or ""), _NO_RULES)
        return max(len(rules), 1) if wanted.principal is None else 1
    if wanted.principal is not None:
        return sum(len(of_holder) for _, of_holder in _holders_of(index, wanted, wanted.principal))
    return len(index)


def patterns_to_read(index: AclIndex, wanted: AclFilter) -> Iterator[ResourcePattern]:
    """The resource patterns that may have an entry that the filter selects, in no order: all, if it names
    neither one of them nor a principal."""
    if _names_one(wanted):
        pattern = wanted.resource, wanted.pattern, wanted.name or ""
        if pattern in index.patterns:
            yield pattern
    elif wanted.principal is not None:
        for resource, of_holder in _holders_of(index, wanted, wanted.principal):
            for kind, name in of_holder:
                yield resource, kind, name
    else:
        yield from index.patterns


def in_order(patterns: Iterable[ResourcePattern]) -> list[ResourcePattern]:
    """Sorted resource patterns. Names alone are compared, which takes a fifth of the time."""
    names: dict[tuple[ResourceType, PatternType], list[str]] = {}
    for resource, kind, name in patterns:
        names.setdefault((resource, kind), []).append(name)
    return [(*key, name) for key in sorted(names) for name in sorted(names[key])]


def selected_entries(
    index: AclIndex, pattern: ResourcePattern, wanted: AclFilter
) -> Iterator[AccessControlEntry]:
    """The entries of a resource pattern that the filter selects, in order."""
    if not wanted.selects_pattern(*pattern):
        return
    rules = index.patterns[pattern]
    principals = sorted(rules) if wanted.principal is None else [wanted.principal]
    for principal in principals:
        for rule in rules.get(principal, ()):
            if wanted.selects_rule(rule):
                yield _entry(pattern, principal, rule)


def selecting_patterns(
    index: AclIndex, patterns: Iterable[ResourcePattern], wanted: AclFilter
) -> Iterator[ResourcePattern | None]:
    """The patterns with an entry that the filter selects, and None for each principal without one before it:
    a caller may pause at every step."""
    for pattern in patterns:
        if not wanted.selects_pattern(*pattern):
            yield None
            continue
        holders = index.patterns[pattern]
        read = holders.values() if wanted.principal is None else [holders.get(wanted.principal, ())]
        for rules in read:
            if any(map(wanted.selects_rule, rules)):
                yield pattern
                break
            yield None


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
    """The index of these entries."""
    return AclIndex().with_entries(entries)


_NO_RULES: Rules = Map()


def _pattern(entry: AccessControlEntry) -> ResourcePattern:
    return entry.resource, entry.pattern, entry.name


def _rule(entry: AccessControlEntry) -> Rule:
    return Rule(entry.host, entry.operation, entry.permission)


def _names_one(wanted: AclFilter) -> bool:
    is_kind = wanted.pattern in (PatternType.LITERAL, PatternType.PREFIXED)
    return is_kind and wanted.name is not None and wanted.resource != ResourceType.ANY


def _holders_of(
    index: AclIndex, wanted: AclFilter, principal: str
) -> Iterator[tuple[ResourceType, Map[KindAndName, tuple[Rule, ...]]]]:
    """The patterns for which the principal has ACLs, by type of resource."""
    for resource in ResourceType if wanted.resource == ResourceType.ANY else (wanted.resource,):
        if (of_holder := index.holders.get((resource, principal))) is not None:
            yield resource, of_holder


def _set(changing: "MapMutation[K, V]", key: K, value: V) -> None:
    """Set the value of a key, or delete the key if the value is empty."""
    if value:
        changing[key] = value
    else:
        del changing[key]


def _with_holders(
    holders: Map[Holder, Map[KindAndName, tuple[Rule, ...]]],
    changed: dict[Holder, dict[KindAndName, tuple[Rule, ...]]],
) -> Map[Holder, Map[KindAndName, tuple[Rule, ...]]]:
    """The holders with the rules that these have now for some patterns."""
    changing = holders.mutate()
    for holder, of_patterns in changed.items():
        rules = holders.get(holder, Map[KindAndName, tuple[Rule, ...]]()).mutate()
        for pattern, of_pattern in of_patterns.items():
            _set(rules, pattern, of_pattern)
        _set(changing, holder, rules.finish())
    return changing.finish()


def _with_names(
    prefixes: Map[ResourceType, tuple[str, ...]],
    added: dict[ResourceType, set[str]],
    removed: dict[ResourceType, set[str]],
) -> Map[ResourceType, tuple[str, ...]]:
    changing = prefixes.mutate()
    for resource in added.keys() | removed.keys():
        gone = removed.get(resource, set())
        kept = [name for name in prefixes.get(resource, ()) if name not in gone]
        names = tuple(sorted(kept + sorted(added.get(resource, ()))))  # the sort merges two sorted runs
        _set(changing, resource, names)
    return changing.finish()
