"""DescribeCluster (API key 60). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int8, Message, String, Struct, struct, wire


@struct
class DescribeClusterRequest(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    include_cluster_authorized_operations: Bool = wire(0, 2)
    endpoint_type: Int8 = wire(1, 2, default=1)
    include_fenced_brokers: Bool = wire(2, 2)


@struct
class DescribeClusterBroker(Struct):
    broker_id: Int32 = wire(0, 2)
    host: String = wire(0, 2)
    port: Int32 = wire(0, 2)
    rack: String | None = wire(0, 2, default=None)
    is_fenced: Bool = wire(2, 2)


@struct
class DescribeClusterResponse(Message):
    VERSIONS = (0, 2)
    FLEXIBLE = 0

    throttle_time_ms: Int32 = wire(0, 2)
    error_code: Int16 = wire(0, 2)
    error_message: String | None = wire(0, 2, default=None)
    endpoint_type: Int8 = wire(1, 2, default=1)
    cluster_id: String = wire(0, 2)
    controller_id: Int32 = wire(0, 2, default=-1)
    brokers: list[DescribeClusterBroker] = wire(0, 2)
    cluster_authorized_operations: Int32 = wire(0, 2, default=-2147483648)
