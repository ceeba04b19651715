"""Unsupported features end at once with a message that says so: ACLs, with a real client."""

import pytest
from confluent_kafka import KafkaError, KafkaException
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


def test_acls_are_rejected_as_by_kafka_without_an_authorizer(tierlog_session_broker: TierlogBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tierlog_session_broker.bootstrap})
    [created] = admin.create_acls([ACL]).values()
    [deleted] = admin.delete_acls([ANY_ACL]).values()
    for answer in (created, deleted):
        with pytest.raises(KafkaException, match="No Authorizer is configured") as refused:
            answer.result(60)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED
    listed = admin.describe_acls(ANY_ACL).result(60)
    assert listed == [], "librdkafka drops the error of this response, also of Apache Kafka"
