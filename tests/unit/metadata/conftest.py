"""A controller core with an image: commands in, replies out, a manual clock."""

import random
import uuid
from typing import Any

import pytest
from remote_segments import remote_segment

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.controller.partition_change import check_partition
from tierlog.metadata.controller.rules import election_rules
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage, RemotePartition
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import PartitionRecord, RemoteSegment, decode_records, encode_records
from tierlog.protocol.errors import ErrorCode


class World:
    def __init__(self) -> None:
        self.image = ClusterImage(cluster_id="c")
        self.rng = random.Random(1)
        self.now_ms = 1000
        self.log: list[bytes] = []
        self.in_session: set[int] = set()  # brokers with a valid session

    def do(self, command: c.AnyCommand) -> Any:
        """Decide on a command, and apply the records after encoding and decoding them."""
        command = c.decode_command(c.encode_command(command))
        decision = decide(self.image, command, self.now_ms, self.rng, self.in_session)
        payload = encode_records(decision.records)
        self.log.append(payload)
        self.image = apply_entry(self.image, self.image.index + 1, decode_records(payload))
        rules = election_rules(self.image)
        for topic in self.image.topics.values():
            for partition in topic.partitions:
                check_partition(partition, rules(topic.name))
        assert decode_image(encode_image(self.image)) == self.image
        return c.decode_reply(c.encode_reply(decision.reply))

    def brokers(self, *ids: int, racks: dict[int, str] | None = None) -> None:
        for broker_id in ids:
            self.register(broker_id, rack=(racks or {}).get(broker_id))

    def register(self, broker_id: int, incarnation: int = 0, **more: Any) -> c.BrokerRegistered:
        incarnated = uuid.UUID(int=incarnation or broker_id)
        values = {"host": "h", "port": 9092, "admin_url": "http://h:9644"} | more
        return self.do(c.RegisterBroker(broker_id=broker_id, incarnation=incarnated, **values))

    def create(self, name: str, **more: Any) -> c.TopicOutcome:
        return self.do(c.CreateTopics(topics=(c.NewTopic(name=name, **more),))).topics[0]

    def partition(self, name: str = "t", number: int = 0) -> PartitionRecord:
        return self.image.topic(name).partitions[number]

    def fence(self, broker_id: int, fenced: bool = True) -> c.Acknowledged:
        epoch = self.image.brokers[broker_id].broker_epoch
        return self.do(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))

    def in_sync(self, *members: int, name: str = "t", number: int = 0, **other: Any) -> c.PartitionsAltered:
        """The in-sync set that the partition's leader requests; `other` overrides fields."""
        partition = self.partition(name, number)
        change = c.IsrChange(
            topic_id=self.image.topic_ids[name],
            partition=number,
            leader_epoch=other.get("leader_epoch", partition.leader_epoch),
            partition_epoch=other.get("partition_epoch", partition.partition_epoch),
            in_sync=tuple(
                c.InSync(one, self.image.brokers[one].broker_epoch if one in self.image.brokers else 0)
                for one in members
            ),
        )
        broker_id = other.get("broker_id", partition.leader)
        epoch = other.get("broker_epoch", self.image.brokers[broker_id].broker_epoch)
        return self.do(c.AlterPartitions(broker_id=broker_id, broker_epoch=epoch, changes=(change,)))

    def remote(self, name: str, partition: int = 0) -> RemotePartition:
        return self.image.remote_partition(self.image.topic_ids[name], partition)

    def start_copy(self, topic: str, number: int, base: int, last: int, **more: Any) -> c.Acknowledged:
        values = {"broker_id": 1, "leader_epoch": 0, "partition": 0} | more
        return self.do(
            c.StartCopy(
                topic_id=self.image.topic_ids[topic],
                uuid=uuid.UUID(int=number),
                base_offset=base,
                last_offset=last,
                **values,
            )
        )

    def finish_copy(self, topic: str, entry: RemoteSegment, **more: Any) -> c.Acknowledged:
        values = {"broker_id": 1, "partition": 0} | more
        return self.do(c.FinishCopy(topic_id=self.image.topic_ids[topic], segment=entry, **values))

    def copy(self, topic: str, number: int, base: int, last: int) -> None:
        assert self.start_copy(topic, number, base, last).error == ErrorCode.NONE
        assert self.finish_copy(topic, segment(number, base, last)).error == ErrorCode.NONE


def segment(number: int, base: int, last: int, leader_epoch: int = 0) -> RemoteSegment:
    return remote_segment(base, last, uuid=uuid.UUID(int=number), leader_epoch=leader_epoch)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_segment() -> Any:
    return segment
