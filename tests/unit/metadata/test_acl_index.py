"""The index of ACLs, whatever the order in which they were added and removed."""

import random
from itertools import product

import msgspec

from tierlog.metadata.acl_index import (
    AclIndex,
    index_of,
)
from tierlog.metadata.acls import (
    AccessControlEntry,
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
        entry = rng.choice(ENTRIES)
        if rng.random() < 0.5:
            index = index.with_entry(entry)
            kept.add(entry)
        else:
            index = index.without_entry(entry)
            kept.discard(entry)
        assert len(index) == len(kept)
    assert set(index) == kept
    assert index == index_of(kept)
    assert all((entry in index) == (entry in kept) for entry in ENTRIES)
    for entry in kept:
        index = index.without_entry(entry)
    assert index == AclIndex()


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
