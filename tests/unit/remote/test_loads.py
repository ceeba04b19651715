"""Bulk loads at the leader: where they begin, what it verifies and commits, and what becomes of leases."""

import asyncio
import uuid
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from awaited_image import image_when
from msgspec.structs import replace
from tier_node import START_MS, TierNode, produce, write_transactional

from tierlog.broker.remote.loads import LEASE_MS, LoadLease, Loads
from tierlog.broker.remote.replacements import TierBusy
from tierlog.broker.remote.tier_views import TierConflict, TierRefused
from tierlog.broker.replication.replica import Replica
from tierlog.metadata.controller.commands import AbandonCopy, Acknowledged, LoadSegments
from tierlog.metadata.image import Load
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.records import RemoteSegment
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import assign, iter_batches, read_header
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.segment_writer import SegmentEnd, SegmentWriter
from tierlog.tiering.local_store import LocalStore
from tierlog.tiering.object_store import CorruptObject

LOAD, OTHER = uuid.UUID(int=0x10AD), uuid.UUID(int=0x10AE)
HOUR_MS = 3_600_000


class Bench:
    """A leader with a directory store, and the job that loads."""

    def __init__(self, node: TierNode, replica: Replica) -> None:
        self.node, self.replica, self.where = node, replica, node.where(replica)
        self.loads: Loads = node.loads

    async def begin(self, load_id: uuid.UUID = LOAD) -> LoadLease:
        """As a job does: until all that is before the load is in the bucket."""
        for _ in range(3):
            try:
                found = self.loads.begin(self.where, load_id)[1]
                break
            except TierBusy:
                await self.node.finish_tiering()
        assert isinstance(found, LoadLease)
        return found

    async def write(
        self, lease: LoadLease, base_offset: int, values: list[bytes], **changes: Any
    ) -> RemoteSegment:
        """Announce and write one segment as an executor does. `changes`: of its properties."""
        end_offset = base_offset + len(values)
        attempt = await self.loads.announce(self.where, lease.load_id, base_offset, end_offset - 1)
        file = BytesIO()
        writer = SegmentWriter(file, base_offset, 200)
        for at, value in enumerate(values, base_offset):
            batch = encode_batch([NewRecord(START_MS, b"k", value, ())])
            assign(memoryview(batch), 0, at, lease.leader_epoch)
            writer.add(batch, read_header(batch))
        known = {
            "uuid": attempt.uuid,
            "leader_epoch": lease.leader_epoch,
            "end_offset": end_offset,
            "leader_epochs": lease.leader_epochs,
            "producer_snapshot": lease.producer_snapshot,
        }
        finished = writer.finish(SegmentEnd(**known | changes))
        entry = finished.entry
        keys, store = self.node.keys, self.node.store
        await store.put(keys.log(self.where, entry), file.getvalue(), crc32c=entry.log_crc32c)
        await store.put(keys.index(self.where, entry), finished.bundle, crc32c=entry.index_crc32c)
        return entry

    async def commit(self, *segments: RemoteSegment, load_id: uuid.UUID = LOAD) -> Load:
        return await self.loads.commit(self.where, load_id, segments)

    async def load(self, *values: list[bytes], load_id: uuid.UUID = LOAD) -> Load:
        lease = await self.begin(load_id)
        segments, offset = [], lease.base_offset
        for part in values:
            segments.append(await self.write(lease, offset, part))
            offset += len(part)
        return await self.commit(*segments, load_id=load_id)

    async def values(self) -> list[bytes]:
        """All values from the log start on, as a consumer reads them."""
        offset, found = 0, []
        while offset < self.replica.high_watermark:
            data = await self.node.fetch(self.replica, offset)
            for at, _ in iter_batches(data):
                found += [bytes(one.value or b"") for one in iter_records(data, at, max_bytes=1 << 20)]
            offset = len(found)
        return found

    async def objects_after_the_grace(self) -> int:
        """The number of segments that are left."""
        await self.node.finish_tiering()
        while self.node.metadata.image.delete_queue:
            self.node.clock.pass_time(HOUR_MS)
            await self.node.storage_cleaner.clean()
        found = await self.node.objects(self.node.keys.data(self.where))
        return sum(key.endswith(".log") for key in found)

    def append(self, value: bytes = b"new", **producer: Any) -> Any:
        batch = encode_batch([NewRecord(START_MS, None, value, ())], **producer)
        return self.replica.as_leader.append(memoryview(batch), START_MS)


class Opened:
    """`async with Opened(tmp_path) as bench`."""

    def __init__(self, directory: Path, **configs: str) -> None:
        self._node = TierNode(directory / "node", LocalStore(directory / "objects"))
        self._configs = configs

    async def __aenter__(self) -> Bench:
        node = await self._node.__aenter__()
        return Bench(node, await node.create("t", **self._configs))

    async def __aexit__(self, *failure: object) -> None:
        await self._node.__aexit__(*failure)


async def test_load_into_an_empty_partition_is_read_and_appended_to(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        load = await bench.load([b"a", b"b"], [b"c"])
        assert (load.base_offset, load.end_offset) == (0, 3)
        assert await bench.values() == [b"a", b"b", b"c"]
        assert bench.append().base_offset == 3
        assert await bench.values() == [b"a", b"b", b"c", b"new"]


async def test_load_follows_the_records_before_it_and_keeps_what_their_producers_need(
    tmp_path: Path,
) -> None:
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    async with Opened(tmp_path) as bench:
        assert bench.append(b"before", **producer).base_offset == 0
        epoch = bench.replica.leader_epoch
        await bench.load([b"a"])
        assert bench.replica.leader_epoch == epoch + 1
        assert bench.append(b"before", **producer).base_offset == 0, "a retry is written twice"
        assert bench.append(b"after", **producer | {"base_sequence": 1}).base_offset == 2
        assert await bench.values() == [b"before", b"a", b"after"]
        assert [entry.epoch for entry in bench.replica.log.epochs.entries] == [epoch, epoch + 1]


async def test_repeated_load_adds_nothing(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        first = await bench.load([b"a"])
        found = bench.loads.begin(bench.where, LOAD)[1]
        assert found == first
        assert await bench.commit() == first
        assert (await bench.load([b"b"], load_id=OTHER)).base_offset == 1
        assert await bench.values() == [b"a", b"b"]


async def test_record_that_is_written_meanwhile_makes_the_load_fail(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        lease = await bench.begin()
        segment = await bench.write(lease, 0, [b"a"])
        assert bench.append(b"acknowledged").error is ErrorCode.NONE
        with pytest.raises(TierConflict, match="records were written to it since the load began"):
            await bench.commit(segment)
        assert bench.append().error is ErrorCode.NONE
        assert await bench.values() == [b"acknowledged", b"new"]
        assert (await bench.load([b"b"])).base_offset == 2
        assert await bench.objects_after_the_grace() == 2


async def test_appends_are_refused_until_the_outcome_of_a_commit_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        lease = await bench.begin()
        segment = await bench.write(lease, 0, [b"a"])
        submit, sent = bench.node.metadata.submit, asyncio.Event()

        async def without_response(command: Any) -> Any:
            if isinstance(command, LoadSegments):
                sent.set()
                raise MetadataUnavailable("no response", applied_unknown=True)
            return await submit(command)

        monkeypatch.setattr(bench.node.metadata, "submit", without_response)
        with pytest.raises(MetadataUnavailable):
            await bench.commit(segment)
        assert sent.is_set()
        assert bench.append().error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        marker = bench.replica.as_leader.append_marker(
            7, 0, _marker(committed=True), START_MS, transaction_version=1
        )
        assert marker.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        bench.loads.cancel(bench.where, LOAD)
        await bench.node.finish_tiering()  # abandons the copy
        assert bench.append().error is ErrorCode.NONE
        monkeypatch.undo()
        with pytest.raises(TierConflict, match="the lease has ended"):
            await bench.commit(segment)


async def test_partition_opens_although_its_job_waits_for_the_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure of the store that is half a minute, and a wake-up does not end it."""
    async with Opened(tmp_path) as bench:
        lease = await bench.begin()
        segment = await bench.write(lease, 0, [b"a"])
        submit, node = bench.node.metadata.submit, bench.node

        async def lost(command: Any) -> Any:
            if isinstance(command, LoadSegments):
                raise MetadataUnavailable("no response", applied_unknown=True)
            return await submit(command)

        monkeypatch.setattr(node.metadata, "submit", lost)
        with pytest.raises(MetadataUnavailable):
            await bench.commit(segment)
        monkeypatch.setattr(node.log_manager, "wake", lambda where: None)
        bench.loads.cancel(bench.where, LOAD)
        await image_when(node.metadata, lambda image: not image.remote_partition(*bench.where).started)
        assert bench.append().error is ErrorCode.NONE


async def test_load_whose_segment_was_abandoned_does_not_close_the_partition(tmp_path: Path) -> None:
    """No later image would reopen it."""
    async with Opened(tmp_path) as bench:
        lease = await bench.begin()
        segment = await bench.write(lease, 0, [b"a"])
        command = AbandonCopy(
            topic_id=bench.where.topic_id,
            partition=bench.where.partition,
            leader_epoch=lease.leader_epoch,
            uuid=segment.uuid,
        )
        await bench.node.metadata.submit(command)
        with pytest.raises(TierConflict, match="abandoned"):
            await bench.commit(segment)
        assert bench.append().error is ErrorCode.NONE


async def test_commit_whose_response_was_lost_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        segment = await bench.write(await bench.begin(), 0, [b"a"])
        submit = bench.node.metadata.submit

        async def losing(command: Any) -> Acknowledged:
            reply = await submit(command)
            if isinstance(command, LoadSegments):
                raise MetadataUnavailable("the response is lost", applied_unknown=True)
            return reply

        monkeypatch.setattr(bench.node.metadata, "submit", losing)
        with pytest.raises(MetadataUnavailable):
            await bench.commit(segment)
        load = await bench.commit(segment)
        assert (load.base_offset, load.end_offset) == (0, 1)
        assert bench.append().base_offset == 1


async def test_speculative_and_dead_tasks_leave_nothing(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        lease = await bench.begin()
        await bench.write(lease, 0, [b"a"])
        segment = await bench.write(lease, 0, [b"a", b"b"])
        await bench.commit(segment)
        assert await bench.values() == [b"a", b"b"]
        assert await bench.objects_after_the_grace() == 1


async def test_lease_of_a_dead_driver_ends_and_its_objects_are_deleted(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        await bench.write(await bench.begin(), 0, [b"a"])
        with pytest.raises(TierBusy, match="another bulk load"):
            bench.loads.begin(bench.where, OTHER)
        bench.node.clock.pass_time(LEASE_MS - 1000)
        assert bench.loads.renew(bench.where, LOAD)
        bench.node.clock.pass_time(LEASE_MS - 1000)
        bench.loads.end_expired()
        assert bench.loads.renew(bench.where, LOAD)
        bench.node.clock.pass_time(LEASE_MS + 1000)
        bench.loads.end_expired()
        assert not bench.loads.renew(bench.where, LOAD)
        assert await bench.objects_after_the_grace() == 0
        assert (await bench.load([b"b"], load_id=OTHER)).base_offset == 0


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"cleanup_policy": "compact"}, "cleanup.policy is compact"),
        ({"remote_log_copy_disable": "true"}, "remote.log.copy.disable"),
        ({"remote_storage_enable": "false"}, "not tiered"),
    ],
)
async def test_partition_that_cannot_be_loaded_into_is_refused(
    tmp_path: Path, configs: dict[str, str], why: str
) -> None:
    async with Opened(tmp_path, **configs) as bench:
        with pytest.raises(TierConflict, match=why):
            bench.loads.begin(bench.where, LOAD)


async def test_job_asks_again_if_the_broker_leads_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Opened(tmp_path) as bench:
        monkeypatch.setattr(bench.node.log_manager, "led", lambda _: None)
        with pytest.raises(TierBusy, match="broker 1 does not lead partition 0 of t"):
            bench.loads.begin(bench.where, LOAD)


async def test_open_transaction_and_unknown_topic_are_refused(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        write_transactional(bench.replica, [NewRecord(START_MS, None, b"open", ())])
        with pytest.raises(TierBusy, match="a transaction is open"):
            bench.loads.begin(bench.where, LOAD)
        with pytest.raises(TierRefused, match="there is no topic"):
            bench.loads.begin(bench.where._replace(topic_id=OTHER), LOAD)


async def test_load_waits_until_everything_before_it_is_in_the_bucket(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        produce(bench.replica, 1)
        with pytest.raises(TierBusy, match="offsets up to 4 are not in the bucket yet"):
            bench.loads.begin(bench.where, LOAD)
        await bench.node.finish_tiering()
        assert (await bench.begin()).base_offset == 5


async def test_load_waits_for_in_sync_replicas(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        segment = await bench.write(await bench.begin(), 0, [b"a"])
        bench.replica._core.min_in_sync = 2
        bench.replica._core._update_sets()
        with pytest.raises(TierBusy, match="in sync"):
            await bench.commit(segment)
        bench.replica._core.min_in_sync = 1
        bench.replica._core._update_sets()
        assert bench.append().error is ErrorCode.NONE  # it was not closed
        with pytest.raises(TierConflict, match="records were written"):
            await bench.commit(segment)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"records": 3}, "one record for each of its offsets"),
        ({"last_offset": 1}, "not announced with these offsets"),
        ({"leader_epoch": 7}, "another leader epoch"),
        ({"leader_epochs": ((5, 0),)}, "another leader epoch"),
        ({"has_transactions": True}, "transactions or a key"),
        ({"key_id": "k"}, "transactions or a key"),
        ({"tags": (("note", "x"),)}, "tags that are not known"),
        ({"log_bytes": 0}, "empty or too large"),
        ({"base_offset": 1}, "not successive from offset 0"),
    ],
)
async def test_entry_that_contradicts_the_lease_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with Opened(tmp_path) as bench:
        segment = await bench.write(await bench.begin(), 0, [b"a"])
        with pytest.raises(TierConflict, match=why):
            await bench.commit(replace(segment, **changes))
        assert bench.append().error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"producer_snapshot": b""}, "producer state"), ({"leader_epochs": ((0, 0), (3, 9))}, "leader epoch")],
)
async def test_index_bundle_must_have_the_state_of_the_log_end(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    async with Opened(tmp_path) as bench:
        segment = await bench.write(await bench.begin(), 0, [b"a"], **changes)
        with pytest.raises((CorruptObject, TierConflict), match=why):
            await bench.commit(segment)
        assert await bench.objects_after_the_grace() == 0


async def test_object_that_is_not_there_or_was_changed_is_not_committed(tmp_path: Path) -> None:
    async with Opened(tmp_path) as bench:
        segment = await bench.write(await bench.begin(), 0, [b"a"])
        key = bench.node.keys.log(bench.where, segment)
        await bench.node.store.put(key, b"x" * segment.log_bytes)
        with pytest.raises(CorruptObject):
            await bench.commit(segment)
        segment = await bench.write(await bench.begin(), 0, [b"a"])
        await bench.node.store.delete([bench.node.keys.log(bench.where, segment)])
        with pytest.raises(TierConflict):
            await bench.commit(segment)


def _marker(*, committed: bool) -> Any:
    from tierlog.records.markers import EndMarker

    return EndMarker(committed=committed, coordinator_epoch=0)
