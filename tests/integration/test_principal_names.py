"""Users whose names have commas, spaces, quotes, backslashes and other scripts: their logins, ACLs, quotas,
metrics, entries of the audit log, and the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from audit_entries import AuditEntries
from confluent_kafka import KafkaError
from confluent_kafka.admin import AclOperation, NewTopic
from scram_broker import ScramBroker
from scraping import scraped
from secured_cluster import allow, create_users, error_of_record
from waiting import until

from tierlog.broker.audit.entries import DENIED_ACCESS
from tierlog.config.authorization import STANDARD_AUTHORIZER

pytestmark = pytest.mark.slow
NAMES = ["CN=ada,O=Example Ltd", "two  spaces", "quo\"ted'", "back\\slash", "Zoë 李", "a=b:c"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScramBroker]:
    directory = tmp_path_factory.mktemp("names")
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "audit.log.dir": str(directory / "audit")}
    broker = ScramBroker(directory, settings)
    with broker.broker:
        broker.admin().create_topics([NewTopic("orders", 1, 1)])["orders"].result(60)
        yield broker


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_name_is_the_same_everywhere(broker: ScramBroker, name: str) -> None:
    entries = AuditEntries(Path(broker.directory) / "audit")
    create_users(broker.admin(), {name: "canary-of-names"})
    user = broker.login(name, "canary-of-names") | {"acks": "all"}
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    until(lambda: error_of_record(user, "orders") == denied, "the user logs in")
    until(
        lambda: f"User:{name}" in [one.get("principal") for one in entries.denials(DENIED_ACCESS)],
        "the denial has an entry",
    )
    allow(broker.admin(), name, AclOperation.WRITE, "orders")
    broker.tierlog("quota", "set", "--user", name, "producer_byte_rate=1000000")
    until(lambda: error_of_record(user, "orders") is None, "the ACL is applied")
    users = {label for key in scraped(broker.broker) for kind, label in key[1] if kind == "user"}
    assert name in users
    found = {
        words: broker.tierlog(*words.split(), "--json").stdout
        for words in ("user list", "acl list", "quota list")
    }
    for text in found.values():
        assert name in json.dumps(json.loads(text), ensure_ascii=False).replace('\\"', '"').replace(
            "\\\\", "\\"
        )
    for words in found:
        assert broker.tierlog(*words.split()).stdout
    shown = [one for entry in entries.actions() for one in entry["resources"]]
    assert any(one["type"] == "USER" and one["name"] == name for one in shown)
    assert any(one.get("principal") == f"User:{name}" for one in shown)
