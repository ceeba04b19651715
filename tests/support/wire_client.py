"""A raw-socket client that sends any message in any version, including what real clients never send."""

import random
import socket
import struct
import time
import uuid
from collections.abc import Mapping
from string import Template
from typing import Any

from tierlog.protocol.api import BY_NAME, decode_response, encode_request
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    create_topics,
    describe_groups,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    produce,
)

TRANSACTION = 1  # a kind of coordinator
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Client:
    """One connection that sends messages unchanged and returns the responses."""

    def __init__(self, bootstrap: str, source: str = "") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))

    def close(self) -> None:
        self._socket.close()

    def send(self, name: str, version: int, message: Any, client_id: str = "test") -> Any:
        self.post(name, version, message, client_id)
        return self.receive(name, version)

    def post(self, name: str, version: int, message: Any, client_id: str = "test") -> None:
        self._socket.sendall(encode_request(BY_NAME[name], version, 1, client_id, message))

    def send_together(self, *requests: tuple[str, int, Any]) -> list[Any]:
        """Send several requests with one system call; return their responses in order."""
        frames = [
            encode_request(BY_NAME[name], version, 1, "test", requested)
            for name, version, requested in requests
        ]
        self._socket.sendall(b"".join(frames))
        return [self.receive(name, version) for name, version, _ in requests]

    def receive(self, name: str, version: int) -> Any:
        (size,) = struct.unpack(">i", self._read(4))
        return decode_response(BY_NAME[name], version, self._read(size))[1]

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError("closed without an answer")
            data += more
        return data

    def create(self, partitions: int = 1, **configs: str) -> str:
        """Create a topic with a new name, always of the same length: requests may hold it with its length."""
        name = f"t-{random.Random().getrandbits(64):016x}"
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        response = self.send("CreateTopics", 7, create_topics.CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == ErrorCode.NONE, response
        return name

    def produce(
        self,
        topic: str,
        records: bytes,
        *,
        acks: int = -1,
        version: int = 9,
        transactional_id: str | None = None,
    ) -> produce.PartitionProduceResponse:
        data = produce.PartitionProduceData(index=0, records=records)
        request = produce.ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
        )
        answer: produce.PartitionProduceResponse = (
            self.send("Produce", version, request).responses[0].partition_responses[0]
        )
        return answer

    def fetch(self, topic: str, offset: int, **fields: Any) -> fetch.FetchResponse:
        requested = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[fetch.FetchTopic(topic=topic, partitions=[requested])],
            **fields,
        )
        response: fetch.FetchResponse = self.send("Fetch", 12, request)
        return response

    def producer_id(self) -> int:
        request = init_producer_id.InitProducerIdRequest(transactional_id=None)
        response = self.send("InitProducerId", 4, request)
        assert response.error_code == ErrorCode.NONE
        return int(response.producer_id)

    def wait_for_leaders(self, topic: str, partitions: int = 1) -> None:
        """Wait for leaders: Apache Kafka responds to CreateTopics before partitions have leaders."""
        requested = [
            list_offsets.ListOffsetsPartition(partition_index=n, timestamp=-1) for n in range(partitions)
        ]
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=requested)]
        )
        while any(each.error_code for each in self.send("ListOffsets", 7, request).topics[0].partitions):
            time.sleep(0.01)

    def coordinator(self, group: str) -> None:
        """Wait until the group has a coordinator; the first group creates __consumer_offsets."""
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        while self.send("FindCoordinator", 4, request).coordinators[0].error_code:
            time.sleep(0.01)
        request = describe_groups.DescribeGroupsRequest(groups=[group])
        while self.send("DescribeGroups", 4, request).groups[0].error_code in LOADING:
            time.sleep(0.01)

    def transactional_producer(self, transactional_id: str) -> init_producer_id.InitProducerIdResponse:
        """The producer id and epoch of a transactional id, as soon as it has a coordinator."""
        found = find_coordinator.FindCoordinatorRequest(key=transactional_id, key_type=TRANSACTION)
        while self.send("FindCoordinator", 3, found).error_code:
            time.sleep(0.01)
        request = init_producer_id.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000
        )
        response: init_producer_id.InitProducerIdResponse = self.send("InitProducerId", 5, request)
        while response.error_code in LOADING:
            time.sleep(0.01)
            response = self.send("InitProducerId", 5, request)
        assert response.error_code == ErrorCode.NONE
        return response


def message(api: str, values: Mapping[str, Any], **names: str) -> Any:
    """A request of an API from plain values; `$t` in a string stands for the name given as t, and a function
    is called with the names."""
    return _filled(BY_NAME[api].request, values, names)


def _filled(message_class: Any, values: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    nested = {field.name: field.nested for field in message_class.FIELDS}

    def fill(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [fill(name, item) for item in value]
        if isinstance(value, dict):
            return _filled(nested[name], value, names)
        if callable(value):
            return value(names)
        if not isinstance(value, str):
            return value
        text = Template(value).substitute(names)
        return uuid.UUID(text) if name == "topic_id" else text

    return message_class(**{name: fill(name, value) for name, value in values.items()})
