"""Bytes of the metadata formats, which stay readable forever.

`python tests/golden/test_golden_metadata.py` writes missing files and never changes one. Files that
`contents` does not name are only read: their records have gained fields since, whose defaults today's
writer appends.
"""

import uuid
from pathlib import Path
from typing import get_args

from immutables import Map
from msgspec.structs import replace

from tierlog.base.types import TopicIdPartition
from tierlog.metadata import image as i
from tierlog.metadata import records as r
from tierlog.metadata.acl_index import (
    index_of,
)
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.delete_queue import ALONE, DeletedTopic, DeleteQueue, QueuedDelete
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.quorum.storage import decode_snapshot_file, encode_snapshot_file
from tierlog.metadata.quorum.wal import MAGIC, Reset, encode_frames, read_segment
from tierlog.metadata.raft.messages import Entry, HardState, Snapshot
from tierlog.metadata.scram import ScramMechanism, ScramVerifier

GOLDEN = Path(__file__).parent / "metadata"
TOPIC, SEGMENT, PAGE = (uuid.UUID(int=n) for n in (0x70, 0x5E, 0xBA))

ENTRY = r.RemoteSegment(
    uuid=SEGMENT,
    base_offset=100,
    last_offset=199,
    leader_epochs=((0, 0), (2, 150)),
    log_bytes=4096,
    index_bytes=300,
    records=100,
    first_timestamp=1_700_000_000_000,
    max_timestamp=1_700_000_060_000,
    has_transactions=True,
    has_aborts=False,
    log_crc32c=0xDEADBEEF,
    index_crc32c=0x12345678,
    leader_epoch=2,
)
PAGE_REF = r.PageRef(
    uuid=PAGE, base_offset=0, last_offset=99, entries=3, log_bytes=12, max_timestamp=9, crc32c=7
)
RECORDS: tuple[r.AnyRecord, ...] = (
    r.NoOp(),
    r.BrokerRegistration(
        broker_id=1,
        broker_epoch=5,
        incarnation=uuid.UUID(int=3),
        host="example",
        port=9092,
        admin_url="http://example:9644",
        rack="zone-a",
    ),
    r.BrokerUnregistered(broker_id=2),
    r.BrokerFencing(broker_id=1, broker_epoch=5, fenced=False),
    r.TopicCreated(topic_id=TOPIC, name="flights"),
    r.TopicDeleted(topic_id=TOPIC, at_ms=1_700_000_000_000),
    r.PartitionRecord(
        topic_id=TOPIC,
        partition=0,
        replicas=(1, 2),
        in_sync=(1,),
        leader=1,
        leader_epoch=4,
        partition_epoch=6,
    ),
    r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="flights", key="retention.ms", value="-1"),
    r.ConfigRecord(scope=r.ConfigScope.CLUSTER, name="", key="log.retention.ms", value=None),
    r.ProducerIdsRecord(broker_id=1, next_id=1000),
    r.CopyStarted(
        topic_id=TOPIC,
        partition=0,
        uuid=SEGMENT,
        base_offset=100,
        last_offset=199,
        leader_epoch=2,
        at_ms=1_700_000_000_000,
    ),
    r.CopyFinished(topic_id=TOPIC, partition=0, segment=ENTRY),
    r.CopyAbandoned(topic_id=TOPIC, partition=0, uuid=SEGMENT, at_ms=1),
    r.LogStartMoved(topic_id=TOPIC, partition=0, log_start_offset=50, at_ms=2),
    r.RemoteDeleted(uuids=(SEGMENT, PAGE)),
    r.EntriesSpilled(topic_id=TOPIC, partition=0, page=PAGE_REF),
)
RECORDS_SINCE: tuple[r.AnyRecord, ...] = (
    r.SpillStarted(
        topic_id=TOPIC,
        partition=0,
        uuid=PAGE,
        base_offset=0,
        last_offset=99,
        leader_epoch=2,
        expires_ms=1_700_000_600_000,
    ),
)
RECORDS_OF_QUOTAS: tuple[r.AnyRecord, ...] = (
    r.QuotaRecord(entity=(("client-id", None), ("user", "ada")), key="producer_byte_rate", value=1024.0),
    r.QuotaRecord(entity=(("ip", "127.0.0.1"),), key="connection_creation_rate", value=None),
)
RECORDS_OF_CLUSTERS: tuple[r.AnyRecord, ...] = (
    r.BrokerRegistration(
        broker_id=1,
        broker_epoch=5,
        incarnation=uuid.UUID(int=3),
        host="example",
        port=9092,
        admin_url="http://example:9644",
        rack="zone-a/host-1",
        directories=(uuid.UUID(int=0xD1), uuid.UUID(int=0xD2)),
        min_in_sync=2,
        unclean_election=True,
        formats=(1, 2),
    ),
    r.ControlledShutdownStarted(broker_id=1, broker_epoch=5),
    r.PartitionRecord(
        topic_id=TOPIC,
        partition=0,
        replicas=(3, 1, 2),
        in_sync=(1,),
        leader=-1,
        leader_epoch=4,
        partition_epoch=6,
        eligible=(2,),
        last_known_leader=1,
        adding=(3,),
        removing=(2,),
    ),
    r.FormatVersion(version=2),
)
RECORDS_OF_FAILED_DISKS: tuple[r.AnyRecord, ...] = (
    r.PartitionRecord(
        topic_id=TOPIC,
        partition=0,
        replicas=(3, 1, 2),
        in_sync=(1,),
        leader=-1,
        leader_epoch=4,
        partition_epoch=6,
        last_known_leader=1,
        offline=(1, 3),
        emptied=(2,),
    ),
)
RECORDS_OF_FULL_DISKS: tuple[r.AnyRecord, ...] = (
    r.PartitionRecord(
        topic_id=TOPIC,
        partition=0,
        replicas=(3, 1, 2),
        in_sync=(3, 1),
        leader=3,
        leader_epoch=4,
        partition_epoch=6,
        full=(2,),
    ),
)
IMAGE = i.ClusterImage(
    cluster_id="golden",
    index=42,
    brokers=Map(
        {
            1: i.BrokerImage(
                broker_id=1,
                broker_epoch=5,
                incarnation=uuid.UUID(int=3),
                host="example",
                port=9092,
                admin_url="http://example:9644",
                rack=None,
                fenced=False,
            )
        }
    ),
    topics=Map(
        {
            TOPIC: i.TopicImage(
                topic_id=TOPIC,
                name="flights",
                partitions=(
                    r.PartitionRecord(
                        topic_id=TOPIC,
                        partition=0,
                        replicas=(1,),
                        in_sync=(1,),
                        leader=1,
                        leader_epoch=4,
                        partition_epoch=6,
                    ),
                ),
            )
        }
    ),
    topic_ids=Map({"flights": TOPIC}),
    configs=Map({(r.ConfigScope.TOPIC, "flights"): Map({"retention.ms": "-1", "segment.bytes": "1000"})}),
    next_producer_id=2000,
    remote=Map(
        {
            TopicIdPartition(TOPIC, 0): i.RemotePartition(
                log_start_offset=50,
                pages=(PAGE_REF,),
                entries=(ENTRY,),
                started=(
                    i.StartedCopy(
                        uuid=uuid.UUID(int=9), base_offset=200, last_offset=299, leader_epoch=4, at_ms=8
                    ),
                ),
                copied_end_offset=200,
            )
        }
    ),
    delete_queue=DeleteQueue(
        [
            QueuedDelete(
                uuid=uuid.UUID(int=1),
                is_page=False,
                topic_id=TOPIC,
                partition=3,
                base_offset=0,
                last_offset=9,
                leader_epoch=1,
                queued_ms=7,
            )
        ]
    ),
)
IMAGE_2 = replace(
    IMAGE,
    quotas=Map(
        {
            (("client-id", None), ("user", "ada")): Map({"producer_byte_rate": 1024.0}),
            (("client-id", "app"),): Map({"consumer_byte_rate": 2048.0, "request_percentage": 12.5}),
        }
    ),
)
IMAGE_3 = replace(
    IMAGE_2,
    brokers=IMAGE.brokers.set(
        2,
        replace(
            IMAGE.brokers[1],
            broker_id=2,
            stopping=True,
            directories=(uuid.UUID(int=0xD1),),
            min_in_sync=2,
            unclean_election=True,
            formats=(1, 2),
        ),
    ),
    topics=Map(
        {
            TOPIC: replace(
                IMAGE.topics[TOPIC],
                partitions=(
                    r.PartitionRecord(
                        topic_id=TOPIC,
                        partition=0,
                        replicas=(3, 1, 2),
                        in_sync=(1,),
                        leader=-1,
                        leader_epoch=4,
                        partition_epoch=6,
                        eligible=(2,),
                        last_known_leader=1,
                        adding=(3,),
                        removing=(2,),
                    ),
                ),
            )
        }
    ),
    format_version=2,
)
IMAGE_4 = replace(
    IMAGE_3,
    topics=Map(
        {
            TOPIC: replace(
                IMAGE.topics[TOPIC],
                partitions=(
                    r.PartitionRecord(
                        topic_id=TOPIC,
                        partition=0,
                        replicas=(3, 1, 2),
                        in_sync=(1,),
                        leader=-1,
                        leader_epoch=4,
                        partition_epoch=6,
                        last_known_leader=1,
                        offline=(1, 3),
                        emptied=(2,),
                    ),
                ),
            )
        }
    ),
)
IMAGE_5 = replace(
    IMAGE_3,
    topics=Map(
        {
            TOPIC: replace(
                IMAGE.topics[TOPIC],
                partitions=(
                    r.PartitionRecord(
                        topic_id=TOPIC,
                        partition=0,
                        replicas=(3, 1, 2),
                        in_sync=(3, 1),
                        leader=3,
                        leader_epoch=4,
                        partition_epoch=6,
                        full=(2,),
                    ),
                ),
            )
        }
    ),
)
IMAGE_6 = replace(
    IMAGE,
    configs=IMAGE.configs.set(
        (r.ConfigScope.GROUP, "readers"), Map({"consumer.session.timeout.ms": "50000"})
    ).set((r.ConfigScope.CLIENT_METRICS, "all"), Map({"interval.ms": "1000"})),
)
RECORDS_OF_GROUPS: tuple[r.AnyRecord, ...] = tuple(
    r.ConfigRecord(scope=scope, name=name, key="interval.ms", value="1000")
    for scope, name in ((r.ConfigScope.GROUP, "readers"), (r.ConfigScope.CLIENT_METRICS, "all"))
)
IMAGE_7 = replace(IMAGE_3, deleting=frozenset({uuid.UUID(int=1)}), time_ms=1_700_000_000_000)
RECORDS_OF_DELETIONS: tuple[r.AnyRecord, ...] = (
    r.RemoteDeletesStarted(uuids=(SEGMENT, PAGE), at_ms=1_700_000_000_000),
)
RECORDS_OF_DIVERGED: tuple[r.AnyRecord, ...] = (
    r.RemoteLogDiverged(topic_id=TOPIC, partition=0, from_offset=100, at_ms=1_700_000_000_000),
)
RECORDS_OF_ADOPTED: tuple[r.AnyRecord, ...] = (
    r.ManifestAdopted(
        topic_id=TOPIC,
        partition=0,
        log_start_offset=50,
        pages=(PAGE_REF,),
        entries=(ENTRY,),
        at_ms=1_700_000_000_000,
    ),
)
RECORDS_OF_WHOLE: tuple[r.AnyRecord, ...] = (
    r.TopicDeleted(topic_id=TOPIC, at_ms=1_700_000_000_000, whole=True),
)
RECORDS_OF_DROPPED: tuple[r.AnyRecord, ...] = (
    r.RemoteLogDropped(topic_id=TOPIC, partition=0, log_start_offset=150, at_ms=1_700_000_000_000),
)
IMAGE_8 = replace(
    IMAGE_5, brokers=IMAGE_3.brokers.set(2, replace(IMAGE_3.brokers[2], served_epoch=IMAGE_3.index))
)
IMAGE_9 = replace(IMAGE_8, brokers=IMAGE_8.brokers.set(2, replace(IMAGE_8.brokers[2], keeps_epochs=True)))
IMAGE_10 = replace(
    IMAGE_7,
    delete_queue=IMAGE_7.delete_queue.with_deletes(
        [DeletedTopic(uuid=uuid.UUID(int=0xDE), partitions=3, queued_ms=9)]
    ),
)
RECORDS_OF_EPOCHS: tuple[r.AnyRecord, ...] = (replace(RECORDS[1], keeps_epochs=True),)
ENTRY_2 = replace(
    ENTRY,
    control_records=4,
    min_timestamp=1_700_000_000_001,
    key_id="vault/2026",
    tags=(("schema", "7"),),
)
PAGE_REF_2 = replace(PAGE_REF, uuid=uuid.UUID(int=0xBB), level=1, children=2)
RECORDS_OF_SPLICES: tuple[r.AnyRecord, ...] = (
    r.CopyFinished(topic_id=TOPIC, partition=0, segment=ENTRY_2),
    r.CopyStarted(
        topic_id=TOPIC,
        partition=0,
        uuid=SEGMENT,
        base_offset=100,
        last_offset=199,
        leader_epoch=2,
        at_ms=1_700_000_000_000,
        replaces=True,
    ),
    r.RemoteLogSpliced(
        topic_id=TOPIC,
        partition=0,
        replaced=(PAGE, uuid.UUID(int=0x5F)),
        pages=(PAGE_REF_2,),
        entries=(ENTRY_2,),
        finished=(uuid.UUID(int=0xBB), SEGMENT),
        dropped=(
            r.DroppedObject(uuid=PAGE, is_page=True, base_offset=0, last_offset=99, leader_epoch=ALONE),
            r.DroppedObject(
                uuid=uuid.UUID(int=0x5F), is_page=False, base_offset=100, last_offset=199, leader_epoch=2
            ),
        ),
        at_ms=1_700_000_000_000,
    ),
)
IMAGE_11 = replace(
    IMAGE_10,
    remote=Map(
        {
            TopicIdPartition(TOPIC, 0): i.RemotePartition(
                log_start_offset=50,
                pages=(PAGE_REF_2,),
                entries=(ENTRY_2,),
                started=(
                    i.StartedCopy(
                        uuid=uuid.UUID(int=9),
                        base_offset=100,
                        last_offset=199,
                        leader_epoch=4,
                        at_ms=8,
                        replaces=True,
                    ),
                ),
                copied_end_offset=200,
            )
        }
    ),
)
IMAGE_12 = replace(IMAGE_11, unread_manifests=Map({TopicIdPartition(TOPIC, 0): 40}))
IMAGE_13 = replace(IMAGE_12, feature_levels=Map({"transaction.version": 1}))
IMAGE_14 = replace(IMAGE_2, first_leader_epoch=7)
RECORDS_OF_FEATURES: tuple[r.AnyRecord, ...] = (
    r.FeatureLevel(name="transaction.version", level=1),
    r.FeatureLevel(name="transaction.version", level=None),
)
LOADED = replace(ENTRY_2, uuid=uuid.UUID(int=0x10AD), base_offset=200, last_offset=299, key_id=None)
RECORDS_OF_LOADS: tuple[r.AnyRecord, ...] = (
    r.CopyStarted(
        topic_id=TOPIC,
        partition=0,
        uuid=LOADED.uuid,
        base_offset=200,
        last_offset=299,
        leader_epoch=2,
        at_ms=1_700_000_000_000,
        loads=True,
    ),
    r.SegmentsLoaded(
        topic_id=TOPIC,
        partition=0,
        load_id=uuid.UUID(int=0x1D),
        segments=(LOADED,),
        at_ms=1_700_000_000_000,
    ),
)
LOAD = i.Load(load_id=uuid.UUID(int=0x1D), base_offset=200, end_offset=300, leader_epoch=2)
IMAGE_15 = replace(
    IMAGE_13,
    remote=Map({TopicIdPartition(TOPIC, 0): i.RemotePartition(entries=(LOADED,), loads=(LOAD,))}),
)
ACLS = (
    AccessControlEntry(
        resource=ResourceType.TOPIC,
        pattern=PatternType.PREFIXED,
        name="flights-",
        principal="User:ada",
        host="*",
        operation=AclOperation.READ,
        permission=Permission.ALLOW,
    ),
    AccessControlEntry(
        resource=ResourceType.GROUP,
        pattern=PatternType.LITERAL,
        name="*",
        principal="User:*",
        host="192.0.2.1",
        operation=AclOperation.ALL,
        permission=Permission.DENY,
    ),
)
RECORDS_OF_ACLS: tuple[r.AnyRecord, ...] = (r.AclAdded(entry=ACLS[0]), r.AclRemoved(entry=ACLS[1]))
VERIFIER = ScramVerifier(salt=b"salt", stored_key=b"s" * 32, server_key=b"k" * 32, iterations=4096)
RECORDS_OF_USERS: tuple[r.AnyRecord, ...] = (
    r.ScramCredential(user="ada", mechanism=ScramMechanism.SHA_256, verifier=VERIFIER),
    r.ScramCredential(user="bob", mechanism=ScramMechanism.SHA_512, verifier=None),
)
ENDPOINTS = (
    r.Endpoint(name="INTERNAL", host="10.0.0.1", port=9093, protocol="SSL"),
    r.Endpoint(name="CLIENTS", host="one.example", port=9092, protocol="SASL_SSL"),
)
TOKENS = (
    DelegationToken(
        token_id="AAAAAAAAAAAAAAAAAAAAAA",
        owner="User:ada",
        requester="User:scheduler",
        renewers=("User:bob",),
        issued_ms=1_700_000_000_000,
        expires_ms=1_700_086_400_000,
        max_ms=1_700_604_800_000,
    ),
    DelegationToken(
        token_id="AAAAAAAAAAAAAAAAAAAABA",
        owner="User:bob",
        requester="User:bob",
        renewers=(),
        issued_ms=1,
        expires_ms=2,
        max_ms=3,
    ),
)
RECORDS_OF_TOKENS: tuple[r.AnyRecord, ...] = (
    r.TokenRecord(token=TOKENS[0]),
    r.TokenRemoved(token_id=TOKENS[1].token_id),
)
RECORDS_OF_ENDPOINTS: tuple[r.AnyRecord, ...] = (r.BrokerEndpoints(broker_id=1, endpoints=ENDPOINTS),)
IMAGE_16 = replace(
    IMAGE_15,
    format_version=3,
    brokers=IMAGE_15.brokers.set(1, replace(IMAGE_15.brokers[1], endpoints=ENDPOINTS)),
    acls=index_of(ACLS),
    scram_users=Map(
        {"ada": Map({ScramMechanism.SHA_256: VERIFIER}), "Ada": Map({ScramMechanism.SHA_512: VERIFIER})}
    ),
)
IMAGE_17 = replace(IMAGE_16, tokens=Map({token.token_id: token for token in TOKENS}))
KINDS = (
    "-with-defaults",
    "-with-marks",
    "-with-full",
    "-with-served",
    "-with-epochs",
    "-with-levels",
    "-with-sizes",
    "-with-loads",
)
"""Later files of the same images, by the field that was added."""
WAL = (Entry(1, 1, b"one"), HardState(1, 2, 0), Entry(2, 2, b"two"), Reset(7, 2), HardState(3, -1, 7))
SNAPSHOT = Snapshot(42, 3, b"the image's bytes")


def contents() -> dict[str, bytes]:
    return {
        "records-with-whole-and-loads.msgpack": r.encode_records(RECORDS),
        "records-of-clusters-with-epochs.msgpack": r.encode_records(RECORDS_OF_CLUSTERS),
        "records-of-failed-disks-with-epochs.msgpack": r.encode_records(RECORDS_OF_FAILED_DISKS),
        "records-of-full-disks.msgpack": r.encode_records(RECORDS_OF_FULL_DISKS),
        "records-since-v1.msgpack": r.encode_records(RECORDS_SINCE),
        "records-of-deletions.msgpack": r.encode_records(RECORDS_OF_DELETIONS),
        "records-of-dropped.msgpack": r.encode_records(RECORDS_OF_DROPPED),
        "records-of-diverged.msgpack": r.encode_records(RECORDS_OF_DIVERGED),
        "records-of-whole.msgpack": r.encode_records(RECORDS_OF_WHOLE),
        "records-of-quotas-v1.msgpack": r.encode_records(RECORDS_OF_QUOTAS),
        "image-v1-with-loads.msgpack": encode_image(IMAGE),
        "image-v2-with-loads.msgpack": encode_image(IMAGE_2),
        "image-v3-with-loads.msgpack": encode_image(IMAGE_3),
        "image-v4-with-loads.msgpack": encode_image(IMAGE_4),
        "image-v5-with-loads.msgpack": encode_image(IMAGE_5),
        "image-v6-with-loads.msgpack": encode_image(IMAGE_6),
        "image-v7-with-loads.msgpack": encode_image(IMAGE_7),
        "image-of-served-with-loads.msgpack": encode_image(IMAGE_8),
        "image-of-epochs-with-loads.msgpack": encode_image(IMAGE_9),
        "image-v8-with-loads.msgpack": encode_image(IMAGE_10),
        "image-v9-with-loads.msgpack": encode_image(IMAGE_11),
        "image-v10-with-loads.msgpack": encode_image(IMAGE_12),
        "image-v11-with-loads.msgpack": encode_image(IMAGE_13),
        "image-of-first-epoch-with-loads.msgpack": encode_image(IMAGE_14),
        "records-of-features.msgpack": r.encode_records(RECORDS_OF_FEATURES),
        "records-of-adopted.msgpack": r.encode_records(RECORDS_OF_ADOPTED),
        "records-of-splices-with-loads.msgpack": r.encode_records(RECORDS_OF_SPLICES),
        "records-of-epochs.msgpack": r.encode_records(RECORDS_OF_EPOCHS),
        "records-of-groups.msgpack": r.encode_records(RECORDS_OF_GROUPS),
        "records-of-loads.msgpack": r.encode_records(RECORDS_OF_LOADS),
        "image-of-loads.msgpack": encode_image(IMAGE_15),
        "records-of-acls.msgpack": r.encode_records(RECORDS_OF_ACLS),
        "records-of-users.msgpack": r.encode_records(RECORDS_OF_USERS),
        "records-of-endpoints.msgpack": r.encode_records(RECORDS_OF_ENDPOINTS),
        "records-of-tokens.msgpack": r.encode_records(RECORDS_OF_TOKENS),
        "image-of-tokens.msgpack": encode_image(IMAGE_17),
        "segment-v1.wal": MAGIC + encode_frames(WAL[:2]) + encode_frames(WAL[2:]),
        "file-v1.snapshot": encode_snapshot_file(SNAPSHOT),
    }


def test_written_bytes_equal_the_golden_files() -> None:
    for name, content in contents().items():
        assert content == (GOLDEN / name).read_bytes(), name


def test_every_record_type_is_in_the_golden_file() -> None:
    golden = RECORDS + RECORDS_SINCE + RECORDS_OF_QUOTAS + RECORDS_OF_CLUSTERS + RECORDS_OF_DELETIONS
    golden += RECORDS_OF_DROPPED + RECORDS_OF_DIVERGED + RECORDS_OF_SPLICES + RECORDS_OF_ADOPTED
    golden += RECORDS_OF_FEATURES + RECORDS_OF_LOADS + RECORDS_OF_ACLS + RECORDS_OF_USERS
    golden += RECORDS_OF_ENDPOINTS + RECORDS_OF_TOKENS
    assert {type(record).__struct_config__.tag for record in golden} == {
        record.__struct_config__.tag for record in get_args(r.AnyRecord)
    }


def test_golden_files_are_readable() -> None:
    kinds = ("v1", "with-defaults", "with-marks", "with-full", "with-epochs", "with-whole", "with-levels")
    for kind in (*kinds, "with-whole-and-levels", "with-whole-and-loads"):
        assert r.decode_records((GOLDEN / f"records-{kind}.msgpack").read_bytes()) == RECORDS
    for kind in ("", "-with-marks", "-with-full", "-with-epochs"):
        of_clusters = (GOLDEN / f"records-of-clusters{kind}.msgpack").read_bytes()
        assert r.decode_records(of_clusters) == RECORDS_OF_CLUSTERS
    for kind in ("", "-with-full", "-with-epochs"):
        of_failed_disks = (GOLDEN / f"records-of-failed-disks{kind}.msgpack").read_bytes()
        assert r.decode_records(of_failed_disks) == RECORDS_OF_FAILED_DISKS
    of_full_disks = (GOLDEN / "records-of-full-disks.msgpack").read_bytes()
    assert r.decode_records(of_full_disks) == RECORDS_OF_FULL_DISKS
    since = (GOLDEN / "records-since-v1.msgpack").read_bytes()
    assert r.decode_records(since) == RECORDS_SINCE
    of_quotas = (GOLDEN / "records-of-quotas-v1.msgpack").read_bytes()
    assert r.decode_records(of_quotas) == RECORDS_OF_QUOTAS
    for kind in ("", *KINDS):
        assert decode_image((GOLDEN / f"image-v1{kind}.msgpack").read_bytes()) == IMAGE
        assert decode_image((GOLDEN / f"image-v2{kind}.msgpack").read_bytes()) == IMAGE_2
    for kind in ("", *KINDS[1:]):
        assert decode_image((GOLDEN / f"image-v3{kind}.msgpack").read_bytes()) == IMAGE_3
    for kind in ("", *KINDS[2:]):
        assert decode_image((GOLDEN / f"image-v4{kind}.msgpack").read_bytes()) == IMAGE_4
    for kind in ("", *KINDS[3:]):
        assert decode_image((GOLDEN / f"image-v5{kind}.msgpack").read_bytes()) == IMAGE_5
        assert decode_image((GOLDEN / f"image-v6{kind}.msgpack").read_bytes()) == IMAGE_6
        assert decode_image((GOLDEN / f"image-v7{kind}.msgpack").read_bytes()) == IMAGE_7
    for kind in ("", *KINDS[4:]):
        assert decode_image((GOLDEN / f"image-of-served{kind}.msgpack").read_bytes()) == IMAGE_8
    for kind in ("", *KINDS[5:]):
        assert decode_image((GOLDEN / f"image-of-epochs{kind}.msgpack").read_bytes()) == IMAGE_9
        assert decode_image((GOLDEN / f"image-v8{kind}.msgpack").read_bytes()) == IMAGE_10
    for kind in ("", *KINDS[6:]):
        assert decode_image((GOLDEN / f"image-v9{kind}.msgpack").read_bytes()) == IMAGE_11
        of_splices = (GOLDEN / f"records-of-splices{kind}.msgpack").read_bytes()
        assert r.decode_records(of_splices) == RECORDS_OF_SPLICES
    for kind in ("", *KINDS[7:]):
        assert decode_image((GOLDEN / f"image-v10{kind}.msgpack").read_bytes()) == IMAGE_12
        assert decode_image((GOLDEN / f"image-v11{kind}.msgpack").read_bytes()) == IMAGE_13
        assert decode_image((GOLDEN / f"image-of-first-epoch{kind}.msgpack").read_bytes()) == IMAGE_14
    assert decode_image((GOLDEN / "image-of-loads.msgpack").read_bytes()) == IMAGE_15
    assert decode_image((GOLDEN / "image-of-acls.msgpack").read_bytes()) == IMAGE_16
    assert decode_image((GOLDEN / "image-of-tokens.msgpack").read_bytes()) == IMAGE_17
    of_tokens = (GOLDEN / "records-of-tokens.msgpack").read_bytes()
    assert r.decode_records(of_tokens) == RECORDS_OF_TOKENS
    of_endpoints = (GOLDEN / "records-of-endpoints.msgpack").read_bytes()
    assert r.decode_records(of_endpoints) == RECORDS_OF_ENDPOINTS
    of_users = (GOLDEN / "records-of-users.msgpack").read_bytes()
    assert r.decode_records(of_users) == RECORDS_OF_USERS
    of_acls = (GOLDEN / "records-of-acls.msgpack").read_bytes()
    assert r.decode_records(of_acls) == RECORDS_OF_ACLS
    of_loads = (GOLDEN / "records-of-loads.msgpack").read_bytes()
    assert r.decode_records(of_loads) == RECORDS_OF_LOADS
    of_features = (GOLDEN / "records-of-features.msgpack").read_bytes()
    assert r.decode_records(of_features) == RECORDS_OF_FEATURES
    of_adopted = (GOLDEN / "records-of-adopted.msgpack").read_bytes()
    assert r.decode_records(of_adopted) == RECORDS_OF_ADOPTED
    of_epochs = (GOLDEN / "records-of-epochs.msgpack").read_bytes()
    assert r.decode_records(of_epochs) == RECORDS_OF_EPOCHS
    of_groups = (GOLDEN / "records-of-groups.msgpack").read_bytes()
    assert r.decode_records(of_groups) == RECORDS_OF_GROUPS
    of_deletions = (GOLDEN / "records-of-deletions.msgpack").read_bytes()
    assert r.decode_records(of_deletions) == RECORDS_OF_DELETIONS
    of_dropped = (GOLDEN / "records-of-dropped.msgpack").read_bytes()
    assert r.decode_records(of_dropped) == RECORDS_OF_DROPPED
    of_diverged = (GOLDEN / "records-of-diverged.msgpack").read_bytes()
    assert r.decode_records(of_diverged) == RECORDS_OF_DIVERGED
    of_whole = (GOLDEN / "records-of-whole.msgpack").read_bytes()
    assert r.decode_records(of_whole) == RECORDS_OF_WHOLE
    frames = read_segment((GOLDEN / "segment-v1.wal").read_bytes())
    assert tuple(frame.record for frame in frames) == WAL
    assert decode_snapshot_file((GOLDEN / "file-v1.snapshot").read_bytes()) == SNAPSHOT


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, content in contents().items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(content)
