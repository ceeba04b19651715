#!/usr/bin/env python3
"""Memory and event loop lag of one broker that coordinates many transactions and groups.

    coordinators.py [--ids 10000] [--groups 2000] [--members 1000] [--partitions 10000]

Each case prints a JSON line: `ids` transactional ids, each of which commits one transaction; `groups` of
one member with a committed offset; one consumer group (KIP-848) of `members` that share a topic of
`partitions`: all in, one more, one less, heartbeats of all at once, and spread over an interval. `late`:
number of turns of the event loop above 10 ms.
"""

import argparse
import asyncio
import json
import struct
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import loop_lag
import suite
from meter import cpu_seconds, memory_mib
from topics import Topics

from tierlog.protocol.api import BY_NAME, decode_response, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    add_partitions_to_txn,
    consumer_group_heartbeat,
    end_txn,
    find_coordinator,
    init_producer_id,
    offset_commit,
)

AT_ONCE = 100
LATE = "0.01"
RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
GROUP, TRANSACTION = 0, 1
JOIN_EPOCH, LEAVE_EPOCH = 0, -1
HEARTBEAT_S = 0.5
INTERVAL_S = 5.0
"""Default of group.consumer.heartbeat.interval.ms."""
WITHIN_S = 300.0


class Connection:
    """Sends one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, bootstrap: str) -> "Connection":
        host, _, port = bootstrap.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def call(self, name: str, version: int, message: Any) -> Any:
        while True:
            self._writer.write(encode_request(BY_NAME[name], version, 1, "bench", message))
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            found = decode_response(BY_NAME[name], version, await self._reader.readexactly(size))[1]
            if getattr(found, "error_code", ErrorCode.NONE) not in RETRIED:
                return found
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self._writer.close()


class Figures(NamedTuple):
    """Since the start of a case."""

    broker: suite.Broker
    began: float
    memory: float
    cpu: float
    lag: loop_lag.Counts

    @classmethod
    def begin(cls, broker: suite.Broker) -> "Figures":
        lag = loop_lag.read(broker.admin)
        return cls(broker, time.monotonic(), memory_mib(broker.pid)[1], cpu_seconds(broker.pid), lag)

    def end(self) -> dict[str, float]:
        lag = loop_lag.since(self.lag, self.broker.admin)
        return {
            "wall_s": round(time.monotonic() - self.began, 2),
            "broker_cpu_s": round(cpu_seconds(self.broker.pid) - self.cpu, 2),
            "more_rss_mib": round(memory_mib(self.broker.pid)[1] - self.memory, 1),
            "worst_lag_ms": loop_lag.worst_ms(lag),
            "late": loop_lag.later_than(lag, LATE),
            "turns": loop_lag.samples(lag),
        }


async def find_coordinators(broker: suite.Broker) -> None:
    """As clients do first: it creates the topics of the coordinators."""
    connection = await Connection.open(broker.bootstrap)
    for kind in (GROUP, TRANSACTION):
        request = find_coordinator.FindCoordinatorRequest(key="first", key_type=kind)
        await connection.call("FindCoordinator", 3, request)
    connection.close()


async def transactional_ids(broker: suite.Broker, topic: str, count: int) -> dict[str, float]:
    figures = Figures.begin(broker)

    async def transact(connection: Connection, name: str) -> None:
        init = init_producer_id.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        made = await connection.call("InitProducerId", 4, init)
        added = add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=[0])
        add = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=[added],
        )
        await connection.call("AddPartitionsToTxn", 3, add)
        end = end_txn.EndTxnRequest(
            transactional_id=name,
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            committed=True,
        )
        ended = await connection.call("EndTxn", 3, end)
        require(ended.error_code, name)

    await in_connections(broker, [f"id-{number}" for number in range(count)], transact)
    return figures.end()


async def groups(broker: suite.Broker, topic: str, count: int) -> dict[str, float]:
    figures = Figures.begin(broker)

    async def join(connection: Connection, name: str) -> None:
        member = await Member.join(connection, name, topic)
        partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        committed = await connection.call(
            "OffsetCommit",
            9,
            offset_commit.OffsetCommitRequest(
                group_id=name,
                member_id=member.id,
                generation_id_or_member_epoch=member.epoch,
                topics=[offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])],
            ),
        )
        require(committed.topics[0].partitions[0].error_code, name)

    await in_connections(broker, [f"group-{number}" for number in range(count)], join)
    return figures.end()


class Member:
    """A member of a consumer group that follows each assignment at once."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection, self.group, self.topic = connection, group, topic
        self.id, self.epoch = str(uuid.uuid4()), JOIN_EPOCH
        self.owned: list[consumer_group_heartbeat.TopicPartitions] = []

    @classmethod
    async def join(cls, connection: Connection, group: str, topic: str) -> "Member":
        member = cls(connection, group, topic)
        await member.heartbeat()
        return member

    @property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.owned)

    async def heartbeat(self, *, says_owned: bool = True) -> bool:
        """True if the assignment changed."""
        joins = self.epoch == JOIN_EPOCH
        found = await self.connection.call(
            "ConsumerGroupHeartbeat",
            1,
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=60_000 if joins else -1,
                subscribed_topic_names=[self.topic] if joins else None,
                topic_partitions=self.owned if joins or says_owned else None,
            ),
        )
        require(found.error_code, f"{self.group}: {found.error_message}")
        self.epoch = found.member_epoch
        if found.assignment is None:
            return False
        self.owned = found.assignment.topic_partitions
        return True

    async def leave(self) -> None:
        self.epoch = LEAVE_EPOCH
        await self.heartbeat()


async def one_group(
    broker: suite.Broker, topic: str, count: int, partitions: int
) -> dict[str, dict[str, float]]:
    connections = [await Connection.open(broker.bootstrap) for _ in range(count + 1)]
    found = {}
    figures = Figures.begin(broker)
    joined = await asyncio.gather(*(Member.join(each, "one", topic) for each in connections[:-1]))
    members = list(joined)
    await await_balance(members, partitions)
    found["all in"] = figures.end()
    figures = Figures.begin(broker)
    members.append(await Member.join(connections[-1], "one", topic))
    await await_balance(members, partitions)
    found["one more"] = figures.end()
    figures = Figures.begin(broker)
    await members.pop(0).leave()
    await await_balance(members, partitions)
    found["one less"] = figures.end()
    figures = Figures.begin(broker)
    for _ in range(10):
        await asyncio.gather(*(member.heartbeat(says_owned=False) for member in members))
    found["ten heartbeats each"] = figures.end()
    figures = Figures.begin(broker)
    await asyncio.gather(
        *(beat_after(INTERVAL_S * number / len(members), each) for number, each in enumerate(members))
    )
    found["one heartbeat each, spread over 5 s"] = figures.end()
    for connection in connections:
        connection.close()
    return found


async def await_balance(members: list[Member], partitions: int) -> None:
    """Heartbeats until all partitions are owned, by each member as many, and in one epoch."""
    deadline = time.monotonic() + WITHIN_S
    least = partitions // len(members)
    while True:
        await asyncio.gather(*(beat(member) for member in members))
        shares = [member.partitions for member in members]
        if sum(shares) == partitions and min(shares) >= least and len({m.epoch for m in members}) == 1:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sum(shares)} of {partitions} partitions are owned after {WITHIN_S} s")
        await asyncio.sleep(HEARTBEAT_S)


async def beat(member: Member) -> None:
    while await member.heartbeat():
        pass  # says at once what it owns now


async def beat_after(delay_s: float, member: Member) -> None:
    await asyncio.sleep(delay_s)
    await member.heartbeat(says_owned=False)


async def in_connections(broker: suite.Broker, names: list[str], work: Any) -> None:
    async def run(some: list[str]) -> None:
        connection = await Connection.open(broker.bootstrap)
        for name in some:
            await work(connection, name)
        connection.close()

    await asyncio.gather(*(run(names[number::AT_ONCE]) for number in range(AT_ONCE)))


def require(error: int, what: str) -> None:
    if error != ErrorCode.NONE:
        raise RuntimeError(f"{what}: {ErrorCode(error).name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=2_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    options = parser.parse_args()
    with suite.tierlog_broker() as broker:
        topics = Topics(broker.bootstrap)
        small, large = topics.create(1), topics.create(options.partitions)
        asyncio.run(find_coordinators(broker))
        print_case("transactional ids", asyncio.run(transactional_ids(broker, small, options.ids)))
        print_case("groups", asyncio.run(groups(broker, small, options.groups)))
        found = asyncio.run(one_group(broker, large, options.members, options.partitions))
        for name, figures in found.items():
            print_case(f"one group: {name}", figures)


def print_case(name: str, figures: dict[str, float]) -> None:
    print(json.dumps({"case": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
