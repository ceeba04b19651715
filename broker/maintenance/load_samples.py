"""Samples of the load of all brokers: sizes of replicas, space on disks, and ends of logs.

By Kafka's own requests, DescribeLogDirs and ListOffsets, so that brokers of several versions understand each
other. Two samples give the bytes that were written in between. Called by the rebalancer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.metadata.controller.load_balance import Disks, Loads, PartitionLoad
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

CLIENT_ID = "rebalancer"
DESCRIBE_VERSION, LIST_OFFSETS_VERSION = 4, 8
LATEST, EARLIEST_LOCAL = -1, -4
TIMEOUT_S = 10.0
PARTITIONS_PER_REQUEST = 5_000  # well below the elements that a frame may have (ADR 0033)
INTERNAL_PREFIX = "__"
"""Coordinators' topics stay where they are: with a leader, all of its groups and transactions would move."""


@dataclass(slots=True)
class Sample:
    """`sizes`: of the leaders' replicas. `starts`: local log start offsets. `problems`: what could not be
    read, and why."""

    at_ms: int
    disks: dict[int, Disks] = field(default_factory=dict)
    sizes: dict[TopicPartition, int] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


async def take_sample(image: ClusterImage, network: Network, now_ms: int) -> Sample:
    """The load of all active brokers, one after the other. `now_ms`: monotonic."""
    sample = Sample(now_ms)
    led: dict[int, list[TopicPartition]] = {
        one: [] for one, broker in image.brokers.items() if broker.may_lead
    }
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if partition.leader in led and not topic.name.startswith(INTERNAL_PREFIX):
                led[partition.leader].append(TopicPartition(topic.name, number))
    for broker_id in sorted(led):
        try:
            caller = await network.connect(image.brokers[broker_id], CLIENT_ID)
            try:
                await _add(sample, broker_id, caller, led[broker_id])
            finally:
                caller.close()
        except Unreachable as why:
            sample.problems.append(f"the load of broker {broker_id} cannot be read: {why}")
    return sample


def loads_between(before: Sample, after: Sample) -> Loads:
    """Loads of the partitions that both samples have. A partition whose log is empty has no rate."""
    seconds = max(after.at_ms - before.at_ms, 1) / 1000
    found: dict[TopicPartition, PartitionLoad] = {}
    for where, end in after.ends.items():
        if where in before.ends and where in after.sizes and where in after.starts:
            offsets, size_bytes = end - after.starts[where], after.sizes[where]
            written = max(end - before.ends[where], 0) * (size_bytes / offsets if offsets > 0 else 0.0)
            found[where] = PartitionLoad(size_bytes, written / seconds)
    return Loads(partitions=found, disks=after.disks)


async def _add(sample: Sample, broker_id: int, caller: Caller, led: Sequence[TopicPartition]) -> None:
    key = BY_NAME["DescribeLogDirs"].key
    request = DescribeLogDirsRequest(topics=None)
    described: DescribeLogDirsResponse = await caller.call(key, DESCRIBE_VERSION, request, TIMEOUT_S)
    error = described.error_code or next((one.error_code for one in described.results if one.error_code), 0)
    if error or not described.results:
        why = ErrorCode(error).name if error else "it describes none"
        sample.problems.append(f"log directories of broker {broker_id}: {why}")
        return
    sample.disks[broker_id] = Disks(
        sum(one.total_bytes for one in described.results), sum(one.usable_bytes for one in described.results)
    )
    sizes = {
        TopicPartition(topic.name, one.partition_index): one.partition_size
        for result in described.results
        for topic in result.topics
        for one in topic.partitions
        if not one.is_future_key
    }
    sample.sizes.update({where: sizes[where] for where in led if where in sizes})
    for first in range(0, len(led), PARTITIONS_PER_REQUEST):
        some = led[first : first + PARTITIONS_PER_REQUEST]
        sample.starts.update(await _offsets(caller, some, EARLIEST_LOCAL))
        sample.ends.update(await _offsets(caller, some, LATEST))


async def _offsets(
    caller: Caller, partitions: Sequence[TopicPartition], position: int
) -> Mapping[TopicPartition, int]:
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[ListOffsetsPartition(partition_index=one, timestamp=position) for one in numbers],
        )
        for name, numbers in numbers_by_topic(partitions).items()
    ]
    request = ListOffsetsRequest(replica_id=-1, topics=topics)
    key = BY_NAME["ListOffsets"].key
    response: ListOffsetsResponse = await caller.call(key, LIST_OFFSETS_VERSION, request, TIMEOUT_S)
    return {
        TopicPartition(topic.name, one.partition_index): one.offset
        for topic in response.topics
        for one in topic.partitions
        if one.error_code == ErrorCode.NONE
    }
