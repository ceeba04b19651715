"""Delegation tokens of a broker process and of a cluster: logins of real clients, the command line, restarts,
and what is written to disk."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from audit_entries import AuditEntries
from cli_inline import Ended, call
from scraping import metric
from token_sides import KEY, LoginFailed, Side
from waiting import until
from wire_client import message

from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.cluster_files import free_ports
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.process import TierlogBroker
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.protocol.errors import ErrorCode

pytestmark = pytest.mark.timeout(240)
HOUR_MS = 3_600_000
USERS = " ".join(f'user_{name}="{name}"' for name in ("admin", "ada", "bob", "eve"))
PLAIN_USERS = f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"


def settings_of(*listeners: str, **more: Any) -> dict[str, Any]:
    return {
        "listeners": ",".join(listeners),
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": listeners[-1].partition(":")[0],
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": PLAIN_USERS,
        "delegation.token.secret.key": KEY,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TierlogBroker]:
    settings = settings_of(
        "SASL://127.0.0.1:0",
        authorizer_class_name=STANDARD_AUTHORIZER,
        super_users="User:admin",
        delegation_token_expiry_check_interval_ms=100,
        audit_log_dir=tmp_path / "audit",
    )
    with TierlogBroker(tmp_path / "broker", settings) as running:
        yield running


def side_of(broker: TierlogBroker) -> Side:
    return Side(broker.bootstrap, broker.bootstrap)


def client_file(file: Path, user: str, bootstrap: str) -> Path:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    file.write_text(
        f"bootstrap.servers={bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={module} required username="{user}" password="{user}";\n'
    )
    return file


def cli(config: Path, *words: str) -> Ended:
    return call(*words, "--client-config", str(config))


def document(config: Path, *words: str) -> Any:
    ended = cli(config, *words, "--json")
    assert ended.code == 0, ended
    return json.loads(ended.stdout)


def test_commands_create_show_renew_and_expire_tokens(broker: TierlogBroker, tmp_path: Path) -> None:
    ada, bob, eve = (
        client_file(tmp_path / f"{name}.properties", name, broker.bootstrap) for name in ("ada", "bob", "eve")
    )
    made = document(ada, "token", "create", "--renewer", "bob", "--max-lifetime", "10h")
    token_id = made["token_id"]
    assert made["owner"] == made["requester"] == "User:ada"
    assert made["renewers"] == ["User:bob"]
    assert made["expires_ms"] == made["max_ms"] == made["issued_ms"] + 10 * HOUR_MS
    assert len(base64.b64decode(made.pop("hmac"))) == 64
    assert document(ada, "token", "list") == document(bob, "token", "describe", token_id) == [made]
    assert document(ada, "token", "list", "--owner", "eve") == document(eve, "token", "list") == []
    shown = cli(ada, "token", "list")
    assert "1 token" in shown.stdout
    assert token_id in shown.stdout
    renewed = document(bob, "token", "renew", token_id, "--period", "1h")
    assert abs(renewed["expires_ms"] - made["issued_ms"] - HOUR_MS) < 60_000
    unknown = cli(eve, "token", "renew", token_id)
    assert (unknown.code, f"there is no token {token_id}" in unknown.stderr) == (4, True)
    later = document(ada, "token", "expire", token_id, "--after", "2h")
    assert later["expires_ms"] > renewed["expires_ms"]
    assert document(ada, "token", "expire", token_id, "--yes") == {"token_id": token_id, "removed": True}
    assert document(ada, "token", "list") == []
    changes = [
        (entry["principal"], entry["api"], entry["resources"][0]["name"])
        for entry in AuditEntries(tmp_path / "audit").actions()
    ]
    assert changes == [
        ("User:ada", "CreateDelegationToken", token_id),
        ("User:bob", "RenewDelegationToken", token_id),
        ("User:ada", "ExpireDelegationToken", token_id),
        ("User:ada", "ExpireDelegationToken", token_id),
    ]
    denied = cli(eve, "token", "create", "--owner", "ada")
    assert denied.code == 1
    assert "CREATE_TOKENS" in denied.stderr


def test_job_logs_in_with_the_written_file(broker: TierlogBroker, tmp_path: Path) -> None:
    admin = client_file(tmp_path / "admin.properties", "admin", broker.bootstrap)
    job = tmp_path / "job.properties"
    created = cli(admin, "token", "create", "--owner", "ada", "--output", str(job))
    assert created.code == 0, created
    assert "HMAC" not in created.stdout
    assert job.stat().st_mode & 0o777 == 0o600
    assert "admin" not in job.read_text()
    again = cli(admin, "token", "create", "--output", str(job))
    assert (again.code, "exists" in again.stderr) == (2, True)
    (token,) = document(admin, "token", "list")
    nowhere = cli(admin, "token", "create", "--output", str(tmp_path / "no" / "job.properties"))
    assert (nowhere.code, "cannot write" in nowhere.stderr) == (2, True)
    assert document(admin, "token", "list") == [token]  # none was created without its file
    ada = client_file(tmp_path / "ada.properties", "ada", broker.bootstrap)
    assert cli(ada, "token", "create", "--owner", "bob", "--output", str(tmp_path / "other")).code == 1
    assert not (tmp_path / "other").exists()
    assert cli(job, "topic", "list").code == 0
    denied = cli(job, "topic", "create", "orders")
    assert (denied.code, "authorization failed" in denied.stderr.lower()) == (1, True)
    granted = ("--allow-principal", "ada", "--operation", "all", "--topic", "orders")
    assert cli(admin, "acl", "create", *granted).code == 0
    assert cli(job, "topic", "create", "orders").code == 0
    refused = cli(job, "token", "create")
    assert (refused.code, "not by a token" in refused.stderr) == (1, True)
    assert document(admin, "token", "expire", token["token_id"], "--yes")["removed"]
    ended = cli(job, "topic", "list")
    assert (ended.code, "invalid credentials" in ended.stderr) == (1, True)


def test_tokens_survive_restarts_and_nothing_on_disk_lets_anyone_log_in(broker: TierlogBroker) -> None:
    side = side_of(broker)
    with side.user("ada") as ada:
        made = ada.create()
        removed = ada.create()
        ada.expire(bytes(removed.hmac))
        with side.by_token(made.token_id, made.hmac) as job:
            assert job.describe(everyone=True).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    for ends in (broker.stop, broker.kill):
        ends()
        broker.start()
        with side_of(broker).user("ada") as ada:
            (token,) = ada.describe(everyone=True).tokens
        assert (token.token_id, bytes(token.hmac)) == (made.token_id, bytes(made.hmac))
        assert token.expiry_timestamp == made.expiry_timestamp_ms
        side_of(broker).by_token(made.token_id, made.hmac).wire.close()
        with pytest.raises(LoginFailed):
            side_of(broker).by_token(removed.token_id, removed.hmac)
    broker.stop()
    secret = bytes(made.hmac)
    forms = (secret, base64.b64encode(secret), secret.hex().encode(), KEY.encode())
    files = [file for file in broker.directory.rglob("*") if file.is_file()]
    data = {file: file.read_bytes() for file in files}
    assert any(made.token_id.encode() in content for content in data.values())
    assert [file for file, content in data.items() if any(form in content for form in forms)] == []


def test_super_user_expires_the_tokens_of_others(broker: TierlogBroker) -> None:
    side = side_of(broker)
    with side.user("ada") as ada, side.user("admin") as admin, side.user("eve") as eve:
        hmac = bytes(ada.create().hmac)
        assert eve.expire(hmac).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert admin.renew(hmac).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert not admin.expire(hmac, HOUR_MS).error_code
        assert not admin.expire(hmac).error_code
        assert ada.describe(everyone=True).tokens == []


def test_client_certificates_may_create_tokens_and_clients_without_one_may_not(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path / "certificates", int(time.time()), 30)
    authority.issue("broker", ("localhost", "127.0.0.1"))
    authority.issue("ada")
    ca = authority.directory / "ca.pem"
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.directory / "broker.pem",
        "ssl.truststore.location": ca,
        "ssl.client.auth": "requested",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        "delegation.token.secret.key": KEY,
    }
    with TierlogBroker(tmp_path / "broker", settings) as running:
        tls = (
            f"bootstrap.servers={running.bootstrap}\nsecurity.protocol=SSL\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
        )
        anonymous, ada = tmp_path / "anonymous.properties", tmp_path / "ada.properties"
        anonymous.write_text(tls)
        ada.write_text(f"{tls}ssl.certificate.location={authority.directory / 'ada.pem'}\n")
        assert document(ada, "token", "create")["owner"] == "User:ada"
        refused = cli(anonymous, "token", "list")
        assert (refused.code, "client certificates" in refused.stderr) == (1, True)


def test_controller_removes_expired_tokens(broker: TierlogBroker) -> None:
    side = side_of(broker)
    with side.user("ada") as ada:
        made, kept = ada.create(lifetime_ms=1), ada.create()
        until(
            lambda: [one.token_id for one in ada.describe(everyone=True).tokens] == [kept.token_id],
            "only the other token is left",
        )
        assert ada.renew(bytes(made.hmac)).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_sessions_end_with_their_token(broker: TierlogBroker) -> None:
    side = side_of(broker)
    with side.user("ada") as ada:
        made = ada.create()
        job = side.by_token(made.token_id, made.hmac)
        assert 0 < job.lifetime_ms <= 24 * HOUR_MS
        assert job.wire.send("Metadata", 9, message("Metadata", {"topics": []})) is not None
        assert not ada.expire(bytes(made.hmac)).error_code
        with pytest.raises((ConnectionError, OSError)):
            job.wire.send("Metadata", 9, message("Metadata", {"topics": []}))


@pytest.mark.slow
def test_new_key_makes_no_token_useless_while_the_old_one_is_accepted(broker: TierlogBroker) -> None:
    """As in the steps of docs/howto/secure-a-cluster.md."""
    new, name = "canary-of-the-next-key", "delegation.token.secret.key"
    with side_of(broker).user("ada") as ada:
        made = ada.create()
    old_hmac = bytes(made.hmac)
    steps = ({f"{name}.previous": new}, {name: new, f"{name}.previous": KEY})
    for settings in steps:
        broker.stop()
        broker.settings |= settings
        broker.start()
        side = side_of(broker)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            side.by_token(made.token_id, old_hmac, mechanism).wire.close()
        with side.user("ada") as ada:
            assert not ada.renew(old_hmac).error_code
            (token,) = ada.describe(everyone=True).tokens
        new_hmac = bytes(token.hmac)
        side.by_token(made.token_id, new_hmac).wire.close()
    assert new_hmac != old_hmac
    assert metric(broker, "tierlog_delegation_tokens") == 1
    assert 0 < metric(broker, "tierlog_delegation_token_next_expiry_seconds") <= 24 * 3600
    broker.stop()
    broker.settings |= {f"{name}.previous": ""}
    broker.start()
    side_of(broker).by_token(made.token_id, new_hmac).wire.close()
    with pytest.raises(LoginFailed):
        side_of(broker).by_token(made.token_id, old_hmac)
    assert "canary" not in broker.log_path.read_text()


def test_all_brokers_of_a_cluster_know_the_tokens(tmp_path: Path) -> None:
    """A token of one broker works at the others, also after all were killed, and a removed one ends the
    sessions of all."""
    ports = free_ports(6)
    cluster = LocalCluster(tmp_path / "cluster", 3, {})
    for node, (sasl, plain) in zip(cluster, zip(ports[::2], ports[1::2], strict=True), strict=True):
        node.settings |= settings_of(f"SASL://127.0.0.1:{sasl}", f"PLAINTEXT://127.0.0.1:{plain}")
    sides = [Side(f"127.0.0.1:{port}", "") for port in ports[::2]]
    with cluster:
        with sides[0].user("ada") as ada:
            made = ada.create(renewers=("User:bob",))
            hmac = bytes(made.hmac)
        for side in sides:
            with side.user("bob") as bob:  # at once, whether the broker knows the token yet or not
                assert not bob.renew(hmac).error_code
        cluster.kill()
        cluster.start()
        jobs = [side.by_token(made.token_id, hmac, "SCRAM-SHA-512") for side in sides]
        with sides[2].user("ada") as ada:
            assert not ada.expire(hmac).error_code
        for side, job in zip(sides, jobs, strict=True):
            until(lambda side=side: _is_refused(side, made), "the token is unknown")  # type: ignore[misc]
            with pytest.raises(ConnectionError):
                job.wire.send("Metadata", 9, message("Metadata", {"topics": []}))
    for node in cluster:
        log = node.log_path.read_text()
        assert KEY not in log
        assert base64.b64encode(hmac).decode() not in log


def _is_refused(side: Side, made: Any) -> bool:
    try:
        side.by_token(made.token_id, bytes(made.hmac)).wire.close()
    except LoginFailed:
        return True
    return False
