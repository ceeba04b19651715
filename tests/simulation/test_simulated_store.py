"""The simulator's object store and its witness: requests outlive senders and may be executed in part."""

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from remote_segments import remote_segment
from simulator.loop import Process, SimLoop
from simulator.object_store import Bucket, RequestFaults, SimStore, run_inline
from simulator.retention import RetentionWitness
from simulator.tier_witness import TierWitness
from simulator.witness import Violation

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.delete_queue import DeletedTopic
from tierlog.metadata.image import BrokerImage, ClusterImage, RemotePartition
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot, encode_root
from tierlog.tiering.object_store import Absent, ObjectStoreError, PreconditionFailed

WHERE = TopicIdPartition(uuid.UUID(int=1), 0)
KEYS = Keys("simulated")
CLEANER_NODE = "node-1"
BROKER = BrokerImage(
    broker_id=1,
    broker_epoch=1,
    incarnation=uuid.UUID(int=3),
    host=CLEANER_NODE,
    port=9092,
    admin_url="",
    rack=None,
    fenced=False,
)
LOG, IDX = KEYS.attempt(WHERE, 0, 9, 1, uuid.UUID(int=2))


class Seen:
    def __init__(self) -> None:
        self.stored_keys: list[str] = []
        self.removed: list[str] = []

    def put_done(self, key: str, content: bytes, before: bytes | None, sender: str | None) -> None:
        self.stored_keys.append(key)

    def deleted(self, keys: Sequence[str]) -> None:
        self.removed += keys


def _bucket(**weather: float) -> tuple[SimLoop, Bucket, Seen]:
    loop, seen = SimLoop(random.Random(1)), Seen()
    bucket = Bucket(loop, random.Random(2), seen, lambda failure: None)
    bucket.request_faults = RequestFaults(**weather)
    return loop, bucket, seen


def test_request_of_a_dead_process_is_executed() -> None:
    loop, bucket, seen = _bucket(slow=1.0)
    process, store = Process(loop, "a"), SimStore(bucket, "a")

    async def main() -> None:
        process.spawn(store.put(LOG, b"records"))
        await asyncio.sleep(0.01)
        process.kill()
        assert bucket.content(LOG) is None
        await asyncio.sleep(10)
        assert bucket.content(LOG) == b"records"

    loop.run_for(main())
    assert seen.stored_keys == [LOG]


@pytest.mark.parametrize(
    ("weather", "stored"),
    [({"refused": 1.0}, None), ({"lost": 1.0}, None), ({"no_response": 1.0}, b"records")],
)
def test_failed_put_may_have_been_executed(weather: dict[str, float], stored: bytes | None) -> None:
    loop, bucket, _ = _bucket(**weather)

    async def main() -> None:
        with pytest.raises(ObjectStoreError):
            await SimStore(bucket, "a").put(LOG, b"records")

    loop.run_for(main())
    assert bucket.content(LOG) == stored


def test_torn_put_may_be_reported_as_success() -> None:
    loop, bucket, _ = _bucket(torn=1.0)
    sizes = []

    async def main() -> None:
        for number in range(20):
            key = KEYS.attempt(WHERE, 0, 9, 1, uuid.UUID(int=number))[0]
            try:
                sizes.append((await SimStore(bucket, "a").put(key, b"records")).size)
            except ObjectStoreError:
                sizes.append(-1)

    loop.run_for(main())
    assert -1 in sizes and any(0 <= size < len(b"records") for size in sizes)


def test_slow_conditional_put_fails_after_another_put() -> None:
    loop, bucket, _ = _bucket()

    async def main() -> None:
        bucket.request_faults.slow = 1.0
        slow = asyncio.ensure_future(SimStore(bucket, "a").put("root", b"old", condition=Absent()))
        await asyncio.sleep(0.01)
        bucket.request_faults.slow = 0.0
        await SimStore(bucket, "b").put("root", b"new", condition=Absent())
        with pytest.raises(PreconditionFailed):
            await slow

    loop.run_for(main())
    assert bucket.content("root") == b"new"


def test_store_can_be_unreachable_for_one_broker() -> None:
    loop, bucket, _ = _bucket()
    bucket.unreachable_from = {"a"}

    async def main() -> None:
        with pytest.raises(ObjectStoreError):
            await SimStore(bucket, "a").put(LOG, b"records")
        await SimStore(bucket, "b").put(LOG, b"records")

    loop.run_for(main())


def test_damage_is_seen_by_brokers_alone_and_ends_with_the_next_put() -> None:
    loop, bucket, _ = _bucket()
    root = KEYS.root(WHERE)

    async def main() -> None:
        store = SimStore(bucket, "a")
        await store.put(root, b"manifest")
        bucket.damage[root] = 2
        damaged, etag = await store.get_with_etag(root)
        assert damaged == b"maoifest"
        assert await store.get(root, 1, 4) == b"aoi"
        assert await store.get(root, 3) == b"ifest"
        assert bucket.content(root) == b"manifest"
        await store.put(root, b"newest", condition=etag)
        assert await store.get(root) == b"newest"

    loop.run_for(main())


# --- the witness


class CleanerBroker(NamedTuple):
    name: str


def _witness(*, has_storage_cleaner: bool = False) -> TierWitness:
    brokers: Any = {1: CleanerBroker(CLEANER_NODE)}
    done: Counter[str] = Counter()
    nothing_is_deleted = RetentionWitness({}, done)
    witness = TierWitness(
        brokers,
        KEYS,
        done,
        lambda topic, partition, offset, kind: None,
        lambda: 0.0,
        grace_ms=0,
        retention=nothing_is_deleted,
    )
    witness.bucket = _bucket()[1]
    image = ClusterImage(cluster_id="simulated", index=1)
    witness.on_published(
        replace(image, brokers=image.brokers.set(1, BROKER)) if has_storage_cleaner else image
    )
    return witness


def _root(index: int) -> bytes:
    return encode_root(
        ManifestRoot(
            topic_id=WHERE.topic_id,
            partition=WHERE.partition,
            version=1,
            metadata_index=index,
            leader_epoch=1,
            log_start_offset=0,
            pages=(),
            entries=(),
        )
    )


def test_overwritten_object_is_a_violation() -> None:
    witness = _witness()
    witness.put_done(IDX, b"one", None)
    with pytest.raises(Violation, match="overwritten"):
        witness.put_done(IDX, b"two", b"one")


def test_manifest_with_a_lower_index_is_a_violation() -> None:
    witness = _witness()
    witness.put_done(KEYS.root(WHERE), _root(7), None)
    with pytest.raises(Violation, match="went from index 7 to 6"):
        witness.put_done(KEYS.root(WHERE), _root(6), _root(7))


def test_manifest_entry_without_an_object_is_a_violation() -> None:
    witness = _witness()
    entry = remote_segment(0, 9, uuid=uuid.UUID(int=2), leader_epochs=((1, 0),), leader_epoch=1)
    image = ClusterImage(cluster_id="simulated", index=2)
    remote = image.remote.set(WHERE, RemotePartition(entries=(entry,)))
    with pytest.raises(Violation, match="is not there"):
        witness.on_published(replace(image, remote=remote))


def test_unknown_object_is_an_orphan() -> None:
    witness = _witness()
    run_inline(witness.bucket.put(LOG, b"records", None, None))
    assert witness.orphans() == [LOG]


def test_object_that_arrives_after_its_deletion_is_no_orphan() -> None:
    witness = _witness()
    witness.deleted([LOG])
    run_inline(witness.bucket.put(LOG, b"records", None, None))
    witness.put_done(LOG, b"records", None)
    assert witness.orphans() == []


@pytest.mark.parametrize("key", [KEYS.root(WHERE), LOG])
@pytest.mark.parametrize("has_begun", [False, True])
def test_object_of_a_deleted_topic_is_an_orphan_unless_it_arrived_during_the_deletion(
    key: str, has_begun: bool
) -> None:
    """The queue is empty at the end. Its content when the object arrives decides."""
    witness, topic = _witness(), DeletedTopic(uuid=WHERE.topic_id, partitions=1, queued_ms=0)
    queued = ClusterImage(cluster_id="simulated", index=2)
    queued = replace(
        queued,
        delete_queue=queued.delete_queue.with_deletes([topic]),
        deleting=frozenset([topic.uuid] if has_begun else ()),
    )
    witness.on_published(queued)
    run_inline(witness.bucket.put(key, _root(1), None, None))
    witness.put_done(key, _root(1), None)
    assert witness.orphans() == []
    witness.on_published(ClusterImage(cluster_id="simulated", index=3))
    assert witness.orphans() == ([] if has_begun else [key])


@pytest.mark.parametrize("key", [KEYS.topic(WHERE.topic_id), KEYS.topic_name("t", WHERE.topic_id)])
def test_description_of_a_deleted_topic_is_an_orphan_if_a_live_cleaner_wrote_it(key: str) -> None:
    witness = _witness(has_storage_cleaner=True)
    run_inline(witness.bucket.put(key, b"{}", None, None))
    witness.put_done(key, b"{}", None, CLEANER_NODE)
    assert witness.orphans() == [key]
    witness.put_done(key, b"{}", None, None)  # from a dead process
    assert witness.orphans() == []
