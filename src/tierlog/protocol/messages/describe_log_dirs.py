"""DescribeLogDirs (API key 35). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Message, String, Struct, struct, wire


@struct
class DescribableLogDirTopic(Struct):
    topic: String = wire(1, 5)
    partitions: list[Int32] = wire(1, 5)


@struct
class DescribeLogDirsRequest(Message):
    VERSIONS = (1, 5)
    FLEXIBLE = 2

    topics: list[DescribableLogDirTopic] | None = wire(1, 5)


@struct
class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = wire(1, 5)
    partition_size: Int64 = wire(1, 5)
    offset_lag: Int64 = wire(1, 5)
    is_future_key: Bool = wire(1, 5)


@struct
class DescribeLogDirsTopic(Struct):
    name: String = wire(1, 5)
    partitions: list[DescribeLogDirsPartition] = wire(1, 5)


@struct
class DescribeLogDirsResult(Struct):
    error_code: Int16 = wire(1, 5)
    log_dir: String = wire(1, 5)
    topics: list[DescribeLogDirsTopic] = wire(1, 5)
    total_bytes: Int64 = wire(4, 5, default=-1)
    usable_bytes: Int64 = wire(4, 5, default=-1)
    is_cordoned: Bool = wire(5, 5)


@struct
class DescribeLogDirsResponse(Message):
    VERSIONS = (1, 5)
    FLEXIBLE = 2

    throttle_time_ms: Int32 = wire(1, 5)
    error_code: Int16 = wire(3, 5)
    results: list[DescribeLogDirsResult] = wire(1, 5)
