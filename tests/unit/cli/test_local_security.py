"""Files of a secure local cluster, and the addresses that its login is sent to."""

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierlog.base.files import OsFiles
from tierlog.broker.diagnosis.evidence import ProcessState
from tierlog.broker.security.first_users import META_PROPERTIES, read_first_users
from tierlog.cli import client_config, cluster_files, cluster_processes
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.local_security import LocalSecurity
from tierlog.client.connection import open_socket
from tierlog.client.properties import read_properties
from tierlog.client.security import client_security
from tierlog.config.providers import resolved
from tierlog.config.sources import settings_from
from tierlog.protocol.sasl.scram import keys_of, salted_password


@pytest.fixture(autouse=True)
def no_file() -> Iterator[None]:
    client_config.remember(None)
    yield
    client_config.remember(None)


def prepared(directory: Path, bootstrap: str = "127.0.0.1:9092") -> LocalSecurity:
    security = LocalSecurity(directory)
    security.prepare([directory / "data"], bootstrap)
    return security


def test_others_cannot_read_any_file(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    assert security.directory.stat().st_mode & 0o077 == 0
    for file in security.directory.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


def test_others_cannot_read_data_of_any_node(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, voters=1, secure=True)
    objects = tmp_path / "objects"
    objects.mkdir(mode=0o755)  # by an earlier version
    cluster.start(node_ids=())
    for directory in (objects, *(node.data_dir for node in cluster)):
        assert directory.stat().st_mode & 0o077 == 0, directory


def test_first_users_have_the_passwords_of_the_files(tmp_path: Path) -> None:
    security = LocalSecurity(tmp_path)
    security.prepare([tmp_path / "data"], "127.0.0.1:9092", ["ada"])
    changes = read_first_users(OsFiles(), tmp_path / "data")
    assert {change.user for change in changes} == {"admin", "broker", "ada"}
    for change in changes:
        assert change.verifier is not None
        password = security.password(change.user)
        salted = salted_password("sha512", password, change.verifier.salt, change.verifier.iterations)
        assert keys_of("sha512", salted).stored_key == change.verifier.stored_key


def test_later_starts_keep_users_and_certificates(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    names = ("admin.password", "broker.password", "ca.pem", "broker.pem", "admin.properties")
    before = [(security.directory / name).read_bytes() for name in names]
    (tmp_path / "data" / "first-users.json").unlink()
    (tmp_path / "data" / META_PROPERTIES).touch()
    prepared(tmp_path)
    assert [(security.directory / name).read_bytes() for name in names] == before
    assert not (tmp_path / "data" / "first-users.json").exists()


@pytest.mark.parametrize("name", ["plain", "with space", "zoë", "back\\slash", "\U0001f511"])
def test_client_file_is_read_back_from_any_directory(tmp_path: Path, name: str) -> None:
    security = prepared(tmp_path / name)
    text = security.client_file.read_bytes().decode("ascii")
    assert "bootstrap.servers=127.0.0.1:9092" in text
    found = read_properties(security.client_file)
    assert found == security.client_properties("127.0.0.1:9092")
    assert client_security(found).password == security.password("admin")


def test_node_settings_are_valid_and_hide_the_password(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    texts = security.settings(9092)
    assert security.password("broker") not in str(texts)
    settings = settings_from(resolved(texts, {}))
    assert settings.inter_broker_login == ("broker", security.password("broker"))
    assert settings_from(security.settings(None)).admin_authentication == ("basic",)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cluster_files.ClusterPlan:
    """A secure local cluster, which was started last."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = cluster_files.new_plan(2, secure=True)
    cluster_files.save(tmp_path, plan)
    cluster_files.set_last_started(tmp_path)
    prepared(tmp_path, plan.bootstrap)
    return plan


def test_login_of_the_local_cluster_is_for_its_addresses_alone(
    plan: cluster_files.ClusterPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = plan.nodes[1]
    assert one.bootstrap is not None
    assert client_config.socket_opener(plan.bootstrap) is not open_socket
    assert client_config.socket_opener(one.bootstrap) is not open_socket
    assert client_config.socket_opener(f"{one.bootstrap},127.0.0.1:1") is open_socket
    assert client_config.admin_login(one.admin_url) == {}  # its node is down: whose port is that now?
    monkeypatch.setattr(cluster_processes, "state_of", lambda _: ProcessState.UP)
    expected = f"admin:{LocalSecurity(tmp_path).password('admin')}"
    sent = client_config.admin_login(f"{one.admin_url}/v1/cluster?x=1")
    assert b64decode(sent["Authorization"].removeprefix("Basic ")).decode() == expected
    for url in ("http://127.0.0.1:1", f"{one.admin_url}1", f"http://127.0.0.2:{one.admin_port}"):
        assert client_config.admin_login(url) == {}


def test_login_of_a_file_is_sent_only_where_it_is_asked_for(
    plan: cluster_files.ClusterPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_config.remember(LocalSecurity(tmp_path).client_file)
    assert client_config.bootstrap_servers() == plan.bootstrap
    monkeypatch.setenv("TIERLOG_ADMIN_CA", "ca.pem")
    for url in ("https://node-1.example:9644/v1/quorum", "http://127.0.0.1:9644/v1/quorum"):
        assert client_config.admin_login(url) == {}
        assert not client_config.accept_challenge(url, ['Bearer realm="tierlog"'])
        assert client_config.accept_challenge(url, ['Basic realm="tierlog"'])
        assert client_config.admin_login(url) != {}
        assert not client_config.accept_challenge(url, ['Basic realm="tierlog"'])  # it was wrong
    unencrypted = "http://node-1.example:9644/v1/quorum"
    assert not client_config.accept_challenge(unencrypted, ["Basic"])
    assert client_config.admin_login(unencrypted) == {}


def test_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "security").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="chmod 700"):
        prepared(tmp_path, "127.0.0.1:9092")


def test_delegation_token_is_no_login_for_the_admin_api(tmp_path: Path) -> None:
    login = 'ScramLoginModule required username="id" password="hmac" tokenauth="true";'
    file = tmp_path / "token.properties"
    file.write_text(f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={login}\n")
    client_config.remember(file)
    url = "http://127.0.0.1:9644/v1/quorum"
    assert client_config.accept_challenge(url, ["Basic"])
    assert client_config.admin_login(url) == {}


def test_login_of_a_file_is_not_sent_to_every_server_with_a_public_certificate(
    plan: cluster_files.ClusterPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address may be one that an attacker put into a redirection over plain HTTP."""
    client_config.remember(LocalSecurity(tmp_path).client_file)
    monkeypatch.delenv("TIERLOG_ADMIN_CA", raising=False)
    assert not client_config.accept_challenge("https://attacker.example/v1/quorum", ["Basic"])
    assert client_config.admin_login("https://attacker.example/v1/quorum") == {}
