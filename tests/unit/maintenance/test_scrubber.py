"""Scrubber and log repair on real logs of one node."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.leader_epochs import EpochEnd
from tierlog.base.network import Peer, Unreachable
from tierlog.base.tasks import TaskGroup
from tierlog.broker.maintenance.log_repair import REPAIR_TRIES, LogRepair
from tierlog.broker.maintenance.scrubber import Scrubber
from tierlog.broker.replication.core.follower import Fetched, Retry
from tierlog.broker.replication.replica import ReadResult, Replica
from tierlog.broker.replication.replica_events import DamageFound
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.segment import CorruptLog
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tierlog.records.batch import HEADER_SIZE, assign, iter_batches, read_header
from tierlog.records.writer import NewRecord, encode_batch

BATCHES = 30
TOPIC_ID = uuid.UUID(int=1)
CONFIG = {"segment.bytes": "1500", "index.interval.bytes": "200", "file.delete.delay.ms": "0"}
LENGTH_AT, EPOCH_AT = 8, 12
"""Positions in the header that no CRC covers, nor that of the base offset before them."""
OFFSET_OR_EPOCH = [0, 7, EPOCH_AT, EPOCH_AT + 3]  # their largest and smallest bytes


class Peers:
    """The other brokers: each serves its batches as to a consumer."""

    is_open = True

    def __init__(self) -> None:
        self.batches: dict[str, dict[int, bytes]] = {}
        """By the host of the broker, and the offset."""
        self.requests: list[tuple[str, int]] = []
        self.throttled_ms: list[int] = []
        self.log_start = 0
        self._host = ""

    async def connect(self, peer: Peer, client_id: str) -> "Peers":
        if peer.host not in self.batches:
            raise Unreachable(peer.host)
        self._host = peer.host
        return self

    async def call(
        self, api_key: int, version: int, request: FetchRequest, timeout_s: float, again: Any = None
    ) -> FetchResponse:
        [topic] = request.topics
        [partition] = topic.partitions
        offset, answer = partition.fetch_offset, PartitionData(partition_index=0, records=b"")
        if self.throttled_ms:
            return FetchResponse(throttle_time_ms=self.throttled_ms.pop())
        self.requests.append((self._host, offset))
        has = self.batches[self._host]
        if offset < self.log_start:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            has = {}
        elif (held := _that_holds(has, offset)) is not None:
            offset = held
        else:
            answer.error_code = ErrorCode.CORRUPT_MESSAGE
        content = b""
        while offset in has and len(content) < 500:
            content += has[offset]
            offset = read_header(has[offset]).next_offset
        answer.records = memoryview(content)
        return FetchResponse(responses=[FetchableTopicResponse(topic_id=topic.topic_id, partitions=[answer])])

    def close(self) -> None:
        return


def _that_holds(batches: dict[int, bytes], offset: int) -> int | None:
    """The base offset of the batch that holds an offset."""
    return next((at for at, one in batches.items() if at <= offset < read_header(one).next_offset), None)


class Node:
    """Broker 1 leads one partition, standalone or in a cluster; `reported` is what the controller
    was sent.
    """

    def __init__(self, path: Path, in_sync: tuple[int, ...] = (), **config: str) -> None:
        settings, rng, self.clock = settings_from({"log.dirs": str(path)}), random.Random(1), ManualClock()
        self.reported: list[Any] = []
        self.in_sync, self.peers = in_sync, Peers()
        self.image = evolve_all(
            ClusterImage(cluster_id="c"),
            [
                *(change for broker_id in in_sync and (1, 2, 3) for change in registered(broker_id)),
                r.TopicCreated(topic_id=TOPIC_ID, name="t"),
                partition(1, in_sync or (1,), replicas=(1, 2, 3) if in_sync else (1,)),
                *(
                    r.ConfigRecord(scope=r.ConfigScope.TOPIC, name="t", key=key, value=value)
                    for key, value in (CONFIG | config).items()
                ),
            ],
        )
        self.failures: list[BaseException] = []
        self.tasks = TaskGroup(lambda _, failure: self.failures.append(failure))
        self.directories = LogDirectories([path], OsFiles(), rng)
        self.directories.claim(1, "")
        self.replicas = ReplicaManager(
            settings, self.directories, self.clock, self.tasks, rng, on_change=lambda _: None
        )
        report_lost, network = (self._report_lost, self.peers) if in_sync else (None, None)
        self.repair = LogRepair(
            1, lambda: self.image, self.replicas, self.clock, self.tasks, report_lost, network
        )
        self.scrubber = Scrubber(settings, self.replicas, self.tasks, rng)
        self.replicas.listeners = (self.scrubber.on_replica_event, self.repair.on_replica_event, self._seen)
        self.found, self.damaged_from = asyncio.Event(), -1

    def _seen(self, event: object) -> None:
        if isinstance(event, DamageFound):
            self.damaged_from = event.damage[0].start_offset
            self.found.set()

    async def _report_lost(self, keys: Any) -> None:
        """The controller's reaction: broker 2 becomes leader."""
        self.reported += keys
        self.log_end_when_told = self.replica.log_end_offset
        before = self.image
        self.image = evolve_all(before, [partition(2, (2,), replicas=(1, 2, 3), epoch=1)])
        self.replicas.follow(before, self.image)

    async def start(self) -> "Node":
        await self.replicas.open_all(self.image)
        self.scrubber.start()
        for number in range(BATCHES):
            batch = encode_batch([NewRecord(self.clock.now, b"k", b"value %03d" % number * 5)])
            assert not self.replica.as_leader.append(memoryview(batch), self.clock.now).error
        if self.in_sync:
            self.replica.become_leader(0, 0, self.in_sync, (1, 2, 3), self.clock.now)
            for one in self.in_sync[1:]:
                self.replica.as_leader.follower_fetched(one, one, BATCHES, self.clock.now)
            assert self.replica.high_watermark == BATCHES
        for host in ("h2", "h3"):
            self.peers.batches[host] = self.batches()
        return self

    def batches(self) -> dict[int, bytes]:
        """The batches of its log on disk."""
        found = {}
        for path in sorted(self.replica.log.directory.glob("*.log")):
            content = path.read_bytes()
            for at, header in iter_batches(content):
                found[header.base_offset] = content[at : at + header.size]
        return found

    async def stop(self) -> None:
        await self.scrubber.stop()
        await self.repair.stop()
        await self.tasks.close()
        await self.replicas.close(clean=True)
        self.directories.release()
        assert self.failures == []

    @property
    def replica(self) -> Replica:
        found = self.replicas.get("t", 0)
        assert found is not None
        return found

    async def whole(self) -> None:
        """Wait until all repairs have ended."""
        await asyncio.gather(*self.repair._repairing.values())
        assert self.replica.log.damage == ()

    def damage(self, offset: int, at: int = HEADER_SIZE + 5) -> None:
        """Flip a bit of the batch that holds an offset."""
        for position, path in self._batches(offset):
            content = bytearray(path.read_bytes())
            content[position + at] ^= 0x40
            with path.open("r+b") as file:
                file.write(content)

    def _batches(self, offset: int) -> Iterator[tuple[int, Path]]:
        for path in sorted(self.replica.log.directory.glob("*.log")):
            content, position = path.read_bytes(), 0
            while position < len(content):
                header = read_header(content, position)
                if header.base_offset == offset:
                    yield position, path
                position += header.size

    def read(self, offset: int, max_bytes: int = 1 << 20) -> ReadResult:
        return self.replica.read(offset, max_bytes)


def registered(broker_id: int) -> list[r.AnyRecord]:
    at = {"incarnation": uuid.UUID(int=broker_id), "host": f"h{broker_id}", "port": 1, "admin_url": ""}
    return [
        r.BrokerRegistration(broker_id=broker_id, broker_epoch=broker_id, **at),  # type: ignore[arg-type]
        r.BrokerFencing(broker_id=broker_id, broker_epoch=broker_id, fenced=False),
    ]


def partition(
    leader: int, in_sync: tuple[int, ...], *, replicas: tuple[int, ...], epoch: int = 0
) -> r.PartitionRecord:
    return r.PartitionRecord(
        topic_id=TOPIC_ID,
        partition=0,
        replicas=replicas,
        in_sync=in_sync,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
    )


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    running = await Node(tmp_path).start()
    yield running
    await running.stop()


def offsets_served(node: Node) -> list[int]:
    """Each offset that a fetch returns, from any offset at which a client may continue."""
    served: list[int] = []
    offset = 0
    while offset < BATCHES:
        result = node.read(offset)
        if result.error:
            expected = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE)
            assert result.error is expected[offset >= node.replica.log_start_offset]
            offset += 1
            continue
        assert result.slice is not None
        assert result.slice.base_offset == offset < result.slice.end_offset
        content = b"".join(map(_bytes, result.slice.parts))
        position = 0
        while position < len(content):
            header = read_header(content, position)
            served.append(header.base_offset)
            position += header.size
        offset = result.slice.end_offset
    return served


def _bytes(part: FileSlice) -> bytes:
    return OsFiles().read_at(part.file.fd, part.count, part.position)


async def test_intact_logs_are_read_without_findings(node: Node) -> None:
    await node.scrubber.scrub_all()
    assert node.scrubber.bytes_read == node.replica.log.size_bytes
    assert node.scrubber.batches_read == BATCHES
    assert node.replica.log.damage == ()
    assert offsets_served(node) == list(range(BATCHES))


@pytest.mark.parametrize("at", [HEADER_SIZE + 5, LENGTH_AT + 3, LENGTH_AT, *OFFSET_OR_EPOCH, 16], ids=str)
@pytest.mark.parametrize("offset", [0, 4, 13, BATCHES - 1])
async def test_only_damaged_ranges_are_refused(node: Node, offset: int, at: int) -> None:
    """After a wrong length the damage ends at the next indexed batch, so it may include a few others."""
    node.damage(offset, at)
    await node.scrubber.scrub_all()
    [damage] = node.replica.log.damage
    assert damage.start_offset == offset < damage.end_offset <= offset + 4
    if at not in (LENGTH_AT, LENGTH_AT + 3):
        assert damage.end_offset == offset + 1
    lost = set(range(damage.start_offset, damage.end_offset))
    assert offsets_served(node) == [one for one in range(BATCHES) if one not in lost]
    assert node.read(offset).error is ErrorCode.CORRUPT_MESSAGE
    assert node.repair.damaged == [node.replica]
    node.replica.check()
    await node.scrubber.scrub_all()
    assert node.repair.found_count == 1, "it is no news the second time"


@pytest.mark.parametrize("at", [*OFFSET_OR_EPOCH, LENGTH_AT], ids=str)
@pytest.mark.parametrize(("offset", "reads"), [(0, 0), (4, 0), (13, 0), (4, 2)])
async def test_read_at_a_wrong_header_triggers_a_check(node: Node, offset: int, at: int, reads: int) -> None:
    """Also after `reads` of a sequential consumer: then no search leads to the batch."""
    assert all(node.read(earlier, 1).slice for earlier in range(offset - reads, offset))
    node.damage(offset, at)
    assert node.read(offset).error is ErrorCode.CORRUPT_MESSAGE
    await asyncio.wait_for(node.found.wait(), 30)
    assert [one.start_offset for one in node.replica.log.damage] == [offset]


@pytest.mark.parametrize("at", OFFSET_OR_EPOCH, ids=str)
@pytest.mark.parametrize("offset", [4, 13, BATCHES - 1])
async def test_catching_up_replica_gets_no_wrong_header(node: Node, offset: int, at: int) -> None:
    """Not within a response either, and the next fetch, which begins there, fails."""
    whole = node.replica.read_for_follower(0, 1 << 20)
    assert whole.slice is not None and whole.slice.end_offset == BATCHES
    node.damage(offset, at)
    result = node.replica.read_for_follower(0, 1 << 20)
    assert result.slice is not None and result.slice.end_offset == offset
    assert node.replica.read_for_follower(offset, 1 << 20).error is ErrorCode.CORRUPT_MESSAGE
    await asyncio.wait_for(node.found.wait(), 30)
    assert [one.start_offset for one in node.replica.log.damage] == [offset]


async def test_follower_does_not_truncate_where_damage_hides_the_new_end(tmp_path: Path) -> None:
    """The read triggers a check, and the damage is repaired."""
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    replica = node.replica
    first = replica.segments[1].base_offset
    node.damage(first, LENGTH_AT)
    replica.become_follower(2, 1, 1)
    position = replica.as_follower.fetch_position()
    assert position is not None
    diverging = Fetched(diverging=EpochEnd(0, first + 2))
    assert replica.as_follower.take_fetched(position, diverging, memoryview(b""), 0) == Retry(
        ErrorCode.CORRUPT_MESSAGE
    )
    assert replica.log_end_offset == BATCHES
    replica.check()
    await asyncio.wait_for(node.found.wait(), 30)
    await node.stop()


async def test_unknown_leader_epoch_of_the_last_batch_triggers_a_check(tmp_path: Path) -> None:
    """As after a crash: the checkpoint did not have the epoch of the last batch, so the batch was trusted."""
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    replica = node.replica
    node.damage(BATCHES - 1, EPOCH_AT)
    [position, path] = next(node._batches(BATCHES - 1))
    replica.log.epochs.assign(read_header(path.read_bytes(), position).leader_epoch, BATCHES - 1)
    replica.become_follower(2, 1, 1)
    assert (fetch := replica.as_follower.fetch_position()) is not None and fetch.last_fetched_epoch > 1
    refused = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0)
    assert isinstance(replica.as_follower.take_fetched(fetch, refused, memoryview(b""), 0), Retry)
    await asyncio.wait_for(node.found.wait(), 30)
    assert node.damaged_from == BATCHES - 1
    await node.stop()


async def test_damaged_log_still_accepts_records(node: Node) -> None:
    node.damage(BATCHES - 2)
    await node.scrubber.scrub_all()
    batch = encode_batch([NewRecord(node.clock.now, None, b"new")])
    assert not node.replica.as_leader.append(memoryview(batch), node.clock.now).error
    result = node.read(BATCHES)
    assert result.slice is not None and result.slice.end_offset == BATCHES + 1
    with pytest.raises(CorruptLog):
        list(node.replica.log.batches(0))  # a coordinator must not continue without it


async def test_damage_is_removed_with_its_segment(node: Node) -> None:
    node.damage(0)
    await node.scrubber.scrub_all()
    second = node.replica.segments[1].base_offset
    assert node.replica.delete_local_before(second, node.clock.now) == 1
    assert node.replica.log.damage == () and node.repair.damaged == []
    node.replica.check()


async def test_range_truncated_during_the_scrub_is_no_damage(node: Node) -> None:
    """The thread has read the segment before it was truncated."""
    replica = node.replica
    node.damage(BATCHES - 1)
    replica.become_follower(2, 1, 1)
    scrubbing = asyncio.ensure_future(node.scrubber.scrub(replica))
    await asyncio.sleep(0)
    replica.as_follower.truncate_to(BATCHES - 1, node.clock.now)
    await scrubbing
    assert replica.log.damage == () and node.repair.found_count == 0


async def test_read_without_a_valid_batch_triggers_a_check(node: Node) -> None:
    node.damage(13, LENGTH_AT)
    assert node.read(13).error is ErrorCode.CORRUPT_MESSAGE
    await asyncio.wait_for(node.found.wait(), 30)
    assert node.read(13).error is ErrorCode.CORRUPT_MESSAGE
    assert set(offsets_served(node)) >= {*range(13), *range(17, BATCHES)}


async def test_batch_rejected_by_a_follower_triggers_a_check_on_the_leader(node: Node) -> None:
    replica = node.replica
    node.damage(4)
    replica.become_leader(1, 1, (1, 2), (1, 2), 0)
    for now_ms in range(10):
        replica.as_leader.follower_fetched(2, 5, 4, now_ms)
    await asyncio.wait_for(node.found.wait(), 30)
    assert replica.read_for_follower(4, 1 << 20).error is ErrorCode.CORRUPT_MESSAGE


async def test_pass_starts_on_request(node: Node) -> None:
    node.damage(4)
    node.scrubber.begin()
    await asyncio.wait_for(node.found.wait(), 30)
    assert node.repair.damaged == [node.replica]


@pytest.mark.parametrize("at", [HEADER_SIZE + 5, LENGTH_AT + 3, *OFFSET_OR_EPOCH], ids=str)
@pytest.mark.parametrize("offset", [4, 13, BATCHES - 1])
async def test_leader_repairs_its_log_from_a_follower_and_stays_leader(
    tmp_path: Path, offset: int, at: int
) -> None:
    node = await Node(tmp_path, in_sync=(1, 2, 3)).start()
    whole = node.batches()
    node.damage(offset, at)
    await node.scrubber.scrub_all()
    await asyncio.wait_for(node.whole(), 30)
    assert node.batches() == whole and node.repair.repaired_count == 1
    assert node.reported == [] and node.replica.is_leader and node.replica.log_end_offset == BATCHES
    assert {host for host, _ in node.peers.requests} == {"h2"}
    node.replica.check()
    await node.scrubber.scrub_all()
    assert node.repair.found_count == 1
    await node.stop()


async def test_replicas_damaged_in_different_places_repair_each_other(tmp_path: Path) -> None:
    """The other replicas are damaged too, and one is not in sync; only the range is fetched."""
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    whole = node.batches()
    del node.peers.batches["h2"][13], node.peers.batches["h3"][4], node.peers.batches["h3"][20]
    node.damage(4)
    node.damage(13)
    await node.scrubber.scrub_all()
    await asyncio.wait_for(node.whole(), 30)
    assert node.batches() == whole and node.repair.repaired_count == 2
    assert set(node.peers.requests) == {("h2", 4), ("h2", 13), ("h3", 13)}
    assert node.reported == []
    await node.stop()


async def test_damage_below_the_log_start_is_left_alone(tmp_path: Path) -> None:
    """No replica serves it, and no client reads it: not a reason to give up the log after it."""
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    node.replica.raise_log_start(10)
    for host in ("h2", "h3"):
        for offset in range(10):
            del node.peers.batches[host][offset]
    node.damage(4)
    await node.scrubber.scrub_all()
    await node.repair.stop()
    for tries in range(2 * REPAIR_TRIES):
        assert not await node.repair._next_step(node.replica, tries)
    assert (node.peers.requests, node.reported, node.replica.log_end_offset) == ([], [], BATCHES)
    node.damage(13)
    await node.scrubber.scrub_all()
    await node.repair.stop()
    await node.repair._next_step(node.replica, 0)
    assert [one.start_offset for one in node.replica.log.damage] == [4], "what is above it is repaired"
    await node.stop()


@pytest.mark.parametrize(("throttled_ms", "host"), [(1, "h2"), (60_000, "h3")])
async def test_a_quota_of_consumers_is_waited_for_unless_that_takes_long(
    tmp_path: Path, throttled_ms: int, host: str
) -> None:
    node = await Node(tmp_path, in_sync=(1, 2, 3)).start()
    whole = node.batches()
    node.peers.throttled_ms = [throttled_ms]
    node.damage(13)
    await node.scrubber.scrub_all()
    await node.whole()
    assert (node.batches(), node.peers.requests) == (whole, [(host, 13)])
    await node.stop()


@pytest.mark.parametrize("at", [HEADER_SIZE + 5, 3, EPOCH_AT + 3], ids=str)
async def test_fetched_batches_are_checked_before_a_repair(tmp_path: Path, at: int) -> None:
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    del node.peers.batches["h3"][13]
    wrong = bytearray(node.peers.batches["h2"][13])
    wrong[at] ^= 1
    node.peers.batches["h2"][13] = bytes(wrong)
    node.damage(13)
    damaged = node.batches()
    await node.scrubber.scrub_all()
    await node.repair.stop()
    assert not await node.repair._repair_ranges(node.replica)
    assert node.batches() == damaged and node.read(13).error is ErrorCode.CORRUPT_MESSAGE
    await node.stop()


async def test_log_is_not_truncated_while_no_replica_serves_the_range(tmp_path: Path) -> None:
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    whole = node.batches()
    lost = [node.peers.batches[host].pop(13) for host in ("h2", "h3")]
    node.damage(13)
    await node.scrubber.scrub_all()
    await node.repair.stop()
    for tries in range(2 * REPAIR_TRIES):
        assert not await node.repair._next_step(node.replica, tries)
    assert node.reported == [] and node.replica.is_leader
    assert offsets_served(node) == [one for one in range(BATCHES) if one != 13]
    node.peers.batches["h3"][13] = lost[0]
    assert await node.repair._next_step(node.replica, 2 * REPAIR_TRIES)
    assert node.batches() == whole and offsets_served(node) == list(range(BATCHES))
    await node.stop()


async def test_log_is_truncated_only_after_another_replica_serves_the_rest(tmp_path: Path) -> None:
    """In a compacted topic other replicas have other batches. A leader hands over leadership before that."""
    node = await Node(tmp_path, in_sync=(1, 2), **{"cleanup.policy": "compact"}).start()
    replica = node.replica
    del node.peers.batches["h3"]
    batches = node.peers.batches["h2"]
    batches[13] = longer(node, 13)
    last = batches.pop(BATCHES - 1)
    node.damage(13)
    await node.scrubber.scrub_all()
    await node.repair.stop()
    assert not await node.repair._next_step(replica, REPAIR_TRIES)
    assert node.reported == [] and replica.is_leader, "the other lacks a batch after the damage"
    batches[BATCHES - 1] = last
    assert not await node.repair._next_step(replica, REPAIR_TRIES)
    assert node.reported == [(TOPIC_ID, 0)] and not replica.is_leader
    assert node.log_end_when_told == replica.log_end_offset == BATCHES
    assert await node.repair._next_step(replica, REPAIR_TRIES)
    assert (replica.log_end_offset, replica.log.damage) == (13, ())
    node.repair._resume_fetching(replica)
    position = replica.as_follower.fetch_position()
    assert position is not None and position.offset == 13
    await node.stop()


async def test_damage_below_the_log_start_is_not_reported_and_needs_no_repair(tmp_path: Path) -> None:
    """No replica serves what DeleteRecords has deleted; the segment still has it."""
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    node.replica.raise_log_start(5)
    node.damage(4)
    await node.scrubber.scrub_all()
    assert node.repair.damaged == [] and node.repair._repairing == {} and node.peers.requests == []
    assert offsets_served(node)[:2] == [5, 6]
    node.replica.check()
    await node.stop()


async def test_repair_ends_when_the_damaged_records_are_deleted(tmp_path: Path) -> None:
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    for host in ("h2", "h3"):
        del node.peers.batches[host][4]
    node.damage(4)
    await node.scrubber.scrub_all()
    assert node.repair.damaged == [node.replica]
    repairing = list(node.repair._repairing.values())
    node.replica.raise_log_start(5)
    await asyncio.wait_for(asyncio.gather(*repairing), 30)
    assert node.repair.damaged == [] and node.reported == []
    await node.stop()


async def test_batch_around_the_log_start_is_restored(tmp_path: Path) -> None:
    node = await Node(tmp_path, in_sync=(1, 2)).start()
    batch = encode_batch([NewRecord(node.clock.now, b"k", b"v")] * 5)
    assert not node.replica.as_leader.append(memoryview(batch), node.clock.now).error
    node.replica.as_leader.follower_fetched(2, 2, BATCHES + 5, node.clock.now)
    whole = node.batches()
    node.peers.batches = {"h2": whole, "h3": whole}
    node.peers.log_start = BATCHES + 2
    node.replica.raise_log_start(BATCHES + 2)
    node.damage(BATCHES)
    await node.scrubber.scrub_all()
    await asyncio.wait_for(node.whole(), 30)
    assert node.batches() == whole and node.repair.repaired_count == 1 and node.reported == []
    assert node.peers.requests == [("h2", BATCHES + 2)]
    await node.stop()


def longer(node: Node, offset: int) -> bytes:
    batch = bytearray(encode_batch([NewRecord(node.clock.now, None, b"v" * 100)]))
    assign(batch, 0, offset, read_header(node.peers.batches["h2"][offset]).leader_epoch)
    return bytes(batch)


async def test_unexpected_error_in_one_log_does_not_stop_the_pass(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = KeyError("a bug")

    async def fail(replica: Replica) -> None:
        raise bug

    monkeypatch.setattr(node.scrubber, "scrub", fail)
    with pytest.raises(ExceptionGroup) as met:
        await node.scrubber.scrub_all()
    assert met.value.exceptions == (bug,)
    assert (node.scrubber.passes, node.scrubber.progress) == (1, 1.0)
