"""CreateAcls and DeleteAcls, decided by the controller."""

from typing import Any

import pytest

from tierlog.metadata.acl_index import (
    index_of,
)
from tierlog.metadata.acls import (
    TEXT_MAX,
    AccessControlEntry,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.controller import acls
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode as E

World = Any
BASE = AccessControlEntry(
    resource=ResourceType.TOPIC,
    pattern=PatternType.LITERAL,
    name="t",
    principal="User:ada",
    host="*",
    operation=AclOperation.READ,
    permission=Permission.ALLOW,
)


def entry(**changes: Any) -> AccessControlEntry:
    fields = {name: getattr(BASE, name) for name in BASE.__struct_fields__}
    return AccessControlEntry(**(fields | changes))


@pytest.fixture
def secured(world: World) -> World:
    world.register(1, formats=(1, 3))
    return world


def create(world: World, *entries: AccessControlEntry) -> list[E]:
    return [outcome.error for outcome in world.do(c.CreateAcls(entries=entries)).entries]


def delete(world: World, *filters: AclFilter) -> list[c.FilterOutcome]:
    return list(world.do(c.DeleteAcls(filters=filters)).filters)


def test_acls_need_format_3(world: World) -> None:
    world.register(1, formats=(1, 2))
    for command in (c.CreateAcls(entries=(BASE,)), c.DeleteAcls(filters=(AclFilter(),))):
        refused = world.do(command)
        assert refused.error == E.UNSUPPORTED_VERSION
        assert "raise tierlog.format to 3 first" in refused.message
    assert not world.image.acls


def test_acl_is_added_once(secured: World) -> None:
    assert create(secured, BASE, BASE) == [E.NONE, E.NONE]
    index = secured.image.acls
    assert create(secured, BASE) == [E.NONE]
    assert set(index) == {BASE}
    assert secured.image.acls is index


def test_hosts_are_kept_in_canonical_form(secured: World) -> None:
    hosts = ("0:0:0:0:0:0:0:1", "::1", "::ffff:192.0.2.1", "192.0.2.1", "fe80::1%eth0", "fe80::1")
    assert create(secured, *(entry(host=host) for host in hosts)) == [E.NONE] * len(hosts)
    assert {one.host for one in secured.image.acls} == {"::1", "192.0.2.1", "fe80::1"}
    [outcome] = delete(secured, AclFilter(host="0:0:0:0:0:0:0:1"))
    assert [one.host for one in outcome.deleted] == ["::1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"resource": ResourceType.UNKNOWN}, "Invalid resourceType UNKNOWN"),
        ({"pattern": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"pattern": PatternType.ANY}, "Invalid patternType ANY"),
        ({"operation": AclOperation.ANY}, "Invalid operation ANY"),
        ({"permission": Permission.ANY}, "Invalid permissionType ANY"),
        ({"name": ""}, "Resource name should not be empty"),
        ({"resource": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "ada"}, "Could not parse principal from `ada`"),
        ({"principal": "Group:users"}, "the principal `Group:users` is not of type User"),
        ({"host": "example.org"}, "example.org is not an IP address"),
        ({"host": ""}, " is not an IP address"),
    ],
)
def test_invalid_acls_are_refused(secured: World, changes: dict[str, Any], message: str) -> None:
    outcomes = secured.do(c.CreateAcls(entries=(entry(**changes), BASE))).entries
    assert [outcome.error for outcome in outcomes] == [E.INVALID_REQUEST, E.NONE]
    assert message in outcomes[0].message
    assert set(secured.image.acls) == {BASE}


def test_texts_are_bounded(secured: World) -> None:
    longest = "x" * TEXT_MAX
    assert create(secured, entry(name=longest), entry(name=longest + "x")) == [E.NONE, E.POLICY_VIOLATION]
    assert create(secured, entry(principal="User:" + longest)) == [E.POLICY_VIOLATION]


def test_number_of_acls_is_bounded() -> None:
    full = index_of(entry(name=str(n)) for n in range(acls.ACLS_MAX))
    image = ClusterImage(cluster_id="c", format_version=3, acls=full)
    decision = acls.create(image, c.CreateAcls(entries=(BASE, entry(name="7"))))
    assert [outcome.error for outcome in decision.reply.entries] == [E.POLICY_VIOLATION, E.NONE]
    assert decision.records == ()


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"name": "ab"}, {"literal ab"}),
        ({"name": "ab", "pattern": PatternType.MATCH}, {"literal ab", "literal *", "prefixed a"}),
        ({"name": "a"}, {"prefixed a"}),
        ({"name": "a", "pattern": PatternType.LITERAL}, set()),
        ({"pattern": PatternType.PREFIXED}, {"prefixed a", "prefixed b"}),
        ({"name": "*", "pattern": PatternType.LITERAL}, {"literal *"}),
        ({"resource": ResourceType.GROUP}, set()),
        ({"principal": "User:bob"}, set()),
        ({"operation": AclOperation.WRITE}, set()),
        (
            {"permission": Permission.ALLOW, "host": "*"},
            {"literal ab", "literal *", "prefixed a", "prefixed b"},
        ),
    ],
)
def test_filters_select_as_in_kafka(secured: World, wanted: dict[str, Any], names: set[str]) -> None:
    prefixed = PatternType.PREFIXED
    everything = (
        entry(name="ab"),
        entry(name="*"),
        entry(name="a", pattern=prefixed),
        entry(name="b", pattern=prefixed),
    )
    create(secured, *everything)
    [outcome] = delete(secured, AclFilter(**wanted))
    assert {f"{one.pattern.name.lower()} {one.name}" for one in outcome.deleted} == names
    assert set(secured.image.acls) == set(everything) - set(outcome.deleted)


def test_unknown_filters_are_refused(secured: World) -> None:
    create(secured, BASE)
    outcomes = delete(
        secured,
        AclFilter(pattern=PatternType.UNKNOWN),
        AclFilter(resource=ResourceType.UNKNOWN),
        AclFilter(operation=AclOperation.UNKNOWN),
        AclFilter(permission=Permission.UNKNOWN),
    )
    assert {outcome.error for outcome in outcomes} == {E.INVALID_REQUEST}
    assert set(secured.image.acls) == {BASE}


def test_an_acl_that_two_filters_select_is_in_both_outcomes(secured: World) -> None:
    create(secured, BASE)
    outcomes = delete(secured, AclFilter(), AclFilter(name="t"))
    assert [outcome.deleted for outcome in outcomes] == [(BASE,), (BASE,)]
    assert delete(secured, AclFilter())[0] == c.FilterOutcome()


def test_a_command_deletes_a_bounded_number() -> None:
    index = index_of(entry(name=str(n)) for n in range(acls.DELETED_PER_COMMAND + 1))
    image = ClusterImage(cluster_id="c", format_version=3, acls=index)
    decision = acls.delete(image, c.DeleteAcls(filters=(AclFilter(), AclFilter(name="none"))))
    first, second = decision.reply.filters
    assert (len(first.deleted), first.has_more, second.has_more) == (acls.DELETED_PER_COMMAND, True, False)
    assert len(decision.records) == acls.DELETED_PER_COMMAND
