"""Decisions by ACLs, compared with a plain reading of Kafka's rules, and their bounds."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tierlog.broker.security import authorizer as module
from tierlog.broker.security.authorizer import LENGTHS_MAX, Access, Authorizer, authorizer_of, prefixes_of
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.config.definitions import InvalidSetting
from tierlog.config.node import NodeSettings
from tierlog.metadata.acl_index import (
    index_of,
)
from tierlog.metadata.acls import (
    TEXT_MAX,
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.image import ClusterImage

T, G = ResourceType.TOPIC, ResourceType.GROUP
O, ALLOW, DENY = AclOperation, Permission.ALLOW, Permission.DENY  # noqa: E741
HOST = "192.0.2.1"


def acl(
    name: str = "t",
    operation: AclOperation = O.READ,
    permission: Permission = ALLOW,
    *,
    resource: ResourceType = T,
    prefixed: bool = False,
    principal: str = "User:ada",
    host: str = "*",
) -> AccessControlEntry:
    return AccessControlEntry(
        resource=resource,
        pattern=PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


class Decisions:
    """An authorizer over ACLs that a test sets."""

    def __init__(self, *entries: AccessControlEntry, **options: Any) -> None:
        self.metadata: Any = SimpleNamespace(image=None)
        self.set(*entries)
        self.authorizer = Authorizer(self.metadata, **options)

    def set(self, *entries: AccessControlEntry) -> None:
        self.metadata.image = ClusterImage(cluster_id="c", acls=index_of(entries))

    def __call__(
        self,
        operation: AclOperation,
        name: str = "t",
        *,
        principal: str = "User:ada",
        host: str = HOST,
        resource: ResourceType = T,
    ) -> bool:
        return self.authorizer.allows(principal, host, operation, resource, name)

    def any(self, operation: AclOperation, principal: str = "User:ada") -> bool:
        return self.authorizer.allows_any(principal, HOST, operation, T)


def test_without_an_acl_access_is_denied() -> None:
    may = Decisions(acl())
    assert may(O.READ)
    assert not may(O.WRITE)
    assert not may(O.READ, "u")
    assert not may(O.READ, resource=G)
    assert not may(O.READ, principal="User:bob")


def test_a_denial_wins() -> None:
    may = Decisions(acl(), acl("*", O.ALL, DENY, principal="User:*", host=HOST))
    assert not may(O.READ)
    assert may(O.READ, host="192.0.2.2")


def test_operations_imply_describe_only_in_permissions() -> None:
    for operation in (O.READ, O.WRITE, O.DELETE, O.ALTER, O.DESCRIBE, O.ALL):
        assert Decisions(acl("t", operation))(O.DESCRIBE)
    for operation in (O.CREATE, O.DESCRIBE_CONFIGS, O.ALTER_CONFIGS):
        assert not Decisions(acl("t", operation))(O.DESCRIBE)
    assert Decisions(acl("t", O.ALTER_CONFIGS))(O.DESCRIBE_CONFIGS)
    may = Decisions(acl("t", O.ALL), acl("t", O.READ, DENY))
    assert may(O.DESCRIBE)
    assert not may(O.READ)


def test_wildcards_prefixes_and_hosts_apply() -> None:
    may = Decisions(
        acl("team-", prefixed=True),
        acl("*", O.WRITE, principal="User:*"),
        acl("t", O.DELETE, host="::1"),
        acl("t", O.ALTER, host=HOST),
    )
    assert may(O.READ, "team-a")
    assert may(O.READ, "team-")
    assert not may(O.READ, "team")
    assert may(O.WRITE, "anything", principal="User:someone")
    assert may(O.DELETE, host="::1")
    assert not may(O.DELETE)
    assert may(O.ALTER, host=f"::ffff:{HOST}")


def test_super_users_may_do_everything() -> None:
    may = Decisions(acl("*", O.ALL, DENY, principal="User:*"), super_users=frozenset({"User:root"}))
    assert may(O.DELETE, principal="User:root")
    assert may.any(O.WRITE, "User:root")
    assert not may(O.DELETE, principal="User:toor")


def test_everyone_may_use_a_resource_without_acls_if_that_is_allowed() -> None:
    may = Decisions(acl("t", principal="User:bob"), acl("x-", prefixed=True), allow_if_no_acl=True)
    assert may(O.READ, "u")
    assert not may(O.READ, "t")
    assert not may(O.WRITE, "x-1")
    assert may(O.WRITE, "t", resource=G)


def test_a_change_applies_to_the_next_check() -> None:
    may = Decisions(acl())
    assert may(O.READ)
    assert may.any(O.READ)
    may.set()
    assert not may(O.READ)
    assert not may.any(O.READ)
    may.set(acl("pre", prefixed=True), acl("p", O.WRITE, prefixed=True))
    assert may(O.READ, "prefix")
    may.set(acl("p", prefixed=True))
    assert may(O.READ, "prefix")
    assert not may(O.WRITE, "prefix")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([acl("t", O.WRITE)], True),
        ([acl("t", O.ALL)], True),
        ([acl("t", O.READ)], False),
        ([acl("t", O.WRITE), acl("t", O.WRITE, DENY)], False),
        ([acl("t", O.WRITE), acl("*", O.ALL, DENY, principal="User:*")], False),
        ([acl("ab", O.WRITE), acl("a", O.WRITE, DENY, prefixed=True)], False),
        ([acl("ab", O.WRITE, prefixed=True), acl("ab", O.WRITE, DENY)], True),
        ([acl("ab", O.WRITE, prefixed=True), acl("abc", O.WRITE, DENY, prefixed=True)], True),
        ([acl("ab", O.WRITE, prefixed=True), acl("a", O.WRITE, DENY, prefixed=True)], False),
        ([acl("t", O.WRITE, resource=G)], False),
        ([acl("t", O.WRITE, host="192.0.2.9")], False),
    ],
)
def test_access_to_any_resource_of_a_type(entries: list[AccessControlEntry], expected: bool) -> None:
    assert Decisions(*entries).any(O.WRITE) is expected


def test_decisions_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_MAX", 10)
    may = Decisions(acl("t", prefixed=True))
    assert all(may(O.READ, f"t{n}") for n in range(100))
    assert len(may.authorizer._decisions) <= 10


def test_decisions_about_long_names_are_not_kept() -> None:
    may = Decisions(acl("t", prefixed=True), acl("t", prefixed=True, resource=G))
    for resource, longest in ((T, 249), (G, TEXT_MAX)):
        kept, longer = "t" * longest, "t" * (longest + 1)
        assert may(O.READ, kept, resource=resource)
        assert may(O.READ, longer, resource=resource)
        assert not may(O.WRITE, longer, resource=resource)
    assert {len(name) for *_, name in may.authorizer._decisions} == {249, TEXT_MAX}
    principal = "User:" + "u" * TEXT_MAX
    assert not may(O.READ, principal=principal)
    assert not may.any(O.READ, principal)
    assert not {one for one, *_ in (*may.authorizer._decisions, *may.authorizer._any_decisions)} - {
        "User:ada"
    }


def test_characters_of_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_CHARACTERS_MAX", 1_000)
    may = Decisions(acl("t", prefixed=True))
    for n in range(100):
        assert may(O.READ, f"t{n}".ljust(90))
        assert sum(len(one) + len(name) for one, *_, name in may.authorizer._decisions) <= 1_000
    may.set()
    assert all(not may(O.READ, f"t{n}".ljust(90)) for n in range(10))
    assert len(may.authorizer._decisions) == 10  # a change begins the count again


def test_zones_of_addresses_do_not_count() -> None:
    may = Decisions(acl(), acl("t", O.READ, DENY, host="fe80::1"), acl("t", O.WRITE, host="fe80::2"))
    assert not may(O.READ, host="fe80::1%eth0")
    assert may(O.READ, host="fe80::2%eth0")
    assert may(O.WRITE, host="fe80::2%1")


def test_access_to_any_resource_reads_only_acls_of_the_principal() -> None:
    may = Decisions(*(acl(f"t{n}", O.WRITE, principal=f"User:{n}") for n in range(100)))
    index = may.metadata.image.acls
    may.metadata.image = replace(may.metadata.image, acls=replace(index, patterns=OnlyLookUps()))
    assert may.any(O.WRITE, "User:7")
    assert not may.any(O.WRITE)


class OnlyLookUps:
    """Patterns that may be looked up one by one, and not be read through."""

    def get(self, pattern: Any) -> None:
        return None


def test_authorized_operations_are_bits() -> None:
    may = Decisions(acl("t", O.READ), acl("t", O.ALTER_CONFIGS))
    access = Access(may.authorizer, "User:ada", HOST)
    expected = (O.READ, O.DESCRIBE, O.ALTER_CONFIGS, O.DESCRIBE_CONFIGS)
    assert access.operations(T, "t") == sum(1 << operation for operation in expected)


NAMES = st.text("ab", min_size=1, max_size=5)
ENTRIES = st.builds(
    acl,
    NAMES | st.just("*"),
    st.sampled_from([O.READ, O.WRITE, O.DESCRIBE, O.ALL]),
    st.sampled_from([ALLOW, DENY]),
    prefixed=st.booleans(),
    principal=st.sampled_from(["User:ada", "User:bob", "User:*"]),
    host=st.sampled_from(["*", HOST, "192.0.2.2"]),
)


@given(st.lists(ENTRIES, max_size=12), NAMES, st.sampled_from([O.READ, O.DESCRIBE]), st.booleans())
def test_decisions_equal_a_plain_reading_of_the_rules(
    entries: list[AccessControlEntry], name: str, operation: AclOperation, allow_if_no_acl: bool
) -> None:
    may = Decisions(*entries, allow_if_no_acl=allow_if_no_acl)
    assert may(operation, name) is plainly(entries, name, operation, allow_if_no_acl)


MANY_LENGTHS = [acl("b" * n, O.READ, prefixed=True, principal="User:bob") for n in range(1, LENGTHS_MAX + 2)]


@given(st.lists(ENTRIES, max_size=12), NAMES, st.sampled_from([O.READ, O.DESCRIBE]), st.booleans())
def test_decisions_are_the_same_with_prefixes_of_many_lengths(
    entries: list[AccessControlEntry], name: str, operation: AclOperation, allow_if_no_acl: bool
) -> None:
    all_entries = list(dict.fromkeys([*entries, *MANY_LENGTHS]))
    may = Decisions(*all_entries, allow_if_no_acl=allow_if_no_acl)
    assert may(operation, name) is plainly(all_entries, name, operation, allow_if_no_acl)


def plainly(
    entries: list[AccessControlEntry], name: str, operation: AclOperation, allow_if_no_acl: bool
) -> bool:
    def applies(one: AccessControlEntry) -> bool:
        return name.startswith(one.name) if one.pattern == PatternType.PREFIXED else one.name in (name, "*")

    named = [one for one in entries if applies(one)]
    own = [one for one in named if one.principal in ("User:ada", "User:*") and one.host in ("*", HOST)]
    if any(one.permission == DENY and one.operation in (operation, O.ALL) for one in own):
        return False
    implying = {operation, O.ALL} | ({O.READ, O.WRITE} if operation == O.DESCRIBE else set())
    allowed = any(one.permission == ALLOW and one.operation in implying for one in own)
    return allowed or (not named and allow_if_no_acl)


@given(st.sets(NAMES), NAMES)
def test_prefixes_are_found_from_the_longest_on(prefixes: set[str], name: str) -> None:
    expected = sorted((one for one in prefixes if name.startswith(one)), key=len, reverse=True)
    assert list(prefixes_of(name, tuple(sorted(prefixes)))) == expected


def test_settings_choose_the_authorizer() -> None:
    image: Any = SimpleNamespace(image=ClusterImage(cluster_id="c"))
    assert authorizer_of(NodeSettings(), image) is None
    settings = NodeSettings(
        authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:root; User:CN=broker,O=x;"
    )
    made = authorizer_of(settings.validate(), image)
    assert made is not None
    for principal, expected in (("User:root", True), ("User:CN=broker,O=x", True), ("User:x", False)):
        assert made.allows(principal, HOST, O.READ, T, "t") is expected
    with pytest.raises(InvalidSetting, match=r"super\.users: .root. must be Type:name"):
        NodeSettings(super_users="root").validate()
