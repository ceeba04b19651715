"""Random commands: replaying their records, from the start or from a snapshot, gives the same image.

Invariants of the manifest hold after each command: no gaps or overlaps, a log start that only grows, and
every announced object is listed or queued for deletion.
"""

import itertools
import random
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from remote_segments import remote_segment

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import (
    ConfigScope,
    PageRef,
    RemoteSegment,
    decode_records,
    encode_records,
)

NAMES = ["a", "b", "a.x"]
names = st.sampled_from(NAMES)
brokers = st.integers(0, 2)
small = st.integers(0, 6)


def segment(number: int, base: int, last: int, epoch: int) -> RemoteSegment:
    return remote_segment(
        base, last, uuid=uuid.UUID(int=number), leader_epochs=((epoch, base),), leader_epoch=epoch
    )


class Driver:
    """Turns random numbers into commands that are mostly valid for the current image."""

    def __init__(self) -> None:
        self.image = ClusterImage(cluster_id="c")
        self.log: list[bytes] = []
        self.rng = random.Random(3)
        self.numbers = iter(range(1, 10_000))
        self.announced: dict[int, uuid.UUID] = {}  # object -> topic
        self.confirmed: set[int] = set()

    def do(self, command: c.AnyCommand) -> object:
        decision = decide(self.image, command, 1000 + len(self.log), self.rng)
        payload = encode_records(decision.records)
        self.log.append(payload)
        self.image = apply_entry(self.image, self.image.index + 1, decode_records(payload))
        return decision.reply

    def remote_command(self, kind: int, name: str, a: int, b: int) -> None:
        topic = self.image.topic(name)
        if topic is None:
            return
        key, partition, remote = (
            topic.topic_id,
            topic.partitions[0],
            self.image.remote_partition(topic.topic_id, 0),
        )
        leader, epoch = partition.leader, partition.leader_epoch - (a == 6)
        if kind == 0:
            number, base = next(self.numbers), (remote.end_offset or remote.copied_end_offset or 0) + (a == 5)
            last = base + b
            for copy in remote.started:
                if a % 2 and copy.leader_epoch == epoch:
                    base, last = copy.last_offset + 1, copy.last_offset + 1 + b
            reply = self.do(
                c.StartCopy(
                    topic_id=key,
                    partition=0,
                    broker_id=leader,
                    leader_epoch=epoch,
                    uuid=uuid.UUID(int=number),
                    base_offset=base,
                    last_offset=last,
                )
            )
            if not reply.error:
                self.announced[number] = key
        elif kind in (1, 2) and remote.started:
            copy = remote.started[a % len(remote.started)]
            made = segment(copy.uuid.int, copy.base_offset, copy.last_offset, copy.leader_epoch)
            self.do(c.FinishCopy(topic_id=key, partition=0, broker_id=leader, segment=made))
        elif kind == 3 and remote.started:
            number = remote.started[-1].uuid
            self.do(c.AbandonCopy(topic_id=key, partition=0, leader_epoch=epoch, uuid=number))
        elif kind == 4:
            offset = remote.log_start_offset + b - 2
            self.do(c.MoveLogStart(topic_id=key, partition=0, leader_epoch=epoch, log_start_offset=offset))
        elif kind == 5 and remote.entries:
            oldest = remote.entries[: 1 + a % len(remote.entries)]
            number = next(self.numbers)
            page = PageRef(
                uuid=uuid.UUID(int=number),
                base_offset=oldest[0].base_offset,
                last_offset=oldest[-1].last_offset,
                entries=len(oldest),
                log_bytes=sum(entry.log_bytes for entry in oldest),
                max_timestamp=max(entry.max_timestamp for entry in oldest),
                crc32c=0,
            )
            self.do(
                c.StartSpill(
                    topic_id=key,
                    partition=0,
                    leader_epoch=epoch,
                    uuid=page.uuid,
                    base_offset=page.base_offset,
                    last_offset=page.last_offset,
                )
            )
            self.announced[number] = key  # from here on it must never be forgotten
            reply = self.do(c.SpillEntries(topic_id=key, partition=0, leader_epoch=epoch, page=page))
            if not reply.error:
                for entry in oldest:
                    self.announced.pop(entry.uuid.int, None)  # the page answers for them

    def elect_uncleanly(self, name: str, a: int) -> None:
        """The leader restarts, which begins a leader epoch; then it removes what diverges."""
        topic = self.image.topic(name)
        if topic is None or topic.partitions[0].leader < 0:
            return
        perform(self, "broker", topic.partitions[0].leader, 100 + len(self.log), a)
        partition = self.image.topics[topic.topic_id].partitions[0]
        entries = self.image.remote_partition(topic.topic_id, 0).entries
        self.do(
            c.RemoveDiverged(
                topic_id=topic.topic_id,
                partition=0,
                broker_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                from_offset=entries[a % len(entries)].base_offset if entries else 0,
            )
        )

    def switch(self, name: str, enabled: bool, above: int) -> None:
        """Switch tiering on or off; its leader then drops what is remote, and the log starts `above` more."""
        topic = self.image.topic(name)
        if topic is None:
            return
        settings = {"remote.storage.enable": str(enabled).lower(), "remote.log.delete.on.disable": "true"}
        changes = tuple(
            c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
            for key, value in settings.items()
        )
        resource = c.ConfigResource(scope=ConfigScope.TOPIC, name=name, changes=changes)
        self.do(c.AlterConfigs(resources=(resource,)))
        start = self.image.remote_partition(topic.topic_id, 0).log_start_offset + above
        epoch = topic.partitions[0].leader_epoch
        self.do(
            c.DropRemoteLog(topic_id=topic.topic_id, partition=0, leader_epoch=epoch, log_start_offset=start)
        )

    def confirm(self, count: int) -> None:
        uuids = tuple(sorted(self.image.delete_queue))[:count]
        self.do(c.ConfirmRemoteDeleted(uuids=uuids))
        self.confirmed |= {one.int for one in uuids}

    def check(self, before: ClusterImage) -> None:
        known = {line.uuid.int for line in self.image.delete_queue.values()} | self.confirmed
        for key, remote in self.image.remote.items():
            parts = [*remote.pages, *remote.entries]
            known |= {part.uuid.int for part in parts} | {copy.uuid.int for copy in remote.started}
            for one, following in itertools.pairwise(parts):
                assert following.base_offset == one.last_offset + 1
            if key in before.remote:
                assert remote.log_start_offset >= before.remote[key].log_start_offset
            assert all(part.last_offset >= remote.log_start_offset for part in parts)
        forgotten = [n for n, topic_id in self.announced.items() if not {n, topic_id.int} & known]
        assert not forgotten, "an object was forgotten"
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                assert partition.leader == -1 or partition.leader in partition.in_sync
                assert set(partition.in_sync) <= set(partition.replicas)


steps = st.one_of(
    st.tuples(st.just("broker"), brokers, st.integers(1, 3), small),
    st.tuples(st.just("fence"), brokers, st.booleans(), small),
    st.tuples(st.just("create"), names, st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.just("delete"), names, small, small),
    st.tuples(st.just("grow"), names, st.integers(1, 5), small),
    st.tuples(st.just("config"), names, st.sampled_from(["1", "2", None]), small),
    st.tuples(st.just("quota"), st.sampled_from(["a", "b", None]), st.sampled_from([1.0, 2.0, None]), small),
    st.tuples(st.just("ids"), brokers, small, small),
    st.tuples(st.just("confirm"), small, small, small),
    st.tuples(st.just("switch"), names, st.booleans(), small),
    st.tuples(st.just("unclean"), names, small, small),
    *[st.tuples(st.just("remote"), st.tuples(st.integers(0, 5), names), small, small)] * 4,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60), st.integers(0, 60))
def test_replay_equals_the_image(drawn: list, cut: int) -> None:
    driver = Driver()
    driver.do(register(0, 1))
    driver.do(register(1, 1))
    for kind, x, y, z in drawn:
        before = driver.image
        perform(driver, kind, x, y, z)
        driver.check(before)
    replayed = ClusterImage(cluster_id="c")
    for number, payload in enumerate(driver.log):
        replayed = apply_entry(replayed, number + 1, decode_records(payload))
        if number == cut:
            replayed = decode_image(encode_image(replayed))
    assert replayed == driver.image
    assert encode_image(replayed) == encode_image(driver.image)


def perform(driver: Driver, kind: str, x, y, z) -> None:  # type: ignore[no-untyped-def]
    broker = driver.image.brokers.get(x) if kind in ("fence", "ids") else None
    epoch = broker.broker_epoch if broker else 0
    match kind:
        case "broker":
            driver.do(register(x, y, start_fenced=z == 0))
        case "fence":
            driver.do(c.FenceBroker(broker_id=x, broker_epoch=epoch, fenced=y))
        case "create":
            configs = (("remote.storage.enable", "true"),)
            topic = c.NewTopic(name=x, partitions=y, replication_factor=z, configs=configs)
            driver.do(c.CreateTopics(topics=(topic,)))
        case "quota":
            key = ("producer_byte_rate", "consumer_byte_rate")[z % 2]
            change = c.QuotaAlteration(entity=(("user", x),), changes=(c.QuotaChange(key=key, value=y),))
            driver.do(c.AlterQuotas(alterations=(change,)))
        case "delete":
            driver.do(c.DeleteTopics(topics=(c.TopicRef(name=x),)))
        case "grow":
            driver.do(c.CreatePartitions(topics=(c.MorePartitions(name=x, count=y),)))
        case "config":
            operation = c.ConfigOperation.DELETE if y is None else c.ConfigOperation.SET
            change = c.ConfigChange(key="retention.ms", operation=operation, value=y)
            resource = c.ConfigResource(scope=ConfigScope.TOPIC, name=x, changes=(change,))
            driver.do(c.AlterConfigs(resources=(resource,)))
        case "ids":
            driver.do(c.AllocateProducerIds(broker_id=x, broker_epoch=epoch))
        case "switch":
            driver.switch(x, y, z)
        case "unclean":
            driver.elect_uncleanly(x, y)
        case "confirm":
            driver.confirm(x)
        case "remote":
            driver.remote_command(x[0], x[1], y, z)


def register(broker_id: int, incarnation: int, **more: bool) -> c.RegisterBroker:
    made = uuid.UUID(int=incarnation)
    return c.RegisterBroker(broker_id=broker_id, incarnation=made, host="h", port=1, admin_url="", **more)
