"""The index of ACLs, whatever the order in which they were added and removed."""

import random
from itertools import product
from typing import Any

import msgspec
import pytest

from tierlog.metadata.acl_index import (
    AclIndex,
    cost_of,
    in_order,
    index_of,
    patterns_to_read,
    selected_entries,
)
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import AclAdded, AclRemoved

ENTRIES = [
    AccessControlEntry(
        resource=resource,
        pattern=pattern,
        name=name,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )
    for resource, pattern, name, principal, host, operation, permission in product(
        (ResourceType.TOPIC, ResourceType.GROUP),
        (PatternType.LITERAL, PatternType.PREFIXED),
        ("a", "ab", "b"),
        ("User:ada", "User:*"),
        ("*", "192.0.2.1"),
        (AclOperation.READ, AclOperation.WRITE),
        (Permission.DENY, Permission.ALLOW),
    )
]


def test_index_depends_only_on_its_entries() -> None:
    rng = random.Random(1)
    index, kept = AclIndex(), set[AccessControlEntry]()
    for _ in range(1_000):
        some = rng.choices(ENTRIES, k=rng.choice((1, 1, 5)))
        if rng.random() < 0.5:
            index = index.with_entries(some)
            kept.update(some)
        else:
            index = index.without_entries(some)
            kept.difference_update(some)
        assert len(index) == len(kept)
    assert set(index) == kept
    assert index == index_of(kept)
    assert all((entry in index) == (entry in kept) for entry in ENTRIES)
    assert rules_of_holders(index) == kept
    for entry in kept:
        index = index.without_entries([entry])
    assert index == AclIndex()


def rules_of_holders(index: AclIndex) -> set[AccessControlEntry]:
    return {
        AccessControlEntry(
            resource=resource,
            pattern=kind,
            name=name,
            principal=principal,
            host=rule.host,
            operation=rule.operation,
            permission=rule.permission,
        )
        for (resource, principal), of_holder in index.holders.items()
        for (kind, name), rules in of_holder.items()
        for rule in rules
    }


def test_run_of_records_changes_the_index_once(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[int] = []
    for name in ("with_entries", "without_entries"):
        original = getattr(AclIndex, name)

        def counted(self: AclIndex, entries: Any, original: Any = original) -> AclIndex:
            changes.append(len(entries))
            result: AclIndex = original(self, entries)
            return result

        monkeypatch.setattr(AclIndex, name, counted)
    added, removed = [AclAdded(entry=one) for one in ENTRIES], [AclRemoved(entry=one) for one in ENTRIES[:9]]
    image = evolve_all(ClusterImage(cluster_id="c"), [*added, *removed, *added])
    assert changes == [len(ENTRIES), 9, len(ENTRIES)]
    assert set(image.acls) == set(ENTRIES)


@pytest.mark.parametrize(
    ("wanted", "reads", "cost"),
    [
        (AclFilter(), 12, len(ENTRIES)),
        (AclFilter(host="*"), 12, len(ENTRIES)),
        (AclFilter(principal="User:*"), 12, 12),
        (AclFilter(principal="User:ada", resource=ResourceType.GROUP), 6, 6),
        (AclFilter(principal="User:bob"), 0, 0),
        (AclFilter(resource=ResourceType.TOPIC, pattern=PatternType.PREFIXED, name="a"), 1, 2),
        (AclFilter(resource=ResourceType.TOPIC, pattern=PatternType.PREFIXED, name="none"), 0, 1),
    ],
)
def test_filter_reads_few_patterns_if_it_names_one_or_a_principal(
    wanted: AclFilter, reads: int, cost: int
) -> None:
    index = index_of(ENTRIES)
    patterns = in_order(patterns_to_read(index, wanted))
    assert (cost_of(index, wanted), len(patterns)) == (cost, reads)
    assert patterns == sorted(patterns)
    selected = {entry for pattern in patterns for entry in selected_entries(index, pattern, wanted)}
    assert selected == {
        entry
        for entry in ENTRIES
        if wanted.selects_pattern(entry.resource, entry.pattern, entry.name)
        and wanted.principal in (None, entry.principal)
        and wanted.host in (None, entry.host)
    }


def test_records_and_snapshots_keep_acls() -> None:
    image = evolve_all(ClusterImage(cluster_id="c"), [AclAdded(entry=entry) for entry in ENTRIES])
    image = evolve_all(image, [AclRemoved(entry=ENTRIES[0]), AclAdded(entry=ENTRIES[1])])
    assert set(image.acls) == set(ENTRIES[1:])
    data = encode_image(image)
    assert msgspec.msgpack.decode(data)[0] == 12  # the version of the snapshot
    assert decode_image(data) == image
    assert encode_image(decode_image(data)) == data


def test_snapshot_without_acls_is_readable_by_an_older_node() -> None:
    image = evolve_all(
        ClusterImage(cluster_id="c"), [AclAdded(entry=ENTRIES[0]), AclRemoved(entry=ENTRIES[0])]
    )
    assert encode_image(image) == encode_image(ClusterImage(cluster_id="c"))
