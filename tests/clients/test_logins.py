"""Each client with SCRAM over TLS, a client certificate and a token: it produces, consumes in a group, and
says which topic, group or password is refused.

Clients get tokens in different ways. Java and librdkafka (with kcat) ask the endpoint of an issuer
themselves, and Java also reads a file. The others call a function of the application.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cli_inline import call
from issuer import token
from java_process import TOOLS, java, java_command, run_java
from secure_node import (
    GROUPS,
    MTLS,
    OAUTHBEARER,
    OPEN,
    SCRAM,
    SECRET,
    USER,
    WAYS,
    Login,
    SecureNode,
    secure_node,
)

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
LIMIT_S = 60.0
ALLOWED_URLS = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
TOPIC, SUBSCRIPTION, GROUP, PASSWORD = "topic", "subscription", "group", "password"
"""The broker can refuse to append to a topic, to read it, to let a consumer join a group, or a login."""
CODES = dict.fromkeys((TOPIC, SUBSCRIPTION), "TOPIC_AUTHORIZATION_FAILED")
GROUP_CODE = {GROUP: "GROUP_AUTHORIZATION_FAILED"}


@dataclass(frozen=True)
class Program:
    """`command`: it gets a file with what `write` returns, the topic, the group and the value. `refused`: how
    it names each error that it reports."""

    command: list[str]
    write: Callable[[Login], str]
    refused: dict[str, str]

    def run(self, login: Login, topic: str, group: str, value: str, file: Path) -> str:
        """The last line of its output."""
        file.write_text(self.write(login))
        command = [*self.command, str(file), topic, group, value]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return (done.stdout.splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def properties(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@pytest.fixture(params=["confluent-kafka", "aiokafka", "kafka-python", "Java", "franz-go", "KafkaJS", "kcat"])
def program(request: pytest.FixtureRequest, node: SecureNode, way: str) -> Program:
    match request.param:
        case "confluent-kafka":
            refused = CODES | GROUP_CODE | {PASSWORD: "_AUTHENTICATION"}
            return python_program("confluent", refused, Login.librdkafka_json)
        case "aiokafka":
            return python_program("aiokafka", python_errors() | {PASSWORD: "KafkaConnectionError"})
        case "kafka-python":
            refused = python_errors() | {PASSWORD: "KafkaTimeoutError"}
            del refused[SUBSCRIPTION]  # version 3.0 logs it and waits
            return python_program("kafka_python", refused)
        case "Java":
            return java_program(request.getfixturevalue("java_classpath"), node)
        case "franz-go":
            program = request.getfixturevalue("go_programs") / "round_trip"
            refused = CODES | GROUP_CODE | {PASSWORD: "SASL_AUTHENTICATION_FAILED"}
            return Program([str(program)], Login.as_json, refused)
        case "KafkaJS":
            program = request.getfixturevalue("node_programs") / "round_trip.js"
            errors = {GROUP: "KafkaJSGroupCoordinatorNotFound", PASSWORD: "KafkaJSSASLAuthenticationError"}
            return Program(["node", str(program)], Login.as_json, CODES | errors)
    able = {SCRAM: "kcat_with_scram", MTLS: "kcat", OAUTHBEARER: "kcat_with_oidc"}
    kcat = request.getfixturevalue(able[way])
    command = [sys.executable, str(HERE / "python" / "kcat_round_trip.py"), kcat]
    refused = CODES | GROUP_CODE | {PASSWORD: "_AUTHENTICATION"}
    return Program(command, lambda login: properties(login.librdkafka()), refused)


def python_program(
    name: str, refused: dict[str, str], write: Callable[[Login], str] = Login.as_json
) -> Program:
    return Program([sys.executable, str(HERE / "python" / f"{name}_round_trip.py")], write, refused)


def python_errors() -> dict[str, str]:
    errors = dict.fromkeys((TOPIC, SUBSCRIPTION), "TopicAuthorizationFailedError")
    return errors | {GROUP: "GroupAuthorizationFailedError"}


def java_program(classpath: str, node: SecureNode) -> Program:
    allowed = ALLOWED_URLS + node.logins[OAUTHBEARER].token_endpoint
    command = java_command(classpath, str(HERE / "java" / "SecureRoundTrip.java"))
    command.insert(1, allowed)
    errors = dict.fromkeys((TOPIC, SUBSCRIPTION), "TopicAuthorizationException")
    errors |= {GROUP: "GroupAuthorizationException", PASSWORD: "SaslAuthenticationException"}
    return Program(command, lambda login: properties(login.java()), errors)


@pytest.mark.parametrize("way", WAYS)
def test_client_produces_consumes_and_is_refused(
    program: Program, way: str, node: SecureNode, tmp_path: Path
) -> None:
    file, value, group = tmp_path / "login", f"value-{uuid.uuid4().hex}", f"{GROUPS}{uuid.uuid4().hex}"
    login, refused = node.logins[way], program.refused
    assert program.run(login, OPEN, group, value, file) == "ok"
    assert program.run(login, SECRET, group, value, file) == refused[TOPIC]
    if SUBSCRIPTION in refused:
        assert program.run(login, SECRET, group, "", file) == refused[SUBSCRIPTION]
    assert program.run(login, OPEN, "others", "", file) == refused[GROUP]
    if way == SCRAM:
        wrong = replace(login, password="canary-wrong")
        assert program.run(wrong, OPEN, group, value, file) == refused[PASSWORD]


def test_java_reads_a_token_from_a_file(java_classpath: str, node: SecureNode, tmp_path: Path) -> None:
    tokens = tmp_path / "token"
    tokens.write_text(token(time.time(), sub=USER))
    program = java_program(java_classpath, node)
    program.command[1] = ALLOWED_URLS + tokens.as_uri()
    login = replace(node.logins[OAUTHBEARER], token_endpoint=tokens.as_uri())
    group, value = f"{GROUPS}{uuid.uuid4().hex}", f"value-{uuid.uuid4().hex}"
    assert program.run(login, OPEN, group, value, tmp_path / "login") == "ok"


def test_franz_go_logs_in_by_a_delegation_token(go_programs: Path, node: SecureNode, tmp_path: Path) -> None:
    config, file = tmp_path / "client.properties", tmp_path / "login"
    config.write_text(properties(node.logins[SCRAM].java()))
    own = ("--bootstrap", node.broker.bootstrap, "--client-config", str(config))
    created = call("token", "create", "--json", *own)
    assert created.code == 0, created
    shown = json.loads(created.stdout)
    token_login = replace(node.logins[SCRAM], user=shown["token_id"], password=shown["hmac"], is_token=True)
    refused = CODES | GROUP_CODE | {PASSWORD: "SASL_AUTHENTICATION_FAILED"}
    program = Program([str(go_programs / "round_trip")], Login.as_json, refused)
    value, group = f"value-{uuid.uuid4().hex}", f"{GROUPS}{uuid.uuid4().hex}"
    assert program.run(token_login, OPEN, group, value, file) == "ok"
    assert program.run(token_login, SECRET, group, value, file) == refused[TOPIC]
    assert program.run(replace(token_login, password="wrong"), OPEN, group, value, file) == refused[PASSWORD]
    no_token = replace(token_login, is_token=False)
    assert program.run(no_token, OPEN, group, value, file) == refused[PASSWORD]


def test_kafkas_tools_give_access_over_tls(java_classpath: str, node: SecureNode, tmp_path: Path) -> None:
    """A new user has no access until kafka-acls gives it some."""
    admin, bob = tmp_path / "admin", tmp_path / "bob"
    of_bob = replace(node.of_admin, user="bob", password="canary-of-bob")
    admin.write_text(properties(node.of_admin.java()))
    bob.write_text(properties(of_bob.java()))
    server = ("--bootstrap-server", node.of_admin.bootstrap, "--command-config")

    def tool(name: str, *options: str, file: Path = admin) -> str:
        return java(java_classpath, name, *server, str(file), *options)

    user = ("--entity-type", "users", "--entity-name", "bob")
    added = "SCRAM-SHA-512=[iterations=8192,password=canary-of-bob]"
    tool("kafka.admin.ConfigCommand", "--alter", "--add-config", added, *user)
    assert "SCRAM-SHA-512=iterations=8192" in tool("kafka.admin.ConfigCommand", "--describe", *user)
    assert tool(f"{TOOLS}.TopicCommand", "--list", file=bob).split() == []
    denied = run_java(java_classpath, f"{TOOLS}.AclCommand", *server, str(bob), "--list")
    assert "ClusterAuthorizationException" in denied.stdout + denied.stderr
    allowed = ("--allow-principal", "User:bob", "--topic", OPEN, "--operation", "Describe")
    tool(f"{TOOLS}.AclCommand", "--add", *allowed)
    assert tool(f"{TOOLS}.TopicCommand", "--list", file=bob).split() == [OPEN]
    assert "principal=User:bob, host=*, operation=DESCRIBE" in tool(f"{TOOLS}.AclCommand", "--list")
    tool(f"{TOOLS}.AclCommand", "--remove", "--force", *allowed)
    assert tool(f"{TOOLS}.TopicCommand", "--list", file=bob).split() == []
