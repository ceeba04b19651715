"""Names of topics in the bucket, which the remote storage cleaner writes and deletes."""

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from tier_node import TierNode

from tierlog.metadata.controller import commands as c
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.tiering.bucket_audit import LISTED, UNKNOWN, BucketAuditor
from tierlog.tiering.manager import MISSING
from tierlog.tiering.memory_store import MemoryStore
from tierlog.tiering.object_store import ObjectStoreError


class OrderedStore(MemoryStore):
    """Records the keys that are put, in order, and refuses those that contain a text. `before_put`: calls
    before the next put of a key. `kept`: text in keys that cannot be deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.put_keys: list[str] = []
        self.refused = ""
        self.kept = ""
        self.before_put: dict[str, Callable[[], Awaitable[None]]] = {}

    async def put(self, key: str, *args, **more):
        if (before := self.before_put.pop(key, None)) is not None:
            await before()
        if self.refused and self.refused in key:
            raise ObjectStoreError("403 Forbidden")
        self.put_keys.append(key)
        return await super().put(key, *args, **more)

    async def delete(self, keys):
        if self.kept and any(self.kept in key for key in keys):
            raise ObjectStoreError("403 Forbidden")
        await super().delete(keys)


async def names(node: TierNode) -> list[str]:
    return await node.objects(node.keys.names())


async def test_topic_has_a_name_before_its_document_and_until_it_is_deleted(tmp_path: Path) -> None:
    store = OrderedStore()
    async with TierNode(tmp_path, store) as node:
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        name, document = node.keys.topic_name("t", replica.topic_id), node.keys.topic(replica.topic_id)
        assert [key for key in store.put_keys if key in (name, document)] == [name, document]
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        again = await node.create("t")
        await node.storage_cleaner.clean()
        assert await names(node) == [node.keys.topic_name("t", again.topic_id)]


async def test_topic_whose_name_cannot_be_written_has_a_document(tmp_path: Path) -> None:
    """A reader that finds no name reads the documents of all topics."""
    store = OrderedStore()
    async with TierNode(tmp_path, store) as node:
        store.refused = node.keys.names()
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        assert await names(node) == []
        assert node.keys.topic(replica.topic_id) in await node.objects()
        assert node.storage_cleaner.failing.has(("name", replica.topic_id))
        store.refused = ""
        while node.storage_cleaner.failing:
            await node.storage_cleaner.clean()
        assert await names(node) == [node.keys.topic_name("t", replica.topic_id)]
        assert node.keys.topic(replica.topic_id) in await node.objects()


async def test_names_are_written_once_the_format_is_finalised(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore(), formats=(1, 3)) as node:
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        assert node.keys.topic(replica.topic_id) in await node.objects()
        assert await names(node) == []
        newer = c.RegisterBroker(
            broker_id=1,
            incarnation=uuid.UUID(int=10),
            host="h",
            port=1,
            admin_url="http://h:1",
            formats=SUPPORTED_FORMATS,
        )
        epoch = (await node.metadata.submit(newer)).broker_epoch
        await node.metadata.submit(c.FenceBroker(broker_id=1, broker_epoch=epoch, fenced=False))
        await node.storage_cleaner.clean()
        assert await names(node) == []
        await node.metadata.submit(c.UpdateFormat(version=4))
        await node.storage_cleaner.clean()
        assert await names(node) == [node.keys.topic_name("t", replica.topic_id)]


async def test_topic_whose_document_cannot_be_written_has_a_name(tmp_path: Path) -> None:
    store = OrderedStore()
    async with TierNode(tmp_path, store) as node:
        store.refused = node.keys.topics()
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        assert await names(node) == [node.keys.topic_name("t", replica.topic_id)]
        assert node.keys.topic(replica.topic_id) not in await node.objects()


async def test_all_topics_have_names_if_the_bucket_has_one_of_a_later_format(tmp_path: Path) -> None:
    """`quorum recover` leads back to an earlier format. A reader that finds the old topic by its name looks
    for no other."""
    async with TierNode(tmp_path, store := OrderedStore(), formats=(1, 3)) as node:
        old = await node.create("t")
        await node.store.put(node.keys.topic_name("t", old.topic_id), b"")
        await node.store.put(node.keys.topic_name("lost", uuid.UUID(int=5)), b"")
        other = await node.create("other")
        await node.storage_cleaner.clean()
        named = [("other", other.topic_id), ("t", old.topic_id)]
        assert await names(node) == [node.keys.topic_name(*one) for one in named]
        await node.metadata.submit(c.DeleteTopics(topics=(c.TopicRef(name="t"),)))
        store.kept = node.keys.topics_named("t")
        new = await node.create("t")
        await node.storage_cleaner.clean()
        named = [*named, ("t", new.topic_id)]
        assert sorted(await names(node)) == sorted(node.keys.topic_name(*one) for one in named)


async def test_name_of_a_topic_that_was_deleted_before_its_document_is_removed(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.store.put(node.keys.topic_name("gone", uuid.UUID(int=5)), b"")
        await node.storage_cleaner.clean()
        assert await names(node) == []


async def test_missing_name_is_a_fault_and_is_written_again(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        replica = await node.create("t")
        await node.storage_cleaner.clean()
        name = node.keys.topic_name("t", replica.topic_id)
        await node.store.delete([name])
        faults = [fault async for fault in node.storage_cleaner.check_documents() if fault[1] is not None]
        assert faults == [(name, MISSING)]
        await node.storage_cleaner.clean()
        assert await names(node) == [name]


async def test_document_that_is_found_missing_during_a_round_is_written_in_the_next_one(
    tmp_path: Path,
) -> None:
    async with TierNode(tmp_path, store := OrderedStore()) as node:
        first = await node.create("first")
        await node.storage_cleaner.clean()
        document = node.keys.topic(first.topic_id)
        await node.store.delete([document])
        faults = []

        async def scrub() -> None:
            faults.extend([fault async for fault in node.storage_cleaner.check_documents()])

        second = await node.create("second")
        store.before_put[node.keys.topic(second.topic_id)] = scrub
        await node.storage_cleaner.clean()
        assert (document, MISSING) in faults
        await node.storage_cleaner.clean()
        assert document in await node.objects()


async def test_audit_knows_the_names_of_topics_alone(tmp_path: Path) -> None:
    async with TierNode(tmp_path, MemoryStore()) as node:
        await node.create("t")
        await node.storage_cleaner.clean()
        stray = node.keys.topic_name("t", uuid.UUID(int=5))
        await node.store.put(stray, b"")
        image = lambda: node.metadata.image  # noqa: E731
        auditor = BucketAuditor(node.store, node.keys, node.remote_log, image, node.metadata.current)

        async def at_once(_: int) -> None: ...

        found = await auditor.run(at_once)
        assert found.objects == {LISTED: 3, UNKNOWN: 1}  # cluster.json, the document and its name
        assert [info.key for info in found.unknown] == [stray]
