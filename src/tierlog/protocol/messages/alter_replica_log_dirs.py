"""AlterReplicaLogDirs (API key 34). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Int16, Int32, Message, String, Struct, struct, wire


@struct
class AlterReplicaLogDirTopic(Struct):
    name: String = wire(1, 2)
    partitions: list[Int32] = wire(1, 2)


@struct
class AlterReplicaLogDir(Struct):
    path: String = wire(1, 2)
    topics: list[AlterReplicaLogDirTopic] = wire(1, 2)


@struct
class AlterReplicaLogDirsRequest(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 2

    dirs: list[AlterReplicaLogDir] = wire(1, 2)


@struct
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)


@struct
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: String = wire(1, 2)
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(1, 2)


@struct
class AlterReplicaLogDirsResponse(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(1, 2)
    results: list[AlterReplicaLogDirTopicResult] = wire(1, 2)
