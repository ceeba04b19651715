"""`tierlog security check`: a case for every finding, in settings, files, users, ACLs and tokens."""

import json
import ssl
import stat
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_inline import call

from tierlog.cli import security_facts
from tierlog.cli.acls import Acl
from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.errors import ExitCode
from tierlog.cli.security_findings import (
    CHECKS,
    Finding,
    Level,
    of_acls,
    of_settings,
    of_tokens,
    of_users,
    ordered,
)
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.config.sources import settings_from
from tierlog.metadata.acls import AclOperation, PatternType, Permission, ResourceType

DAY_MS = 86_400_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Keys and passwords of a node that has no findings, which only their owner can read."""
    authority = LocalAuthority(tmp_path / "certs", int(time.time()), 30)
    authority.issue("broker", ("localhost",))
    write(tmp_path / "logins.properties", 'broker=ScramLoginModule required username="b" password="p";\n')
    write(tmp_path / "secret", "0123456789abcdef\n")
    return tmp_path


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def closed(directory: Path, **changes: str | None) -> dict[str, str]:
    """Settings without findings. `changes`: with _ in place of dots; None removes a setting."""
    settings: dict[str, str | None] = {
        "node.id": "1",
        "listeners": "SASL_SSL://:9092",
        "log.dirs": str(directory / "data"),
        "ssl.keystore.location": str(directory / "certs" / "broker.pem"),
        "ssl.truststore.location": str(directory / "certs" / "ca.pem"),
        "sasl.jaas.config": f"${{file:{directory / 'logins.properties'}:broker}}",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:b",
        "admin.listener": "127.0.0.1:9644",
        "admin.authentication": "basic",
        "audit.log.dir": str(directory / "audit"),
        "connections.max.reauth.ms": "3600000",
        "controller.quorum.voters": "1@127.0.0.1:9644",
        "controller.quorum.secret": f"${{directory:{directory}:secret}}",
    }
    settings |= {name.replace("_", "."): value for name, value in changes.items()}
    return {name: value for name, value in settings.items() if value is not None}


def check_file(directory: Path, settings: dict[str, str], *words: str) -> list[tuple[str, str]]:
    """Level and check of each finding in a settings file, as the command prints them."""
    file = directory / "node.toml"
    if not file.exists():
        write(file, "")
    file.write_text("".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in settings.items()))
    ended = call("security", "check", "--config", str(file), "--json", *words)
    rows = json.loads(ended.stdout)["findings"]
    assert ended.code == (ExitCode.INSECURE if rows else ExitCode.OK), ended
    assert all(row["what"] and row["next"] and row["where"] for row in rows)
    return [(row["level"], row["check"]) for row in rows]


def test_closed_node_has_no_findings(directory: Path) -> None:
    assert check_file(directory, closed(directory)) == []
    shown = call("security", "check", "--config", str(directory / "node.toml"))
    assert shown.code == 0 and shown.stderr == "no findings\n"


FINDINGS = {
    "no-login": ("open", {"listeners": "SASL_SSL://:9092,PLAINTEXT://:9093"}),
    "anonymous-tls": ("open", {"listeners": "SASL_SSL://:9092,SSL://:9093"}),
    "no-tls": ("weak", {"listeners": "SASL_PLAINTEXT://:9092"}),
    "super-user-in-clear": ("open", {"listeners": "SASL_PLAINTEXT://:9092"}),
    "endless-logins": ("weak", {"connections_max_reauth_ms": None}),
    "fast-guesses": ("weak", {"connection_failed_authentication_delay_ms": "0"}),
    "any-token": (
        "weak",
        {
            "sasl_enabled_mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
            "sasl_oauthbearer_jwks_endpoint_url": "https://issuer.example/keys",
            "sasl_oauthbearer_expected_issuer": "https://issuer.example",
        },
    ),
    "endless-tokens": ("weak", {"delegation_token_max_lifetime_ms": str(31 * DAY_MS)}),
    "no-audit-log": ("weak", {"audit_log_dir": None}),
    "no-authorizer": ("open", {"authorizer_class_name": None}),
    "open-by-default": ("open", {"allow_everyone_if_no_acl_found": "true"}),
    "anonymous-super-user": ("open", {"super_users": "User:admin;User:ANONYMOUS"}),
    "open-admin-api": ("open", {"admin_authentication": None}),
    "host-names-unchecked": ("weak", {"ssl_endpoint_identification_algorithm": ""}),
    "keys-over-http": ("open", {"sasl_oauthbearer_jwks_endpoint_url": "http://issuer.example/keys"}),
    "quorum-in-clear": (
        "weak",
        {"admin_listener": "10.0.0.1:9644", "admin_authentication": None},
    ),
}
"""Check -> its level, and the changed settings that have it."""


@pytest.mark.parametrize("name", FINDINGS)
def test_settings_of_a_node(directory: Path, name: str) -> None:
    level, changes = FINDINGS[name]
    found = check_file(directory, closed(directory, **changes))  # type: ignore[arg-type]
    assert (level, name) in found
    assert {check for _, check in found} <= {name, "open-admin-api", *TOGETHER.get(name, ())}


TOGETHER = {"no-tls": ["super-user-in-clear"], "super-user-in-clear": ["no-tls"]}


def test_listeners_of_the_machine_alone_need_no_tls(directory: Path) -> None:
    assert check_file(directory, closed(directory, listeners="SASL_PLAINTEXT://127.0.0.1:9092")) == []
    keys = {"sasl_oauthbearer_jwks_endpoint_url": "http://127.0.0.1:1/keys"}
    assert check_file(directory, closed(directory, **keys)) == []


def test_passwords_of_plain_cross_the_network_unencrypted(directory: Path) -> None:
    users = directory / "plain.properties"
    write(users, 'users=PlainLoginModule required user_ada="x";\n')
    settings = closed(directory, listeners="SASL_PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093") | {
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"${{file:{users}:users}}",
        "inter.broker.listener.name": "SASL_SSL",
    }
    assert check_file(directory, settings) == [("open", "passwords-in-clear")]


def test_required_certificates_are_a_login(directory: Path) -> None:
    settings = closed(directory, listeners="SASL_SSL://:9092,SSL://:9093", ssl_client_auth="required")
    assert check_file(directory, settings) == []


def test_controller_node_has_no_listeners_for_clients(directory: Path) -> None:
    settings = closed(
        directory,
        process_roles="controller",
        listeners=None,
        authorizer_class_name=None,
        sasl_jaas_config=None,
    )
    assert check_file(directory, settings) == []


@pytest.mark.parametrize("name", ["certs/broker.pem", "logins.properties", "secret"])
@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_keys_and_passwords_are_for_their_owner_alone(directory: Path, name: str, mode: int) -> None:
    (directory / name).chmod(mode)
    assert check_file(directory, closed(directory)) == [("open", "readable-file")]


def test_records_are_for_the_owner_of_the_node_alone(directory: Path) -> None:
    data = directory / "data"
    data.mkdir(mode=0o755)
    parents = [one for one in data.parents if not one.stat().st_mode & stat.S_IXOTH]
    assert check_file(directory, closed(directory)) == []
    with ExitStack() as stack:
        for one in parents:
            stack.callback(one.chmod, stat.S_IMODE(one.stat().st_mode))
            one.chmod(0o711)
        assert check_file(directory, closed(directory)) == [("open", "readable-data")]
    data.chmod(0o700)
    assert check_file(directory, closed(directory)) == []


def test_secrets_belong_into_files_of_their_own(directory: Path) -> None:
    settings = closed(directory, controller_quorum_secret="canary-of-quorum")
    write(directory / "node.toml", "")
    assert check_file(directory, settings) == [("weak", "secret-in-settings")]
    (directory / "node.toml").chmod(0o644)
    assert check_file(directory, settings) == [("open", "secret-in-settings")]
    assert "canary" not in call("security", "check", "--config", str(directory / "node.toml")).stdout


def test_certificates_of_listeners_and_of_the_quorum_expire(directory: Path) -> None:
    settings = closed(directory)
    assert check_file(directory, settings, "--days", "20") == []
    assert check_file(directory, settings, "--days", "40") == [("expires", "certificate")] * 2  # and the CA
    old = LocalAuthority(directory / "old", int(time.time()) - 40 * 86_400, 30)
    old.issue("node", ("localhost",))
    settings |= {
        "controller.quorum.ssl.certificate": str(directory / "old" / "node.pem"),
        "controller.quorum.ssl.key": str(directory / "old" / "node.pem"),
        "controller.quorum.ssl.ca": str(directory / "old" / "ca.pem"),
    }
    assert check_file(directory, settings) == [("expired", "certificate")] * 2


def test_certificate_that_cannot_be_used_is_a_finding(directory: Path) -> None:
    write(directory / "certs" / "broker.pem", "no certificate")
    assert check_file(directory, closed(directory)) == [("expired", "certificate")]


def test_findings_can_be_ignored_by_name(directory: Path) -> None:
    settings = closed(directory, authorizer_class_name=None)
    assert check_file(directory, settings, "--ignore", "no-authorizer") == []
    ended = call("security", "check", "--config", str(directory / "node.toml"), "--ignore", "nosuch")
    assert ended.code == ExitCode.USAGE and "no-authorizer" in ended.stderr


def test_file_and_cluster_are_not_checked_at_once(directory: Path) -> None:
    check_file(directory, closed(directory))
    words = ("security", "check", "--config", str(directory / "node.toml"))
    assert call(*words, "--bootstrap", "127.0.0.1:1").code == ExitCode.USAGE


def test_users_with_few_iterations() -> None:
    rows = [
        {"user": "ada", "mechanisms": [{"mechanism": "SCRAM-SHA-256", "iterations": 4096}]},
        {"user": "bob", "mechanisms": [{"mechanism": "SCRAM-SHA-512", "iterations": 16384}]},
    ]
    [finding] = of_users(rows)
    assert (finding.check, finding.level, finding.where) == ("few-iterations", Level.WEAK, "user ada")


def acl(principal: str, operation: AclOperation, name: str = "t", permission: str = "ALLOW") -> Acl:
    kind = ResourceType.TOPIC, name, PatternType.LITERAL
    return Acl(*kind, principal, "*", operation, Permission[permission])


def test_acls_for_everyone_and_for_everything() -> None:
    acls = [
        acl("User:*", AclOperation.READ),
        acl("User:*", AclOperation.WRITE),
        acl("User:*", AclOperation.ALL, permission="DENY"),
        acl("User:ada", AclOperation.ALL, "*"),
        acl("User:ada", AclOperation.READ, "*"),
        acl("User:ada", AclOperation.ALL),
    ]
    assert [(one.level, one.check) for one in of_acls(acls)] == [
        (Level.WEAK, "acl-for-everyone"),
        (Level.OPEN, "acl-for-everyone"),
        (Level.WEAK, "acl-for-everything"),
    ]


def test_tokens_expire() -> None:
    tokens = [
        SimpleNamespace(token_id=str(days), principal_type="User", principal_name="ada", max_timestamp=at)
        for days in (-1, 0.5, 3, 31)
        for at in [round((100 + days) * DAY_MS)]
    ]
    found = [(one.check, one.level, one.where) for one in of_tokens(tokens, 100 * DAY_MS)]
    assert found == [
        ("token", Level.EXPIRED, "token -1"),
        ("token", Level.EXPIRES, "token 0.5"),
        ("endless-tokens", Level.WEAK, "token 31"),
    ]


def test_nodes_share_a_finding_and_the_worst_comes_first() -> None:
    settings = settings_from({"listeners": "PLAINTEXT://:9092", "admin.authentication": "basic"})
    both = [finding for node in (1, 2) for finding in of_settings(f"broker {node}", settings)]
    weak = Finding(check="few-iterations", level=Level.WEAK, where="user ada", what="few", next="more")
    found = ordered([weak, *both])
    assert [(one.check, one.where) for one in found] == [
        ("no-login", "broker 1, broker 2"),
        ("no-authorizer", "broker 1, broker 2"),
        ("no-audit-log", "broker 1, broker 2"),
        ("few-iterations", "user ada"),
    ]


def test_every_check_has_a_case() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CHECKS if f'"{name}"' not in text] == []


def test_admin_api_with_a_certificate_of_an_unknown_ca_may_be_open(directory: Path) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certs" / "broker.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert security_facts._is_open(f"https://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
