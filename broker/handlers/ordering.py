"""Request order: which requests of one connection may overlap, and which must wait for each other.

Kafka processes one request per connection at a time: it mutes the channel from a request's last byte until
its response is sent. A client that sends a change and a question together therefore sees the change. tierlog
keeps that property where a client can observe it and lets the rest overlap. Responses always leave in the
order of the requests (`net.connection`).

APIs that wait for other clients (JoinGroup, SyncGroup, a long Fetch) do not delay later requests here,
although they mute the channel in Kafka. They take effect on the group in order, when they arrive, and a
member's Heartbeat need not wait for a rebalance.
"""

from collections.abc import Mapping
from enum import Enum, auto

from tierlog.protocol.api import BY_NAME


class Order(Enum):
    FREE = auto()
    """Starts at once, unless a CHANGE is under way."""
    APPEND = auto()
    """Starts at once, unless a CHANGE is under way. Appends take effect in order, but do not wait for each
    other's acknowledgements, so that producers can pipeline."""
    AFTER_APPENDS = auto()
    """Reads what appends change, so it starts once the appends before it are acknowledged."""
    CHANGE = auto()
    """Starts once the appends before it are acknowledged. No later request of the connection starts before it
    is done. A change of metadata is done once the quorum has committed it and this broker's image has it."""


ORDERS: Mapping[str, Order] = {
    "AddOffsetsToTxn": Order.CHANGE,
    "AddPartitionsToTxn": Order.FREE,  # brokers send it for many producers; a producer waits for its response
    "AlterClientQuotas": Order.CHANGE,
    "AlterConfigs": Order.CHANGE,
    "AlterPartitionReassignments": Order.CHANGE,
    "AlterReplicaLogDirs": Order.CHANGE,
    "AlterUserScramCredentials": Order.CHANGE,
    "ApiVersions": Order.FREE,
    "ConsumerGroupDescribe": Order.AFTER_APPENDS,  # as DescribeGroups
    "ConsumerGroupHeartbeat": Order.FREE,  # may wait for an assignment, but takes effect when it arrives
    "CreateAcls": Order.CHANGE,
    "CreateDelegationToken": Order.CHANGE,
    "CreatePartitions": Order.CHANGE,
    "CreateTopics": Order.CHANGE,
    "DeleteAcls": Order.CHANGE,
    "DeleteGroups": Order.CHANGE,
    "DeleteRecords": Order.CHANGE,
    "DeleteTopics": Order.CHANGE,
    "DescribeAcls": Order.FREE,
    "DescribeClientQuotas": Order.FREE,
    "DescribeCluster": Order.FREE,
    "DescribeConfigs": Order.FREE,
    "DescribeDelegationToken": Order.FREE,
    "DescribeGroups": Order.AFTER_APPENDS,  # the first commit of a group creates it
    "DescribeLogDirs": Order.AFTER_APPENDS,  # sizes
    "DescribeProducers": Order.AFTER_APPENDS,
    "DescribeQuorum": Order.FREE,
    "DescribeTopicPartitions": Order.FREE,
    "DescribeTransactions": Order.FREE,
    "DescribeUserScramCredentials": Order.FREE,
    "ElectLeaders": Order.CHANGE,
    "EndTxn": Order.CHANGE,
    "ExpireDelegationToken": Order.CHANGE,
    "Fetch": Order.AFTER_APPENDS,  # once started it delays no request: it may wait for other producers
    "FindCoordinator": Order.FREE,
    "Heartbeat": Order.FREE,
    "IncrementalAlterConfigs": Order.CHANGE,
    "InitProducerId": Order.CHANGE,  # a new epoch fences what was sent with the old one
    "JoinGroup": Order.FREE,  # waits for other members, but takes effect when it arrives
    "LeaveGroup": Order.CHANGE,  # JoinGroup is FREE, so a leave after a waiting join starts at once
    "ListConfigResources": Order.FREE,
    "ListGroups": Order.AFTER_APPENDS,
    "ListOffsets": Order.AFTER_APPENDS,  # the latest offset moves with the high watermark
    "ListPartitionReassignments": Order.FREE,
    "ListTransactions": Order.FREE,
    "Metadata": Order.FREE,  # sent by producers too, and must not wait for acknowledgements
    "OffsetCommit": Order.APPEND,  # the shard takes commits in order, and writes many at once
    "OffsetDelete": Order.CHANGE,
    "OffsetFetch": Order.AFTER_APPENDS,
    "OffsetForLeaderEpoch": Order.AFTER_APPENDS,
    "Produce": Order.APPEND,
    "RenewDelegationToken": Order.CHANGE,
    "SaslAuthenticate": Order.CHANGE,  # a failure is answered after a delay
    "SaslHandshake": Order.FREE,
    "SyncGroup": Order.FREE,  # waits for the leader's assignment
    "TxnOffsetCommit": Order.APPEND,  # as OffsetCommit
    "UnregisterBroker": Order.CHANGE,
    "UpdateFeatures": Order.CHANGE,
    "WriteTxnMarkers": Order.FREE,  # brokers send markers of many transactions
}
"""Every API that a node serves (`handlers.table`)."""

ORDER_OF: Mapping[int, Order] = {BY_NAME[name].key: order for name, order in ORDERS.items()}
