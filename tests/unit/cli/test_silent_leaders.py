"""Listing topics while a broker hangs: it is waited for once, and not for each topic and position."""

from types import SimpleNamespace
from typing import Any

from tierlog.cli import topics
from tierlog.cli.errors import CliError, ExitCode
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tierlog.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

HANGS = 2


class Client:
    """Three topics with a partition on each of the brokers 1 and 2, of which 2 hangs."""

    def __init__(self) -> None:
        self.waits = 0
        self.topics = [
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(partition_index=at, leader_id=at + 1, replica_nodes=[1, 2])
                    for at in range(2)
                ],
            )
            for name in ("a", "b", "c")
        ]

    def metadata(self) -> Any:
        return SimpleNamespace(topics=self.topics)

    def topic(self, name: str) -> MetadataResponseTopic:
        return next(one for one in self.topics if one.name == name)

    def silent_leaders(self, found: list[MetadataResponseTopic]) -> set[int]:
        return set()  # it accepts the connection and the request

    def is_live(self, broker: int) -> bool:
        return True

    def call(self, request: Any, broker: int) -> ListOffsetsResponse:
        if broker == HANGS:
            self.waits += 1
            raise CliError("it did not respond", code=ExitCode.UNREACHABLE)
        [topic] = request.topics
        rows = [
            ListOffsetsPartitionResponse(partition_index=one.partition_index, offset=7)
            for one in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=rows)])


def test_broker_that_hangs_is_waited_for_once_in_a_list_of_topics() -> None:
    client: Any = Client()
    found = topics.rows(client, internal=True)
    assert [(row["topic"], row["offsets"]) for row in found] == [("a", None), ("b", None), ("c", None)]
    assert client.waits == 1


def test_broker_that_hangs_is_waited_for_once_in_a_description() -> None:
    client: Any = Client()
    rows = topics.partition_rows(client, "a")
    assert [row["log_end_offset"] for row in rows] == [7, None] and client.waits == 1
