"""Unusual requests about topics, settings and groups get the responses of Apache Kafka."""

import uuid
from collections.abc import Iterator

import pytest
from wire_client import Client

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    incremental_alter_configs,
    init_producer_id,
    leave_group,
    list_offsets,
    metadata,
)
from tierlog.testing import TierlogBroker

TOPIC = 2
SET, DELETE = 0, 1


@pytest.fixture
def client(tierlog_session_broker: TierlogBroker) -> Iterator[Client]:
    connection = Client(tierlog_session_broker.bootstrap)
    yield connection
    connection.close()


def ask_metadata(client: Client, version: int, *topics: metadata.MetadataRequestTopic) -> list[ErrorCode]:
    response = client.send("Metadata", version, metadata.MetadataRequest(topics=list(topics)))
    return [ErrorCode(topic.error_code) for topic in response.topics]


def test_metadata_by_id_starts_with_version_12(client: Client) -> None:
    known = metadata.MetadataRequestTopic(name=client.create())
    for requested in (
        metadata.MetadataRequestTopic(name=None),
        metadata.MetadataRequestTopic(name="t", topic_id=uuid.UUID(int=7)),
    ):
        assert ask_metadata(client, 11, known, requested) == [ErrorCode.INVALID_REQUEST] * 2


def test_metadata_answers_a_repeated_topic_once(client: Client) -> None:
    topic = metadata.MetadataRequestTopic(name=client.create())
    assert ask_metadata(client, 12, topic, topic) == [ErrorCode.NONE]


def described(client: Client, topic: str, keys: list[str] | None) -> dict[str, str | None]:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=keys
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource])
    result = client.send("DescribeConfigs", 4, request).results[0]
    return {config.name: config.value for config in result.configs}


def test_no_keys_and_null_keys_describe_everything(client: Client) -> None:
    topic = client.create()
    assert described(client, topic, []) == described(client, topic, None)
    assert described(client, topic, ["retention.ms"]) == {"retention.ms": "604800000"}


def test_list_setting_is_described_as_parsed(client: Client) -> None:
    topic = client.create(cleanup_policy=" compact , delete,compact")
    assert described(client, topic, ["cleanup.policy"]) == {"cleanup.policy": "compact,delete"}


def test_node_defaults_are_described_as_synonyms_of_topic_settings(client: Client) -> None:
    topic = client.create()
    resource = describe_configs.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=["preallocate"]
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (config,) = client.send("DescribeConfigs", 4, request).results[0].configs
    assert [synonym.name for synonym in config.synonyms] == ["log.preallocate"]


@pytest.mark.parametrize("name", ["", "a b"])
def test_invalid_topic_name_is_not_described(client: Client, name: str) -> None:
    resource = describe_configs.DescribeConfigsResource(resource_type=TOPIC, resource_name=name)
    request = describe_configs.DescribeConfigsRequest(resources=[resource])
    result = client.send("DescribeConfigs", 4, request).results[0]
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("name", "code"),
    [("", ErrorCode.INVALID_REQUEST), ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION)],
)
def test_settings_of_an_invalid_topic_name_are_rejected(client: Client, name: str, code: ErrorCode) -> None:
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    assert client.send("IncrementalAlterConfigs", 1, request).responses[0].error_code == code


def test_only_a_deleted_setting_may_be_null(client: Client) -> None:
    topic = client.create(retention_ms="5")

    def alter(operation: int) -> int:
        change = incremental_alter_configs.AlterableConfig(
            name="retention.ms", config_operation=operation, value=None
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=TOPIC, resource_name=topic, configs=[change]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        return int(client.send("IncrementalAlterConfigs", 1, request).responses[0].error_code)

    assert alter(SET) == ErrorCode.INVALID_REQUEST
    replaced = alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(
                resource_type=TOPIC,
                resource_name=topic,
                configs=[alter_configs.AlterableConfig(name="retention.ms", value=None)],
            )
        ]
    )
    assert client.send("AlterConfigs", 2, replaced).responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert described(client, topic, ["retention.ms"]) == {"retention.ms": "5"}
    assert alter(DELETE) == ErrorCode.NONE


def test_rejected_topic_has_empty_settings_instead_of_null(client: Client) -> None:
    topic = create_topics.CreatableTopic(name="a b", num_partitions=1, replication_factor=1)
    for twice in (1, 2):
        request = create_topics.CreateTopicsRequest(topics=[topic] * twice)
        assert client.send("CreateTopics", 7, request).topics[0].configs == []


def test_deleted_topic_is_identified_as_in_the_request(client: Client) -> None:
    states = [
        delete_topics.DeleteTopicState(name="no-such"),
        delete_topics.DeleteTopicState(name=None, topic_id=uuid.UUID(int=7)),
        delete_topics.DeleteTopicState(name=None),
    ]
    response = client.send("DeleteTopics", 6, delete_topics.DeleteTopicsRequest(topics=states))
    assert {
        (topic.name, topic.topic_id.int, ErrorCode(topic.error_code)) for topic in response.responses
    } == {
        ("no-such", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, 7, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, 0, ErrorCode.INVALID_REQUEST),
    }


def test_topic_named_twice_is_answered_once(client: Client) -> None:
    name = client.create()
    states = [delete_topics.DeleteTopicState(name=name)] * 2
    deleted = client.send("DeleteTopics", 6, delete_topics.DeleteTopicsRequest(topics=states)).responses
    assert [topic.error_code for topic in deleted] == [ErrorCode.INVALID_REQUEST]
    more = [create_partitions.CreatePartitionsTopic(name=name, count=2)] * 2
    grown = client.send("CreatePartitions", 3, create_partitions.CreatePartitionsRequest(topics=more)).results
    assert [topic.error_code for topic in grown] == [ErrorCode.INVALID_REQUEST]


def test_repeated_partition_in_list_offsets_is_rejected(client: Client) -> None:
    requested = [list_offsets.ListOffsetsPartition(partition_index=0, timestamp=time) for time in (-1, -2)]
    topic = list_offsets.ListOffsetsTopic(name=client.create(), partitions=requested)
    response = client.send("ListOffsets", 7, list_offsets.ListOffsetsRequest(replica_id=-1, topics=[topic]))
    answers = response.topics[0].partitions
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST]


def test_records_of_internal_topics_are_not_deleted(client: Client) -> None:
    client.coordinator("g")  # creates __consumer_offsets
    topic = delete_records.DeleteRecordsTopic(
        name="__consumer_offsets", partitions=[delete_records.DeleteRecordsPartition(partition_index=0)]
    )
    request = delete_records.DeleteRecordsRequest(topics=[topic], timeout_ms=5000)
    answer = client.send("DeleteRecords", 2, request).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_leave_group_needs_a_group_id(client: Client) -> None:
    members = [leave_group.MemberIdentity(member_id="m")]
    request = leave_group.LeaveGroupRequest(group_id="", members=members)
    response = client.send("LeaveGroup", 5, request)
    assert (response.error_code, response.members) == (ErrorCode.INVALID_GROUP_ID, [])


def test_group_deleted_twice_is_answered_once(client: Client) -> None:
    client.coordinator("no-such")
    request = delete_groups.DeleteGroupsRequest(groups_names=["no-such", "no-such"])
    results = client.send("DeleteGroups", 2, request).results
    assert [result.error_code for result in results] == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_authorized_operations_of_an_unknown_group_are_not_returned(client: Client) -> None:
    client.coordinator("no-such")
    request = describe_groups.DescribeGroupsRequest(groups=["no-such"], include_authorized_operations=True)
    group = client.send("DescribeGroups", 6, request).groups[0]
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert group.authorized_operations == -(2**31)


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 5)])
def test_producer_resumes_with_both_id_and_epoch(client: Client, producer_id: int, epoch: int) -> None:
    request = init_producer_id.InitProducerIdRequest(
        transactional_id=None, producer_id=producer_id, producer_epoch=epoch
    )
    response = client.send("InitProducerId", 4, request)
    assert (response.error_code, response.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert response.producer_epoch == -1


def test_static_broker_settings_can_be_deleted_but_not_set(client: Client) -> None:
    def alter(operation: int, name: str) -> int:
        change = incremental_alter_configs.AlterableConfig(
            name=name,
            config_operation=operation,
            value="1" if operation == SET else None,
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=4, resource_name="1", configs=[change]
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        [answer] = client.send("IncrementalAlterConfigs", 1, request).responses
        return int(answer.error_code)

    assert [alter(operation, "num.partitions") for operation in (DELETE, SET)] == [
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [alter(operation, "leader.replication.throttled.rate") for operation in (SET, DELETE)] == [0, 0]
