"""A client that sends any message in any version over a raw socket, for what real clients never send."""

import random
import socket
import struct
import time
from typing import Any

from tierlog.broker.wire.api import BY_NAME, decode_response, encode_request
from tierlog.broker.wire.errors import ErrorCode
from tierlog.broker.wire.messages import (
    create_topics,
    describe_groups,
    fetch,
    find_coordinator,
    init_producer_id,
    produce,
)
from tierlog.testing import TierlogBroker

LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Client:
    """One connection that sends messages as they are and returns what comes back."""

    def __init__(self, broker: TierlogBroker) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)

    def close(self) -> None:
        self._socket.close()

    def send(self, name: str, version: int, message: Any) -> Any:
        self.post(name, version, message)
        return self.receive(name, version)

    def post(self, name: str, version: int, message: Any) -> None:
        self._socket.sendall(encode_request(BY_NAME[name], version, 1, "test", message))

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

    def create(self, **configs: str) -> str:
        """A new topic with one partition."""
        name = f"t-{random.Random().getrandbits(64):x}"
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[
                create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        response = self.send("CreateTopics", 7, create_topics.CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == 0, response
        return name

    def produce(
        self, topic: str, records: bytes, *, acks: int = -1, version: int = 9
    ) -> produce.PartitionProduceResponse:
        data = produce.PartitionProduceData(index=0, records=records)
        request = produce.ProduceRequest(
            acks=acks,
            timeout_ms=5000,
            topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
        )
        answer: produce.PartitionProduceResponse = (
            self.send("Produce", version, request).responses[0].partition_responses[0]
        )
        return answer

    def fetch(self, topic: str, offset: int, **fields: Any) -> fetch.FetchResponse:
        asked = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = fetch.FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[fetch.FetchTopic(topic=topic, partitions=[asked])],
            **fields,
        )
        response: fetch.FetchResponse = self.send("Fetch", 12, request)
        return response

    def producer_id(self) -> int:
        request = init_producer_id.InitProducerIdRequest(transactional_id=None)
        response = self.send("InitProducerId", 4, request)
        assert response.error_code == 0
        return int(response.producer_id)

    def coordinator(self, group: str) -> None:
        """Waits until the group has a coordinator; the first group creates __consumer_offsets."""
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
        while self.send("FindCoordinator", 4, request).coordinators[0].error_code:
            time.sleep(0.01)
        request = describe_groups.DescribeGroupsRequest(groups=[group])
        while self.send("DescribeGroups", 4, request).groups[0].error_code in LOADING:
            time.sleep(0.01)
