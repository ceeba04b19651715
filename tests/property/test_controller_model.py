"""Invariants of every partition under random registrations, fencing, ISR changes and reassignments.

A model tracks the content of each broker's disk. A leader without an unclean election must have every
committed write.
"""

import random
import uuid
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.controller.partition_change import check_partition
from tierlog.metadata.controller.reassignment import under_way
from tierlog.metadata.controller.rules import election_rules, min_in_sync
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import ConfigScope, PartitionRecord, decode_records, encode_records

BROKERS = range(5)
TOPIC, PARTITIONS = "t", 3


class Disks:
    """Content of each replica of one partition: numbers of writes, in the order in which leaders appended
    them.

    `committed` are those acknowledged to acks=all; the high watermark moves only while the in-sync set has
    min.insync.replicas (KIP-966).
    """

    def __init__(self) -> None:
        self.logs: dict[int, list[int]] = {}
        self.committed = 0
        self.sure: list[int] = []

    def write(self, number: int, partition: PartitionRecord, least: int) -> None:
        """Append to the leader and all in-sync replicas. Committed if these are at least `least`."""
        log = self.logs.setdefault(partition.leader, [])
        log.append(number)
        for follower in partition.in_sync:
            self.logs[follower] = list(log)
        if len(partition.in_sync) >= min(least, len(partition.replicas)):
            self.sure = list(log)

    def lose(self, broker_id: int, count: int) -> None:
        """Power loss: the newest writes are gone from this disk."""
        log = self.logs.setdefault(broker_id, [])
        del log[max(0, len(log) - count) :]

    def follow(self, broker_id: int, leader: int) -> None:
        self.logs[broker_id] = list(self.logs.setdefault(leader, []))

    def holds_all(self, broker_id: int) -> bool:
        return self.logs.get(broker_id, [])[: len(self.sure)] == self.sure


class Cluster:
    def __init__(self, least: int, unclean: bool) -> None:
        self.image = ClusterImage(cluster_id="model")
        self.rng = random.Random(7)
        self.incarnations = iter(range(1, 10_000))
        self.writes = iter(range(10_000))
        self.proposed: list[int] = []  # by a leader, in the command under way
        self.forgetful: set[int] = set()  # it registers with log directories that may have lost records
        self.disks = [Disks() for _ in range(PARTITIONS)]
        for broker_id in BROKERS:
            self.register(broker_id)
        configs = (
            ("min.insync.replicas", str(least)),
            ("unclean.leader.election.enable", str(unclean).lower()),
        )
        topic = c.NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs)
        self.do(c.CreateTopics(topics=(topic,)))
        self.lost = [False] * PARTITIONS  # an unclean election, or loss of all that were in sync

    # --- commands

    def do(self, command: c.AnyCommand) -> c.AnyReply:
        decision = decide(self.image, command, 0, self.rng)
        before = self.image
        records = decode_records(encode_records(decision.records))
        self.image = apply_entry(before, before.index + 1, records)
        if before.topic(TOPIC) is not None:
            self.check(before)
        return decision.reply

    def register(self, broker_id: int, *, fenced: bool = False, lost: bool = False) -> None:
        self.do(
            c.RegisterBroker(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=next(self.incarnations)),
                host=f"h{broker_id}",
                port=1,
                admin_url="",
                start_fenced=fenced,
                may_have_lost=lost,
            )
        )

    def restart(self, broker_id: int, lost: int, fenced: bool) -> None:
        """Restart a broker that has lost `lost` writes of each log. It must register that it may have lost
        some."""
        for number, disks in enumerate(self.disks):
            partition = self.partition(number)
            others = (set(partition.in_sync) | set(partition.eligible)) - {broker_id}
            disks.lose(broker_id, lost)
            if lost and not any(disks.holds_all(one) for one in others) and not disks.holds_all(broker_id):
                self.give_up(number)
        self.forgetful = {broker_id} if lost else set()
        self.register(broker_id, fenced=fenced, lost=lost > 0)
        self.forgetful = set()

    def fail(self, broker_id: int, number: int) -> None:
        """The replica's disk fails, and the broker continues."""
        self.report(broker_id, failed=number)

    def fill(self, broker_id: int, number: int, full: bool) -> None:
        """The replica's disk becomes full, or has free space again."""
        self.report(broker_id, **{"full" if full else "has_space": number})

    def wipe(self, broker_id: int, number: int) -> None:
        """The broker restarts with a new disk, without the partition."""
        partition, disks = self.partition(number), self.disks[number]
        others = (set(partition.in_sync) | set(partition.eligible)) - {broker_id}
        disks.lose(broker_id, 10_000)
        if not any(disks.holds_all(one) for one in others) and not disks.holds_all(broker_id):
            self.give_up(number)
        self.forgetful = {broker_id}
        self.register(broker_id, fenced=True, lost=True)
        self.report(broker_id, emptied=number)
        self.fence(broker_id, False)
        self.forgetful = set()

    def report(self, broker_id: int, **named: int) -> None:
        reported = {kind: ((self.image.topic_ids[TOPIC], number),) for kind, number in named.items()}
        self.do(c.ReportReplicas(broker_id=broker_id, broker_epoch=self.epoch(broker_id), **reported))

    def fence(self, broker_id: int, fenced: bool) -> None:
        if broker_id in self.image.brokers:
            epoch = self.image.brokers[broker_id].broker_epoch
            self.do(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))

    def stop(self, broker_id: int) -> None:
        if broker_id in self.image.brokers:
            epoch = self.image.brokers[broker_id].broker_epoch
            self.do(c.StopBroker(broker_id=broker_id, broker_epoch=epoch))

    def shrink(self, number: int, broker_id: int) -> None:
        partition = self.partition(number)
        if partition.leader != -1:
            self.ask(number, [one for one in partition.in_sync if one != broker_id])

    def expand(self, number: int, wanted: Iterable[int]) -> None:
        """Followers catch up, truncating what the leader lacks, and the leader proposes them."""
        partition = self.partition(number)
        if partition.leader == -1:
            return
        joining = [one for one in wanted if one in partition.replicas and one not in partition.in_sync]
        for one in joining:
            if self.serves(one):
                self.disks[number].follow(one, partition.leader)
        self.ask(number, [*partition.in_sync, *joining])

    def ask(self, number: int, members: list[int]) -> None:
        partition = self.partition(number)
        change = c.IsrChange(
            topic_id=self.image.topic_ids[TOPIC],
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple(c.InSync(one, self.epoch(one)) for one in members),
        )
        leader, self.proposed = partition.leader, members
        self.do(c.AlterPartitions(broker_id=leader, broker_epoch=self.epoch(leader), changes=(change,)))
        self.proposed = []

    def write(self, number: int) -> None:
        partition = self.partition(number)
        if partition.leader != -1:
            self.disks[number].write(next(self.writes), partition, min_in_sync(self.image, TOPIC))

    def configure(self, key: str, value: str) -> None:
        change = c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
        resource = c.ConfigResource(scope=ConfigScope.TOPIC, name=TOPIC, changes=(change,))
        self.do(c.AlterConfigs(resources=(resource,)))

    # --- what is

    def partition(self, number: int) -> PartitionRecord:
        topic = self.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[number]

    def epoch(self, broker_id: int) -> int:
        broker = self.image.brokers.get(broker_id)
        return broker.broker_epoch if broker else 0

    def serves(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def give_up(self, number: int) -> None:
        """No broker with all records is left, so the next leader's log counts as the committed one."""
        self.lost[number] = True

    # --- what must hold

    def check(self, before: ClusterImage) -> None:
        rules = election_rules(self.image)(TOPIC)
        old = before.topic(TOPIC)
        assert old is not None
        for number in range(PARTITIONS):
            was, now = old.partitions[number], self.partition(number)
            check_partition(now, rules)
            assert now.leader == -1 or now.leader in rules.live
            assert now.leader_epoch >= was.leader_epoch
            assert now.partition_epoch - was.partition_epoch == (now != was)
            assert now.leader == was.leader or now.leader_epoch > was.leader_epoch
            enough = min(rules.min_in_sync, len(now.replicas))
            assert not now.eligible or len(now.in_sync) < enough
            self.check_leader(number, was, now, rules.unclean)
            if set(was.replicas) - set(now.replicas) and not rules.unclean:
                stay = len(set(now.replicas) - set(now.removing))  # a move to one replica needs one
                holders = min(len({*was.in_sync, *was.eligible}), rules.min_in_sync, stay)
                assert len({*now.in_sync, *now.eligible}) >= holders, "too few hold what was committed"
            for one in (*now.in_sync, *now.eligible):
                assert self.lost[number] or self.disks[number].holds_all(one)

    def check_leader(self, number: int, was: PartitionRecord, now: PartitionRecord, unclean: bool) -> None:
        if now.leader in (-1, was.leader) and now.leader_epoch == was.leader_epoch:
            return
        members = {*was.in_sync, *was.eligible, *self.proposed}
        assert now.leader in members or now.leader == -1 or unclean
        clean = now.leader in members - self.forgetful
        disks = self.disks[number]
        if now.leader != -1 and (self.lost[number] or (unclean and not clean)):
            disks.sure = list(disks.logs.setdefault(now.leader, []))
            for one in now.in_sync:
                disks.follow(one, now.leader)
            self.lost[number] = False
        elif now.leader != -1:
            assert disks.holds_all(now.leader), "a leader lacks what was committed"

    def heal(self) -> None:
        """All brokers return and catch up: every partition gets a leader, and every move completes."""
        failed = {one for number in range(PARTITIONS) for one in self.partition(number).offline}
        for broker_id in BROKERS:
            broker = self.image.brokers.get(broker_id)
            if broker is None or broker.stopping or broker_id in failed:
                self.register(broker_id)
            self.fence(broker_id, False)
            for number in range(PARTITIONS):
                self.fill(broker_id, number, False)
        for number in range(PARTITIONS):
            if self.partition(number).leader == -1:  # no disk is left: an operator decides
                assert set(self.partition(number).emptied) & set(self.partition(number).in_sync)
                self.configure("unclean.leader.election.enable", "true")
        for number in range(PARTITIONS):
            for _ in range(2):  # the end of a move changes the leader
                self.expand(number, self.partition(number).replicas)
            partition = self.partition(number)
            assert partition.leader != -1
            assert set(partition.in_sync) == set(partition.replicas)
            assert not (partition.offline or partition.emptied or partition.full)
        assert list(under_way(self.image)) == []


brokers = st.sampled_from(BROKERS)
numbers = st.integers(0, PARTITIONS - 1)
members = st.lists(brokers, min_size=1, max_size=4, unique=True)
steps = st.one_of(
    st.tuples(st.just("restart"), brokers, st.sampled_from([0, 0, 1, 5]), st.booleans()),
    st.tuples(st.just("fence"), brokers, st.booleans()),
    st.tuples(st.just("stop"), brokers),
    st.tuples(st.just("fail"), brokers, numbers),
    st.tuples(st.just("fill"), brokers, numbers, st.booleans()),
    st.tuples(st.just("wipe"), brokers, numbers),
    st.tuples(st.just("unregister"), brokers),
    st.tuples(st.just("shrink"), numbers, brokers),
    st.tuples(st.just("expand"), numbers, members),
    st.tuples(st.just("elect"), st.sampled_from(c.ElectionKind), numbers),
    st.tuples(st.just("move"), numbers, members),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("minimum"), st.integers(1, 4)),
    *[st.tuples(st.just("write"), numbers)] * 3,
)


MOVE_TO_ONE: list[tuple] = [
    ("stop", 0),
    ("move", 0, [0, 3]),
    ("expand", 0, [1, 3]),
    ("minimum", 3),
    ("move", 0, [0]),
]


@example(MOVE_TO_ONE, 1, False)
@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=60), st.integers(1, 3), st.booleans())
def test_elected_leaders_have_all_committed_writes(drawn: list[tuple], least: int, unclean: bool) -> None:
    run(drawn, least, unclean)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [300, pytest.param(5000, marks=pytest.mark.nightly)])
def test_elected_leaders_have_all_committed_writes_in_long_runs(runs: int) -> None:
    drawn = given(st.lists(steps, max_size=100), st.integers(1, 3), st.booleans())
    settings(max_examples=runs, deadline=None)(drawn(run))()


def run(drawn: list[tuple], least: int, unclean: bool) -> None:
    cluster = Cluster(least, unclean)
    for kind, *arguments in drawn:
        perform(cluster, kind, *arguments)
    assert decode_image(encode_image(cluster.image)) == cluster.image
    cluster.heal()


def perform(cluster: Cluster, kind: str, *arguments) -> None:  # type: ignore[no-untyped-def]
    match kind:
        case "restart":
            cluster.restart(*arguments)
        case "fence":
            cluster.fence(*arguments)
        case "fail":
            cluster.fail(*arguments)
        case "fill":
            cluster.fill(*arguments)
        case "wipe":
            cluster.wipe(*arguments)
        case "stop":
            cluster.stop(*arguments)
        case "unregister":
            cluster.do(c.UnregisterBroker(broker_id=arguments[0]))
        case "shrink":
            cluster.shrink(*arguments)
        case "expand":
            cluster.expand(*arguments)
        case "elect":
            cluster.do(c.ElectLeaders(partitions=((TOPIC, arguments[1]),), kind=arguments[0]))
        case "move":
            cluster.do(c.Reassign(changes=((TOPIC, arguments[0], tuple(arguments[1])),)))
        case "cancel":
            cluster.do(c.Reassign(changes=((TOPIC, arguments[0], None),)))
        case "minimum":
            cluster.configure("min.insync.replicas", str(arguments[0]))
        case "write":
            cluster.write(*arguments)
