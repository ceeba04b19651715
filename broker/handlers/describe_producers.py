"""DescribeProducers (v0, KIP-664): the producers of partitions that this broker leads."""

from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.replication.replica import Replica
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def describe_producers_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeProducersRequest) -> Reply:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        _described(deps, topic.name, index)
                        for index in dict.fromkeys(topic.partition_indexes)
                    ],
                )
                for topic in request.topics
            ]
        )

    return handle


def _described(deps: Dependencies, topic: str, index: int) -> PartitionResponse:
    found = deps.find_leader(topic, index)
    if not isinstance(found, Replica):
        return PartitionResponse(partition_index=index, error_code=found, error_message=ErrorCode(found).name)
    producers = [
        ProducerState(
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.transaction_first_offset,
        )
        for each in found.active_producers()
    ]
    return PartitionResponse(partition_index=index, active_producers=producers)
