"""Replication of one partition with three replicas, over an unreliable network, on disks that lose unsynced
bytes.

The replicas are real. The network delivers the messages of replicas and controller late, in any order,
twice or not at all. Brokers crash with or without loss of unsynced bytes. They learn late of elections, and a
deposed leader acts as leader until then. A record is committed when it is below a high watermark. These
invariants hold after every step, as long as one in-sync or eligible replica (KIP-966) loses no bytes:

- a committed record is the same on all replicas, is never lost or changed, and its offset is not used again;
- every in-sync or eligible replica has all committed records, so every elected leader has them;
- records acknowledged with acks=all are committed;
- a replica's high watermark does not decrease while its process runs.
"""

import random
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model_controller import ModelController, RealController, View
from opened_replica import opened_replica
from power_loss import KEPT, LOST, TORN, ZEROED, PowerLoss

from tierlog.base.files import FileSlice
from tierlog.base.leader_epochs import UNKNOWN_END
from tierlog.base.types import NO_LEADER, TopicPartition
from tierlog.broker.replication.core.follower import Fetched, FetchPosition, Retry, StartFromTier
from tierlog.broker.replication.core.in_sync import IsrProposal
from tierlog.broker.replication.replica import Replica
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

NOW = 1_700_000_000_000
BROKERS = (1, 2, 3)
UNLIMITED = 1 << 60
NEVER = 2**63 - 1
LAG_MS = 100
ALL, LEADER = -1, 1

brokers = st.sampled_from(BROKERS)
picks = st.integers(0, 1000)
Value = tuple[int, bytes]
"""Leader epoch and value of a record."""


@dataclass
class Broker:
    number: int
    directory: Path
    files: PowerLoss
    epoch: int = 100
    replica: Replica | None = None
    view: View | None = None
    checkpoint: tuple[int, int, int | None] = (0, 0, None)
    """(recovery point, log start offset, high watermark) as of the last checkpoint."""
    lost: bool = False
    """The broker is down, and its crash lost unsynced bytes."""
    high_watermark: int = 0
    """As of the last step."""
    proposals: int = 0

    @property
    def is_leader(self) -> bool:
        return self.replica is not None and self.replica.is_leader


@dataclass(frozen=True)
class Request:
    """A Fetch of a follower. `epoch`: the follower's broker epoch."""

    follower: int
    epoch: int
    leader: int
    position: FetchPosition


@dataclass(frozen=True)
class Response:
    request: Request
    fetched: Fetched
    records: bytes


@dataclass(frozen=True)
class Proposed:
    """An AlterPartition request of a leader. `epoch`: the leader's broker epoch."""

    broker: int
    epoch: int
    replica: Replica = field(hash=False, compare=False)
    proposal: IsrProposal = field(hash=False, compare=False)


@dataclass(frozen=True)
class Sent:
    """An append with acks=all that has no acknowledgement yet. `base`: its first offset."""

    replica: Replica = field(hash=False, compare=False)
    base: int
    values: tuple[bytes, ...]
    leader_epoch: int


class Partition(RuleBasedStateMachine):
    controlled_by: type[ModelController | RealController] = ModelController

    @initialize(
        min_in_sync=st.sampled_from([1, 2, 2]),
        segment_bytes=st.sampled_from([150, 400, 5000]),
        flush_messages=st.sampled_from([NEVER, NEVER, 1, 3]),
    )
    def begin(self, min_in_sync: int, segment_bytes: int, flush_messages: int) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.config = TopicConfig(
            min_insync_replicas=min_in_sync,
            segment_bytes=segment_bytes,
            flush_messages=flush_messages,
            index_interval_bytes=0,
            file_delete_delay_ms=0,
        )
        self.now = 1000
        self.written = 0
        self.committed: list[Value] = []
        self.start = 0
        """The highest log start offset. Records below it may be deleted, so they are not compared."""
        self.requests: list[Request] = []
        self.responses: list[Response] = []
        self.proposed: list[Proposed] = []
        self.waiting: list[Sent] = []
        self.seen: dict[int, tuple[bytes, int, list[Value]]] = {}
        self.controller = self.controlled_by(BROKERS, min_in_sync)
        self.brokers = {number: self.make(number) for number in BROKERS}
        for broker in self.brokers.values():
            broker.epoch = self.controller.epochs[broker.number]
            self.open(broker)
            self.hear(broker)

    def make(self, number: int) -> Broker:
        directory = Path(self.home.name) / str(number)
        directory.mkdir()
        return Broker(number, directory, PowerLoss(directory, UNLIMITED))

    def open(self, broker: Broker) -> None:
        recovery_point, log_start, high_watermark = broker.checkpoint
        broker.replica = opened_replica(
            TopicPartition("t", 0),
            uuid.UUID(int=1),
            broker.number,
            broker.directory,
            self.config,
            broker.files,
            NOW,
            log_start_offset=log_start,
            recovery_point=recovery_point,
            clean=False,
            rng=random.Random(1),
            high_watermark=high_watermark or 0,
        )
        broker.high_watermark, broker.lost = broker.replica.high_watermark, False
        self.seen.pop(broker.number, None)

    def hear(self, broker: Broker) -> None:
        """Apply the current image and skip those in between, as an observer does that loads a snapshot."""
        replica, view = broker.replica, self.controller.view
        assert replica is not None
        broker.view = view
        if view.leader == broker.number:
            replica.become_leader(view.leader_epoch, view.partition_epoch, view.in_sync, BROKERS, self.now)
        elif view.leader == NO_LEADER:
            replica.become_follower(NO_LEADER, view.leader_epoch, view.partition_epoch)
        else:
            replica.become_follower(view.leader, view.leader_epoch, view.partition_epoch)
        replica.as_leader.set_live(view.live)

    def teardown(self) -> None:
        if hasattr(self, "brokers"):
            for broker in self.brokers.values():
                if broker.replica is not None:
                    broker.replica.close(clean=False)
            self.home.cleanup()

    # -- producers --

    @rule(number=brokers, count=st.integers(1, 3), acks=st.sampled_from([ALL, ALL, LEADER]))
    def produce(self, number: int, count: int, acks: int) -> None:
        replica = self.brokers[number].replica
        if replica is None or not replica.is_leader:
            return
        values = tuple(b"%d" % (self.written + n) for n in range(count))
        self.written += count
        batch = encode_batch([NewRecord(NOW, None, value, ()) for value in values])
        result = replica.as_leader.append(memoryview(batch), NOW, acks=acks)
        if result.error:
            assert result.error == ErrorCode.NOT_ENOUGH_REPLICAS and acks == ALL
        elif acks == ALL:
            self.waiting.append(Sent(replica, result.base_offset, values, replica.leader_epoch))

    @precondition(lambda self: any(broker.is_leader for broker in self.brokers.values()))
    @rule(count=st.integers(1, 3), pick=picks)
    def produce_to_a_leader(self, count: int, pick: int) -> None:
        leaders = [number for number, broker in self.brokers.items() if broker.is_leader]
        self.produce(leaders[pick % len(leaders)], count, ALL)

    # -- fetches --

    def send_fetch(self, number: int) -> Request | None:
        broker = self.brokers[number]
        position = broker.replica.as_follower.fetch_position() if broker.replica is not None else None
        if broker.replica is None or position is None:
            return None
        return Request(number, broker.epoch, broker.replica.leader, position)

    def response(self, request: Request) -> Response | None:
        """The leader's response, computed as in the Fetch handler. None if the broker is down."""
        replica = self.brokers[request.leader].replica
        if replica is None:
            return None
        position = request.position
        if position.leader_epoch != replica.leader_epoch or not replica.is_leader:
            return Response(request, Fetched(ErrorCode.FENCED_LEADER_EPOCH), b"")
        if not replica.as_leader.knows_follower(request.follower, request.epoch):
            return Response(request, Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER), b"")
        read = replica.read_for_follower(position.offset, 200, last_fetched_epoch=position.last_fetched_epoch)
        if not read.error and read.diverging == UNKNOWN_END:
            replica.as_leader.follower_fetched(request.follower, request.epoch, position.offset, self.now)
        fetched = Fetched(read.error, replica.high_watermark, read.log_start_offset, read.diverging)
        parts = read.slice.parts if read.slice is not None else ()
        records = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
        return Response(request, fetched, records)

    def take(self, response: Response) -> None:
        """Apply a response as the replica fetcher does. Drop it if its request is of an earlier process."""
        broker = self.brokers[response.request.follower]
        if broker.replica is None or broker.epoch != response.request.epoch:
            return
        step = broker.replica.as_follower.take_fetched(
            response.request.position, response.fetched, memoryview(bytearray(response.records)), NOW
        )
        assert not isinstance(step, StartFromTier)
        if isinstance(step, Retry):
            assert step.error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @rule(number=brokers, times=st.integers(1, 4))
    def exchange(self, number: int, times: int) -> None:
        """Fetch `times` times without faults of the network."""
        for _ in range(times):
            request = self.send_fetch(number)
            response = self.response(request) if request is not None else None
            if response is not None:
                self.take(response)

    @rule(number=brokers)
    def fetch(self, number: int) -> None:
        request = self.send_fetch(number)
        if request is not None:
            self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(pick=picks, again=st.booleans())
    def deliver_request(self, pick: int, again: bool) -> None:
        """`again`: the request stays in the network and may be delivered again."""
        at = pick % len(self.requests)
        request = self.requests[at] if again else self.requests.pop(at)
        response = self.response(request)
        if response is not None:
            self.responses.append(response)

    @precondition(lambda self: self.responses)
    @rule(pick=picks, again=st.booleans())
    def deliver_response(self, pick: int, again: bool) -> None:
        at = pick % len(self.responses)
        self.take(self.responses[at] if again else self.responses.pop(at))

    @rule()
    def lose_all_messages(self) -> None:
        self.requests.clear()
        self.responses.clear()

    @rule(count=st.integers(1, 3), copied_to=st.sets(brokers), times=st.integers(1, 3))
    def produce_and_copy(self, count: int, copied_to: set[int], times: int) -> None:
        """The usual case: records are produced, and some followers fetch them."""
        for number in BROKERS:
            self.produce(number, count, LEADER)
        for number in sorted(copied_to):
            self.exchange(number, times)

    # -- the in-sync set --

    def propose(self, number: int) -> Proposed | None:
        broker = self.brokers[number]
        if broker.replica is None or broker.view is None:
            return None
        proposal = broker.replica.as_leader.isr_proposal(self.now, LAG_MS, broker.view.live)
        return None if proposal is None else Proposed(number, broker.epoch, broker.replica, proposal)

    def decide(self, proposed: Proposed, *, delivered: bool) -> None:
        """The controller decides. `delivered`: whether its response reaches the leader."""
        if self.leaves_no_disk(
            lambda copied: copied.alter(proposed.broker, proposed.epoch, proposed.proposal)
        ):
            return
        error = self.controller.alter(proposed.broker, proposed.epoch, proposed.proposal)
        view = self.controller.view
        if self.brokers[proposed.broker].replica is not proposed.replica:
            return
        if delivered:
            proposed.replica.as_leader.on_isr_response(
                proposed.proposal, error, view.leader_epoch, view.partition_epoch
            )
        else:
            proposed.replica.as_leader.on_isr_failure(proposed.proposal)

    @rule(number=brokers, delivered=st.booleans())
    def alter(self, number: int, delivered: bool) -> None:
        proposed = self.propose(number)
        if proposed is not None:
            self.decide(proposed, delivered=delivered)

    @rule(number=brokers, timed_out=st.booleans())
    def send_proposal(self, number: int, timed_out: bool) -> None:
        """Send a proposal, which the controller may decide on long after the leader's request timed out."""
        proposed = self.propose(number)
        if proposed is not None:
            self.proposed.append(proposed)
            if timed_out:
                proposed.replica.as_leader.on_isr_failure(proposed.proposal)

    @precondition(lambda self: self.proposed)
    @rule(pick=picks, delivered=st.booleans())
    def deliver_proposal(self, pick: int, delivered: bool) -> None:
        self.decide(self.proposed.pop(pick % len(self.proposed)), delivered=delivered)

    # -- brokers and the controller --

    @rule(number=brokers)
    def hear_image(self, number: int) -> None:
        if self.brokers[number].replica is not None:
            self.hear(self.brokers[number])

    @rule()
    def all_hear_images(self) -> None:
        for number in BROKERS:
            self.hear_image(number)

    @rule(number=brokers)
    def fence(self, number: int) -> None:
        """Fence a broker. Its process may still run, and acts as leader until it learns of the change."""
        if not self.leaves_no_disk(lambda copied: copied.fence(number)):
            self.controller.fence(number)

    def leaves_no_disk(self, change: Callable[[ModelController | RealController], object]) -> bool:
        """Whether every replica that is in sync or eligible after the change is down and has lost unsynced
        bytes. The guarantees do not cover that."""
        copied = self.controller.copied()
        change(copied)
        return all(self.brokers[other].lost for other in copied.members)

    @rule(number=brokers)
    def unfence(self, number: int) -> None:
        if self.brokers[number].replica is not None:
            self.controller.unfence(number)

    @rule(choice=st.integers(0, 2), informed=st.sets(brokers))
    def move_leadership(self, choice: int, informed: set[int]) -> None:
        """Elect an in-sync replica. The `informed` brokers learn of it at once."""
        if not self.leaves_no_disk(lambda copied: copied.elect_anyone(choice)):
            self.controller.elect_anyone(choice)
        for number in sorted(informed):
            self.hear_image(number)

    @rule(informed=st.sets(brokers), crashes=st.booleans(), unsynced=st.sampled_from([KEPT, LOST]))
    def lose_the_leader(self, informed: set[int], crashes: bool, unsynced: str) -> None:
        """Fence the leader. `crashes`: its process crashes first; otherwise it continues to run."""
        leader = self.controller.view.leader
        if leader != NO_LEADER:
            if crashes:
                self.crash(leader, unsynced, 0)
            self.fence(leader)
            for number in sorted(informed):
                self.hear_image(number)

    @rule(ms=st.sampled_from([1, LAG_MS // 2, 2 * LAG_MS]))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(
        number=brokers, unsynced=st.sampled_from([KEPT, LOST, LOST, TORN, ZEROED]), seed=st.integers(0, 999)
    )
    def crash(self, number: int, unsynced: str, seed: int) -> None:
        """`unsynced`: what happens to unsynced bytes and names (power_loss)."""
        broker = self.brokers[number]
        if broker.replica is None:
            return
        others = self.controller.members - {number}
        if not any(not self.brokers[other].lost for other in others):
            unsynced = KEPT  # the last replica that is sure to have all committed records must lose nothing
        broker.replica.close(clean=False)
        broker.replica = broker.view = None
        if unsynced != KEPT:
            broker.files.crash(unsynced, random.Random(seed))
            broker.files = PowerLoss(broker.directory, UNLIMITED)
            broker.lost = True

    @rule(number=brokers, is_informed=st.booleans())
    def restart(self, number: int, is_informed: bool) -> None:
        broker = self.brokers[number]
        if broker.replica is not None:
            return
        broker.epoch = self.controller.register(number, may_have_lost=broker.lost)
        self.open(broker)
        if is_informed:
            self.hear(broker)

    # -- log maintenance --

    @rule(number=brokers)
    def flush(self, number: int) -> None:
        replica = self.brokers[number].replica
        if replica is not None:
            replica.flush()
            replica.flushed()

    @rule(number=brokers)
    def write_checkpoint(self, number: int) -> None:
        broker = self.brokers[number]
        if broker.replica is not None:
            broker.checkpoint = broker.replica.checkpoint

    @rule(number=brokers)
    def roll(self, number: int) -> None:
        replica = self.brokers[number].replica
        if replica is not None:
            replica.log.roll(NOW)

    @rule(number=brokers, kept=st.integers(0, 3))
    def delete_records(self, number: int, kept: int) -> None:
        """DeleteRecords on a leader. `kept`: number of committed records to keep."""
        replica = self.brokers[number].replica
        if replica is None or not replica.is_leader:
            return
        target = max(replica.log_start_offset, replica.high_watermark - kept)
        replica.raise_log_start(target)
        assert replica.log_start_offset == target
        replica.apply_retention(NOW)
        for path in replica.log.take_due(NOW):
            replica.log.active.files.unlink(path, missing_ok=True)
        self.start = max(self.start, target)

    # -- invariants --

    def values(self, broker: Broker) -> tuple[int, list[Value]]:
        """First offset and all records in a replica's local log, cached until the log changes."""
        replica = broker.replica
        assert replica is not None
        first = replica.local_log_start_offset
        content = b"".join(data for _, data in replica.log.batches(first))
        cached = self.seen.get(broker.number)
        if cached is not None and cached[:2] == (content, first):
            return first, cached[2]
        records: list[Value] = []
        for batch, data in replica.log.batches(first):
            for record in iter_records(data, max_bytes=1 << 20):
                if record.offset >= first:
                    assert record.offset == first + len(records), "the log has a gap or repeats an offset"
                    records.append((batch.header.leader_epoch, record.value or b""))
        self.seen[broker.number] = (content, first, records)
        return first, records

    @invariant()
    def what_is_promised_holds(self) -> None:
        self.what_is_committed_stays()
        self.what_is_acknowledged_is_committed()
        self.members_are_known_to_the_leader()

    def what_is_committed_stays(self) -> None:
        logs: dict[int, tuple[int, list[Value]]] = {}
        for broker in self.brokers.values():
            if broker.replica is None:
                continue
            broker.replica.check()
            first, records = logs[broker.number] = self.values(broker)
            high_watermark = broker.replica.high_watermark
            assert high_watermark >= broker.high_watermark, "the high watermark decreased"
            broker.high_watermark = high_watermark
            if high_watermark > len(self.committed):
                assert first <= len(self.committed), "newly committed records are not in the local log"
                self.committed += records[len(self.committed) - first : high_watermark - first]
        for number, (first, records) in logs.items():
            replica = self.brokers[number].replica
            assert replica is not None
            committed = len(self.committed)
            must_have_all = number in self.controller.members
            if must_have_all:
                assert first + len(records) >= committed, self.described()
            upper = committed if must_have_all else min(committed, replica.high_watermark)
            lower = max(first, self.start)
            if lower < upper:
                assert records[lower - first : upper - first] == self.committed[lower:upper], number

    def described(self) -> str:
        """State of the controller and of all replicas, for the message of a failed assertion."""
        lines = [f"{len(self.committed)} committed, {self.controller.view}"]
        for number, broker in self.brokers.items():
            if (replica := broker.replica) is not None:
                ends = {other: follower.end_offset for other, follower in replica.followers.items()}
                role = (
                    f"leads {sorted(replica.in_sync)} {ends}"
                    if replica.is_leader
                    else f"follows {replica.leader}"
                )
                offsets = f"{replica.log_start_offset}..{replica.high_watermark}..{replica.log_end_offset}"
                lines.append(f"{number}: {role} in epoch {replica.leader_epoch}: {offsets}")
        return "\n".join(lines)

    def what_is_acknowledged_is_committed(self) -> None:
        unanswered: list[Sent] = []
        for sent in self.waiting:
            error = sent.replica.as_leader.acknowledgement(
                sent.base + len(sent.values), ALL, sent.leader_epoch
            )
            if error is None:
                unanswered.append(sent)
            elif error == ErrorCode.NONE:
                records = self.committed[sent.base : sent.base + len(sent.values)]
                assert records == [(sent.leader_epoch, value) for value in sent.values]
        self.waiting = unanswered

    def members_are_known_to_the_leader(self) -> None:
        """The leader's maximal ISR (KIP-497) includes the controller's in-sync set, so the leader commits no
        record without these replicas. Checked if the leader knows of its latest election."""
        if self.controller.view.leader == NO_LEADER:
            return
        leader = self.brokers[self.controller.view.leader].replica
        if (
            leader is not None
            and leader.is_leader
            and leader.leader_epoch == self.controller.view.leader_epoch
        ):
            assert {*self.controller.view.in_sync} <= leader._core._in_sync.maximal


def lives(count: int) -> settings:
    """Settings for `count` random runs of 60 steps each."""
    return settings(
        max_examples=count, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )


class PartitionOfTheCluster(Partition):
    """The same partition, with the real controller instead of the model."""

    controlled_by = RealController


TestReplication = Partition.TestCase
TestReplication.settings = lives(15)
TestReplicationInTheCluster = PartitionOfTheCluster.TestCase
TestReplicationInTheCluster.settings = lives(15)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [80, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("machine", [Partition, PartitionOfTheCluster])
def test_guarantees_hold_in_many_random_runs_of_three_replicas(machine: type[Partition], count: int) -> None:
    run_state_machine_as_test(machine, settings=lives(count))
