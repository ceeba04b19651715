"""DescribeLogDirs (v1-5): for each log directory, its error or its total and usable space (KIP-827) and the
size of each partition. `offset_lag`: lag of a follower behind the high watermark, or of a future replica
behind the current replica's log end offset. Sizes are those of the local files, as in Kafka: its schema has
no field for remote bytes, and a tagged field of tierlog could get another meaning in a later version of
Kafka. `GET /v1/directories` of the admin API and `tierlog cluster logdirs` have the bytes of both tiers.

AlterReplicaLogDirs (v1-2, KIP-113): starts to move replicas of this broker between its log directories.
"""

from collections import defaultdict

from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.context import Handler, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from tierlog.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def describe_log_dirs_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: DescribeLogDirsRequest) -> Reply:
        wanted = None
        if request.topics is not None:
            wanted = {
                TopicPartition(topic.topic, partition)
                for topic in request.topics
                for partition in topic.partitions
            }
        return DescribeLogDirsResponse(
            results=[_result(deps, directory, wanted) for directory in deps.replicas.directories.all]
        )

    return handle


def alter_replica_log_dirs_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: AlterReplicaLogDirsRequest) -> Reply:
        wanted = {
            TopicPartition(topic.name, partition): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for partition in topic.partitions
        }
        by_topic: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
        for name, path in wanted.items():
            error = ErrorCode.KAFKA_STORAGE_ERROR if deps.moves is None else deps.moves.move(name, path)
            result = AlterReplicaLogDirPartitionResult(partition_index=name.partition, error_code=error)
            by_topic[name.topic].append(result)
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(topic_name=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ]
        )

    return handle


def _result(
    deps: Dependencies, directory: LogDirectory, wanted: set[TopicPartition] | None
) -> DescribeLogDirsResult:
    """An offline directory has only an error, as in Kafka."""
    result = DescribeLogDirsResult(log_dir=str(directory.path.absolute()))
    try:
        space = directory.space() if directory.failure is None else None
    except OSError:
        space = None
    if space is None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    result.total_bytes, result.usable_bytes = space
    by_topic: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for name in deps.replicas.directories.partitions_in(directory):
        replica = deps.replicas.get(*name)
        if replica is not None and (wanted is None or name in wanted):
            by_topic[name.topic].append(
                DescribeLogDirsPartition(
                    partition_index=name.partition,
                    partition_size=replica.log.size_bytes,
                    offset_lag=replica.offset_lag,
                )
            )
    for move in deps.moves.under_way if deps.moves is not None else ():
        if move.target is directory and (wanted is None or move.name in wanted):
            by_topic[move.name.topic].append(
                DescribeLogDirsPartition(
                    partition_index=move.name.partition,
                    partition_size=move.copied_bytes,
                    offset_lag=move.offset_lag,
                    is_future_key=True,
                )
            )
    result.topics = [
        DescribeLogDirsTopic(name=topic, partitions=partitions) for topic, partitions in by_topic.items()
    ]
    return result
