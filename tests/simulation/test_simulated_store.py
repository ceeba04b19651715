"""The store of the simulator, and who watches it: requests outlive who sent them, and may fail by halves."""

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
from simulator.object_store import Bucket, SimStore, StoreWeather, at_once
from simulator.retention import RetentionWitness
from simulator.tier_witness import TierWitness
from simulator.witness import Violation

from tierlog.base.types import TopicIdPartition
from tierlog.metadata.delete_queue import QueuedDelete
from tierlog.metadata.image import BrokerImage, ClusterImage, RemotePartition
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.format.manifest import ManifestRoot, encode_root
from tierlog.tiering.object_store import Absent, ObjectStoreError, PreconditionFailed

WHERE = TopicIdPartition(uuid.UUID(int=1), 0)
KEYS = Keys("simulated")
HOUSEKEEPER = "node-1"
BROKER = BrokerImage(
    broker_id=1,
    broker_epoch=1,
    incarnation=uuid.UUID(int=3),
    host=HOUSEKEEPER,
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

    def stored(self, key: str, content: bytes, before: bytes | None, sender: str | None) -> None:
        self.stored_keys.append(key)

    def removes(self, keys: Sequence[str]) -> None:
        self.removed += keys


def _bucket(**weather: float) -> tuple[SimLoop, Bucket, Seen]:
    loop, seen = SimLoop(random.Random(1)), Seen()
    bucket = Bucket(loop, random.Random(2), seen, lambda failure: None)
    bucket.weather = StoreWeather(**weather)
    return loop, bucket, seen


def test_what_a_dead_process_has_sent_is_carried_out() -> None:
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
    [({"refused": 1.0}, None), ({"lost": 1.0}, None), ({"unanswered": 1.0}, b"records")],
)
def test_whether_a_put_that_fails_was_carried_out(weather: dict[str, float], stored: bytes | None) -> None:
    loop, bucket, _ = _bucket(**weather)

    async def main() -> None:
        with pytest.raises(ObjectStoreError):
            await SimStore(bucket, "a").put(LOG, b"records")

    loop.run_for(main())
    assert bucket.content(LOG) == stored


def test_a_store_may_call_a_torn_put_done() -> None:
    loop, bucket, _ = _bucket(torn=1.0)
    told = []

    async def main() -> None:
        for number in range(20):
            key = KEYS.attempt(WHERE, 0, 9, 1, uuid.UUID(int=number))[0]
            try:
                told.append((await SimStore(bucket, "a").put(key, b"records")).size)
            except ObjectStoreError:
                told.append(-1)

    loop.run_for(main())
    assert -1 in told and any(0 <= size < len(b"records") for size in told)


def test_conditions_hold_whoever_is_slow() -> None:
    loop, bucket, _ = _bucket()

    async def main() -> None:
        bucket.weather.slow = 1.0
        slow = asyncio.ensure_future(SimStore(bucket, "a").put("root", b"old", condition=Absent()))
        await asyncio.sleep(0.01)
        bucket.weather.slow = 0.0
        await SimStore(bucket, "b").put("root", b"new", condition=Absent())
        with pytest.raises(PreconditionFailed):
            await slow

    loop.run_for(main())
    assert bucket.content("root") == b"new"


def test_one_broker_alone_is_cut_off() -> None:
    loop, bucket, _ = _bucket()
    bucket.out_of_reach = {"a"}

    async def main() -> None:
        with pytest.raises(ObjectStoreError):
            await SimStore(bucket, "a").put(LOG, b"records")
        await SimStore(bucket, "b").put(LOG, b"records")

    loop.run_for(main())


# --- the witness


class Housekeeper(NamedTuple):
    name: str


def _witness(*, keeps_house: bool = False) -> TierWitness:
    brokers: Any = {1: Housekeeper(HOUSEKEEPER)}
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
    witness.published(replace(image, brokers=image.brokers.set(1, BROKER)) if keeps_house else image)
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


def test_an_object_that_is_overwritten_is_noticed() -> None:
    witness = _witness()
    witness.stored(IDX, b"one", None)
    with pytest.raises(Violation, match="overwritten"):
        witness.stored(IDX, b"two", b"one")


def test_a_manifest_that_goes_back_is_noticed() -> None:
    witness = _witness()
    witness.stored(KEYS.root(WHERE), _root(7), None)
    with pytest.raises(Violation, match="went from index 7 to 6"):
        witness.stored(KEYS.root(WHERE), _root(6), _root(7))


def test_a_manifest_that_names_what_is_not_there_is_noticed() -> None:
    witness = _witness()
    entry = remote_segment(0, 9, uuid=uuid.UUID(int=2), leader_epochs=((1, 0),), leader_epoch=1)
    image = ClusterImage(cluster_id="simulated", index=2)
    remote = image.remote.set(WHERE, RemotePartition(entries=(entry,)))
    with pytest.raises(Violation, match="is not there"):
        witness.published(replace(image, remote=remote))


def test_an_object_that_nothing_knows_of_is_noticed() -> None:
    witness = _witness()
    at_once(witness.bucket.put(LOG, b"records", None, None))
    assert witness.orphans() == [LOG]


def test_what_comes_after_its_deletion_cannot_be_helped() -> None:
    witness = _witness()
    witness.removes([LOG])
    at_once(witness.bucket.put(LOG, b"records", None, None))
    witness.stored(LOG, b"records", None)
    assert witness.orphans() == []


@pytest.mark.parametrize(("is_waiting", "orphans"), [(True, [KEYS.root(WHERE)]), (False, [])])
def test_a_root_that_comes_back_is_deleted_while_anything_of_its_partition_is(
    is_waiting: bool, orphans: list[str]
) -> None:
    """The queue is empty at the end; what counts is whether it was when the root came."""
    witness, line = _witness(), _line()
    queued = ClusterImage(cluster_id="simulated", index=2)
    queued = replace(queued, delete_queue=queued.delete_queue.with_deletes([line]))
    witness.published(queued)
    witness.removes([KEYS.root(WHERE)] if is_waiting else [KEYS.root(WHERE), LOG, IDX])
    at_once(witness.bucket.put(KEYS.root(WHERE), _root(1), None, None))
    witness.stored(KEYS.root(WHERE), _root(1), None)
    witness.published(ClusterImage(cluster_id="simulated", index=3))
    assert witness.orphans() == orphans


def test_the_description_of_a_topic_that_is_gone_is_deleted_by_who_wrote_it() -> None:
    witness, key = _witness(keeps_house=True), KEYS.topic(WHERE.topic_id)
    at_once(witness.bucket.put(key, b"{}", None, None))
    witness.stored(key, b"{}", None, HOUSEKEEPER)
    assert witness.orphans() == [key]
    witness.stored(key, b"{}", None, None)  # of a process that is dead
    assert witness.orphans() == []


def _line() -> QueuedDelete:
    return QueuedDelete(
        uuid=uuid.UUID(int=2),
        is_page=False,
        topic_id=WHERE.topic_id,
        partition=WHERE.partition,
        base_offset=0,
        last_offset=9,
        leader_epoch=1,
        queued_ms=0,
    )
