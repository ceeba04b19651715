"""Error responses of all APIs, for requests that fail as a whole.

Most responses have a top-level error code. The others repeat it for each requested item, as in Kafka. If a
version cannot carry an error, the result is None and net closes the connection. Called by net.
"""

from collections.abc import Callable
from typing import Any

from tierlog.broker.handlers.context import RequestContext
from tierlog.protocol.api import APIS, BY_NAME
from tierlog.protocol.errors import ErrorCode

Builder = Callable[[RequestContext, Any, ErrorCode, "str | None"], Any]


def error_reply(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    """The response with the error code, or None."""
    builder = _BUILDERS.get(context.api)
    if builder is not None:
        return builder(context, request, code, message)
    return top_level_error(context, code, message)


def top_level_error(context: RequestContext, code: ErrorCode, message: str | None) -> Any:
    """The response with a top-level error code; None if this version has no such field."""
    response: Any = APIS[context.api].response()
    fields = {field.name: field for field in response.FIELDS}
    if "error_code" not in fields or not fields["error_code"].exists_in(context.version):
        return None
    response.error_code = code
    if "error_message" in fields:
        response.error_message = message
    return response


def _produce(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import produce as m

    return m.ProduceResponse(
        responses=[
            m.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    m.PartitionProduceResponse(
                        index=item.index, error_code=code, base_offset=-1, error_message=message
                    )
                    for item in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import fetch as m

    if context.version >= 7:
        return m.FetchResponse(error_code=code)
    return m.FetchResponse(
        responses=[
            m.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    m.PartitionData(
                        partition_index=item.partition, error_code=code, high_watermark=-1, records=b""
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import list_offsets as m

    return m.ListOffsetsResponse(
        topics=[
            m.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    m.ListOffsetsPartitionResponse(partition_index=item.partition_index, error_code=code)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _metadata(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import metadata as m

    return m.MetadataResponse(
        error_code=code,
        topics=[
            m.MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ],
    )


def _offset_for_leader_epoch(
    context: RequestContext, request: Any, code: ErrorCode, message: str | None
) -> Any:
    from tierlog.protocol.messages import offset_for_leader_epoch as m

    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    m.EpochEndOffset(partition=item.partition, error_code=code) for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete_records(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import delete_records as m

    return m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    m.DeleteRecordsPartitionResult(
                        partition_index=item.partition_index, low_watermark=-1, error_code=code
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_topics(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import create_topics as m

    return m.CreateTopicsResponse(
        topics=[
            m.CreatableTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _delete_topics(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import delete_topics as m

    named = [m.DeleteTopicState(name=name) for name in request.topic_names] + request.topics
    return m.DeleteTopicsResponse(
        responses=[
            m.DeletableTopicResult(
                name=item.name, topic_id=item.topic_id, error_code=code, error_message=message
            )
            for item in named
        ]
    )


def _create_partitions(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import create_partitions as m

    return m.CreatePartitionsResponse(
        results=[
            m.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ]
    )


def _describe_configs(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import describe_configs as m

    return m.DescribeConfigsResponse(
        results=[
            m.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=item.resource_type,
                resource_name=item.resource_name,
            )
            for item in request.resources
        ]
    )


def _alter_configs(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import alter_configs, incremental_alter_configs

    older = context.api == BY_NAME["AlterConfigs"].key
    m: Any = alter_configs if older else incremental_alter_configs
    response: Any = APIS[context.api].response
    return response(
        responses=[
            m.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=item.resource_type,
                resource_name=item.resource_name,
            )
            for item in request.resources
        ]
    )


def _describe_client_quotas(
    context: RequestContext, request: Any, code: ErrorCode, message: str | None
) -> Any:
    from tierlog.protocol.messages import describe_client_quotas as m

    return m.DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


def _alter_client_quotas(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import alter_client_quotas as m

    return m.AlterClientQuotasResponse(
        entries=[
            m.EntryDataResponse(
                error_code=code,
                error_message=message,
                entity=[
                    m.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def _create_acls(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import create_acls as m

    results = [m.AclCreationResult(error_code=code, error_message=message) for _ in request.creations]
    return m.CreateAclsResponse(results=results)


def _delete_acls(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import delete_acls as m

    results = [m.DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.filters]
    return m.DeleteAclsResponse(filter_results=results)


def _offset_commit(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import offset_commit as m

    return m.OffsetCommitResponse(
        topics=[
            m.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    m.OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import offset_fetch as m

    if context.version < 8:
        return m.OffsetFetchResponse(error_code=code) if context.version >= 2 else None
    return m.OffsetFetchResponse(
        groups=[
            m.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups
        ]
    )


def _find_coordinator(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import find_coordinator as m

    if context.version < 4:
        return m.FindCoordinatorResponse(error_code=code, error_message=message, node_id=-1, port=-1)
    return m.FindCoordinatorResponse(
        coordinators=[
            m.Coordinator(key=key, error_code=code, error_message=message, node_id=-1, port=-1)
            for key in request.coordinator_keys
        ]
    )


def _describe_groups(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import describe_groups as m

    return m.DescribeGroupsResponse(
        groups=[m.DescribedGroup(group_id=group, error_code=code) for group in request.groups]
    )


def _delete_groups(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import delete_groups as m

    return m.DeleteGroupsResponse(
        results=[m.DeletableGroupResult(group_id=group, error_code=code) for group in request.groups_names]
    )


def _init_producer_id(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import init_producer_id as m

    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _elect_leaders(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    from tierlog.protocol.messages import elect_leaders as m

    return m.ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            m.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    m.PartitionResult(partition_id=number, error_code=code, error_message=message)
                    for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _alter_partition_reassignments(
    context: RequestContext, request: Any, code: ErrorCode, message: str | None
) -> Any:
    from tierlog.protocol.messages import alter_partition_reassignments as m

    return m.AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        responses=[
            m.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    m.ReassignablePartitionResponse(
                        partition_index=item.partition_index, error_code=code, error_message=message
                    )
                    for item in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _describe_topic_partitions(
    context: RequestContext, request: Any, code: ErrorCode, message: str | None
) -> Any:
    from tierlog.protocol.messages import describe_topic_partitions as m

    return m.DescribeTopicPartitionsResponse(
        topics=[
            m.DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name)
            for topic in request.topics
        ]
    )


_BUILDERS: dict[int, Builder] = {
    BY_NAME[name].key: builder
    for name, builder in {
        "Produce": _produce,
        "Fetch": _fetch,
        "ListOffsets": _list_offsets,
        "Metadata": _metadata,
        "OffsetForLeaderEpoch": _offset_for_leader_epoch,
        "DeleteRecords": _delete_records,
        "CreateTopics": _create_topics,
        "DeleteTopics": _delete_topics,
        "CreatePartitions": _create_partitions,
        "DescribeConfigs": _describe_configs,
        "AlterConfigs": _alter_configs,
        "IncrementalAlterConfigs": _alter_configs,
        "DescribeClientQuotas": _describe_client_quotas,
        "AlterClientQuotas": _alter_client_quotas,
        "CreateAcls": _create_acls,
        "DeleteAcls": _delete_acls,
        "OffsetCommit": _offset_commit,
        "OffsetFetch": _offset_fetch,
        "FindCoordinator": _find_coordinator,
        "DescribeGroups": _describe_groups,
        "DeleteGroups": _delete_groups,
        "InitProducerId": _init_producer_id,
        "ElectLeaders": _elect_leaders,
        "AlterPartitionReassignments": _alter_partition_reassignments,
        "DescribeTopicPartitions": _describe_topic_partitions,
    }.items()
}
