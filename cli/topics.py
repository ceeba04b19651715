"""Requests of the `topic` commands. Returns plain rows; the commands parse options and print."""

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from tierlog.base.types import TopicPartition
from tierlog.cli import configs
from tierlog.cli.client import KafkaClient, is_retriable, raise_for
from tierlog.cli.errors import CliError, ExitCode
from tierlog.client.errors import UNKNOWN_END_REMEDY, unknown_ends
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tierlog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from tierlog.protocol.messages.list_offsets import ListOffsetsPartitionResponse
    from tierlog.protocol.messages.metadata import MetadataResponseTopic

TOPIC_CONFIG_SOURCE = 1  # DescribeConfigs: DYNAMIC_TOPIC_CONFIG, set on the topic itself
TIMEOUT_MS = 30_000
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5
END_TIMEOUT_S = 5.0
"""How long a command that can do without waits for the end of a partition. After an election it is known at
once if enough replicas are in sync."""

Row = dict[str, Any]


def create(
    client: KafkaClient,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    *,
    validate_only: bool,
) -> None:
    """Create a topic and wait until every partition has a leader. -1: the broker's default."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    response = client.call(
        CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    )
    for result in response.topics:
        raise_for(result.error_code, result.error_message, f"topic {name}")
        if not validate_only:
            for partition in range(max(result.num_partitions, 0)):
                client.leader(name, partition)


def delete(client: KafkaClient, name: str) -> None:
    request = DeleteTopicsRequest(
        topic_names=[name], topics=[DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS
    )
    for result in client.call(request).responses:
        raise_for(result.error_code, result.error_message, f"topic {name}")


def add_partitions(client: KafkaClient, name: str, count: int) -> None:
    """Grow a topic to a total of `count` partitions."""
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    for result in client.call(CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)).results:
        raise_for(result.error_code, result.error_message, f"topic {name}")


def rows(client: KafkaClient, *, internal: bool) -> list[Row]:
    """One row per topic. `offsets`: offsets in both tiers; None if a partition has no live leader."""
    found = []
    topics = [topic for topic in client.metadata().topics if internal or not topic.is_internal]
    silent = client.silent_leaders(topics)
    for topic in sorted(topics, key=lambda topic: topic.name or ""):
        name = topic.name or ""
        count = len(topic.partitions)
        start, end = (known_offsets(client, topic, one, silent=silent) for one in (EARLIEST, LATEST))
        is_complete = len(start.keys() & end.keys()) == count
        found.append(
            {
                "topic": name,
                "id": str(topic.topic_id),
                "partitions": count,
                "replicas": len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
                "offsets": sum(end.values()) - sum(start.values()) if is_complete else None,
            }
        )
    return found


def partition_rows(client: KafkaClient, name: str) -> list[Row]:
    """One row per partition: leader, replicas, and offsets of both tiers (ends exclusive). Offsets are None
    if the partition has no live leader."""
    topic = client.topic(name)
    silent = client.silent_leaders([topic])
    start, end, local, tiered = (
        known_offsets(client, topic, position, silent=silent)
        for position in (EARLIEST, LATEST, EARLIEST_LOCAL, LATEST_TIERED)
    )
    return [
        {
            "partition": index,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replica_nodes,
            "in_sync": partition.isr_nodes,
            "log_start_offset": start.get(index),
            "local_log_start_offset": local.get(index),
            "remote_end_offset": tiered[index] + 1 if tiered.get(index, -1) >= 0 else None,
            "log_end_offset": end.get(index),
        }
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        for index in [partition.partition_index]
    ]


def config_rows(client: KafkaClient, name: str, *, everything: bool) -> list[Row]:
    """Settings of a topic: those set on it, or all (`everything`)."""
    found = []
    for config in configs.described(client, configs.TOPIC_RESOURCE, name, f"topic {name}"):
        own = config.config_source == TOPIC_CONFIG_SOURCE
        if own or everything:
            found.append({"name": config.name, "value": config.value, "set_on_topic": own})
    return found


def offsets(
    client: KafkaClient,
    name: str,
    partitions: Collection[int],
    position: int,
    *,
    unknown: set[int] | None = None,
    wait_s: float = END_TIMEOUT_S,
) -> dict[int, int]:
    """Partition -> offset of a position: a timestamp, or one of ListOffsets' negative values. Waits for
    partitions without a leader. Raises CliError at once if the metadata quorum has no leader.

    `unknown`: gets the partitions whose leader does not know their end after `wait_s` (KIP-207). Without it
    they are an error after the client's timeout.
    """
    started, is_first = time.monotonic(), True
    deadline = started + client.timeout_s
    while True:
        by_leader: dict[int, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(client.leader(name, partition), []).append(partition)
        found: dict[int, int] = {}
        without_end: set[int] = set()
        problem = other = ""
        for leader, group in by_leader.items():
            other = _add_offsets(found, without_end, client, leader, name, group, position) or other
        if without_end and not other:
            problem = f"offsets of {name}-{min(without_end)}: {ErrorCode.OFFSET_NOT_AVAILABLE.name}"
            if unknown is not None and time.monotonic() >= started + wait_s:
                unknown.update(without_end)
                return found
        problem = other or problem
        if not problem:
            return found
        if is_first:
            client.require_quorum(problem)
        is_first = False
        client.refresh(name, deadline, problem)


def start_offsets(
    client: KafkaClient,
    name: str,
    partitions: Collection[int],
    position: int,
    *,
    unknown: set[int],
    wait_s: float = END_TIMEOUT_S,
) -> dict[int, int]:
    """Like `offsets`, for a reader: a timestamp behind the last record is the end."""
    found = offsets(client, name, partitions, position, unknown=unknown, wait_s=wait_s)
    if behind := [partition for partition, offset in found.items() if offset < 0]:
        ends = offsets(client, name, behind, LATEST, unknown=unknown, wait_s=wait_s)
        found = {one: ends.get(one, offset) for one, offset in found.items() if one not in unknown}
    return found


def end_unknown(name: str, partitions: Collection[int], problem: str) -> CliError:
    """`problem`: what happens to these partitions, because their leaders do not know their ends."""
    names = [TopicPartition(name, partition) for partition in sorted(partitions)]
    return CliError(f"{problem}: {unknown_ends(names)}", hint=UNKNOWN_END_REMEDY)


def _add_offsets(
    found: dict[int, int],
    without_end: set[int],
    client: KafkaClient,
    leader: int,
    name: str,
    partitions: list[int],
    position: int,
) -> str:
    """Add the offsets of a leader's partitions, and those of which it does not know the end. Returns a
    problem that may end once another broker leads."""
    problem = ""
    try:
        results = _listed(client, leader, name, partitions, position)
    except CliError as failure:
        if failure.code != ExitCode.UNREACHABLE:
            raise
        return failure.message
    for result in results:
        subject = f"offsets of {name}-{result.partition_index}"
        if result.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
            without_end.add(result.partition_index)
            continue
        if result.error_code and is_retriable(result.error_code):
            problem = f"{subject}: {ErrorCode(result.error_code).name}"
            continue
        raise_for(result.error_code, None, subject)
        found[result.partition_index] = result.offset
    return problem


def known_offsets(
    client: KafkaClient,
    topic: "MetadataResponseTopic",
    position: int,
    *,
    committed: bool = False,
    silent: set[int] | None = None,
    failed: dict[int, ErrorCode] | None = None,
) -> dict[int, int]:
    """Like `offsets`, but leaves out partitions without a live leader. `committed`: for readers of committed
    records, whose end is the last stable offset. `silent`: brokers that did not respond to an earlier call,
    which are not asked again; this call adds to them. `failed`: gets the errors of the other partitions."""
    silent = set() if silent is None else silent
    name = topic.name or ""
    by_leader: dict[int, list[int]] = {}
    for partition in topic.partitions:
        if client.is_live(partition.leader_id) and partition.leader_id not in silent:
            by_leader.setdefault(partition.leader_id, []).append(partition.partition_index)
    found = {}
    for leader, partitions in by_leader.items():
        try:
            results = _listed(client, leader, name, partitions, position, committed=committed)
        except CliError as failure:
            if failure.code != ExitCode.UNREACHABLE:
                raise
            silent.add(leader)  # it has just died, or hangs
            continue
        found.update({one.partition_index: one.offset for one in results if not one.error_code})
        if failed is not None:
            failed.update(
                {one.partition_index: ErrorCode(one.error_code) for one in results if one.error_code}
            )
    return found


def _listed(
    client: KafkaClient,
    leader: int,
    name: str,
    partitions: list[int],
    position: int,
    *,
    committed: bool = False,
) -> "list[ListOffsetsPartitionResponse]":
    wanted = [ListOffsetsPartition(partition_index=one, timestamp=position) for one in partitions]
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=READ_COMMITTED if committed else READ_UNCOMMITTED,
        topics=[ListOffsetsTopic(name=name, partitions=wanted)],
        timeout_ms=TIMEOUT_MS,
    )
    results: list[ListOffsetsPartitionResponse] = client.call(request, leader).topics[0].partitions
    return results
