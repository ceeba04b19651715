"""WriteTxnMarkers (API key 27). Written by `.ci/generate_messages.py`: do not edit."""

from tierlog.protocol.schema import Bool, Int16, Int32, Int64, Int8, Message, String, Struct, struct, wire


@struct
class WritableTxnMarkerTopic(Struct):
    name: String = wire(1, 2)
    partition_indexes: list[Int32] = wire(1, 2)


@struct
class WritableTxnMarker(Struct):
    producer_id: Int64 = wire(1, 2)
    producer_epoch: Int16 = wire(1, 2)
    transaction_result: Bool = wire(1, 2)
    topics: list[WritableTxnMarkerTopic] = wire(1, 2)
    coordinator_epoch: Int32 = wire(1, 2)
    transaction_version: Int8 = wire(2, 2)


@struct
class WriteTxnMarkersRequest(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    markers: list[WritableTxnMarker] = wire(1, 2)


@struct
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32 = wire(1, 2)
    error_code: Int16 = wire(1, 2)


@struct
class WritableTxnMarkerTopicResult(Struct):
    name: String = wire(1, 2)
    partitions: list[WritableTxnMarkerPartitionResult] = wire(1, 2)


@struct
class WritableTxnMarkerResult(Struct):
    producer_id: Int64 = wire(1, 2)
    topics: list[WritableTxnMarkerTopicResult] = wire(1, 2)


@struct
class WriteTxnMarkersResponse(Message):
    VERSIONS = (1, 2)
    FLEXIBLE = 1

    markers: list[WritableTxnMarkerResult] = wire(1, 2)
