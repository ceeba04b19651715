"""Users, ACLs and single records of clusters with logins, by confluent-kafka."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

ITERATIONS = 4096


def login(user: str, password: str) -> dict[str, str]:
    """Client settings of the login, without those of the connection."""
    return {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password}


def login_of_broker(password: str) -> str:
    """Value of sasl.jaas.config by which brokers log in to each other as the user broker."""
    return f'ScramLoginModule required username="broker" password="{password}";'


def create_users(admin: AdminClient, passwords: Mapping[str, str]) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    created = admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, secret.encode()) for user, secret in passwords.items()]
    )
    for each in created.values():
        each.result(60)


def allow(admin: AdminClient, user: str, operation: AclOperation, topic: str) -> None:
    change_acl(admin, user, operation, topic, AclPermissionType.ALLOW)


def deny(admin: AdminClient, user: str, operation: AclOperation, topic: str) -> None:
    change_acl(admin, user, operation, topic, AclPermissionType.DENY)


def change_acl(
    admin: AdminClient, user: str, operation: AclOperation, topic: str, permission: AclPermissionType
) -> None:
    """Add an ACL for the user, from any host."""
    pattern = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    binding = AclBinding(*pattern, f"User:{user}", "*", operation, permission)
    admin.create_acls([binding])[binding].result(60)


def error_of_record(settings: Mapping[str, Any], topic: str) -> int | None:
    """Error code of one record that a producer with these settings sends; None if it is acknowledged."""
    errors: list[KafkaError | None] = []
    producer = Producer({"log_level": 0, **settings})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    (error,) = errors
    return None if error is None else error.code()
