"""Unsupported features end at once with a message that says so: ACLs and transactions, with a real client."""

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tierlog.testing import TierlogBroker

LONGER_THAN_THE_TEST_S = 600
ANY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
ACL = AclBinding(
    ResourceType.TOPIC,
    "t",
    ResourcePatternType.LITERAL,
    "User:ada",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def test_transactional_producer_gets_an_unsupported_error(
    tierlog_session_broker: TierlogBroker,
) -> None:
    producer = Producer(
        {"bootstrap.servers": tierlog_session_broker.bootstrap, "transactional.id": "t", "log_level": 0}
    )
    with pytest.raises(KafkaException, match="does not support transactions") as refused:
        producer.init_transactions(LONGER_THAN_THE_TEST_S)
    assert refused.value.args[0].fatal()


def test_acls_are_rejected_as_by_kafka_without_an_authorizer(tierlog_session_broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tierlog_session_broker.bootstrap})
    [created] = admin.create_acls([ACL]).values()
    [deleted] = admin.delete_acls([ANY_ACL]).values()
    for answer in (created, deleted):
        with pytest.raises(KafkaException, match="No Authorizer is configured") as refused:
            answer.result(30)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
    listed = admin.describe_acls(ANY_ACL).result(30)
    assert listed == [], "librdkafka drops the error of this response, also of Apache Kafka"
