"""ACLs by Kafka's tool and by clients in Python, against a broker with an authorizer."""

from collections.abc import Iterator
from typing import Any

import pytest
from access_cases import SETTINGS
from java_process import TOOLS, java

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

SUPER_USER = SETTINGS | {"super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    with TierlogBroker(tmp_path_factory.mktemp("node") / "node", SUPER_USER) as broker:
        yield broker


def test_kafka_acls_adds_lists_and_removes(java_classpath: str, broker: TierlogBroker) -> None:
    def tool(*arguments: str) -> str:
        server = ("--bootstrap-server", broker.bootstrap)
        return java(java_classpath, f"{TOOLS}.AclCommand", *server, *arguments)

    tool("--add", "--allow-principal", "User:ada", "--producer", "--topic", "orders-")
    prefixed = ("--resource-pattern-type", "prefixed")
    tool("--add", "--deny-principal", "User:*", "--deny-host", "192.0.2.1", "--group", "g", *prefixed)
    listed = tool("--list")
    assert "name=orders-, patternType=LITERAL" in listed
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"principal=User:ada, host=*, operation={operation}, permissionType=ALLOW" in listed
    assert "principal=User:*, host=192.0.2.1, operation=ALL, permissionType=DENY" in listed
    matched = tool("--list", "--group", "g-1", "--resource-pattern-type", "match")
    assert "patternType=PREFIXED" in matched
    tool("--remove", "--force", "--allow-principal", "User:ada", "--producer", "--topic", "orders-")
    tool("--remove", "--force", "--group", "g", *prefixed)
    assert "principal=" not in tool("--list")


def test_confluent_kafka_creates_describes_and_deletes_acls(broker: TierlogBroker) -> None:
    from confluent_kafka import admin as confluent

    client = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
    kind, literal = confluent.ResourceType.TOPIC, confluent.ResourcePatternType.LITERAL
    read, allow = confluent.AclOperation.READ, confluent.AclPermissionType.ALLOW
    acl = confluent.AclBinding(kind, "confluent", literal, "User:ada", "*", read, allow)
    wanted = confluent.AclBindingFilter(kind, "confluent", literal, None, None, read, allow)
    [created] = client.create_acls([acl]).values()
    created.result(60)
    assert client.describe_acls(wanted).result(60) == [acl]
    [deleted] = client.delete_acls([wanted]).values()
    assert deleted.result(60) == [acl]
    assert client.describe_acls(wanted).result(60) == []


def test_kafka_python_creates_describes_and_deletes_acls(broker: TierlogBroker) -> None:
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        ResourcePattern,
        ResourcePatternFilter,
        ResourceType,
    )

    client: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    allow, read = ACLPermissionType.ALLOW, ACLOperation.READ
    acl = ACL("User:ada", "*", read, allow, ResourcePattern(ResourceType.TOPIC, "python"))
    pattern = ResourcePatternFilter(ResourceType.TOPIC, "python", acl.resource_pattern.pattern_type)
    wanted = ACLFilter(None, None, read, allow, pattern)
    assert client.create_acls([acl])["succeeded"] == [acl]
    assert client.describe_acls(wanted)[0] == [acl]
    [(_, matching, _)] = client.delete_acls([wanted])
    assert matching == [acl]
    client.close()
