"""kafka-delegation-tokens creates, shows, renews and expires tokens, by which Java's clients log in."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from token_sides import KEY, SETTINGS

from tierlog.cli.process import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(300)]
TOKENS, TOPICS = "org.apache.kafka.tools.DelegationTokenCommand", "org.apache.kafka.tools.TopicCommand"
PRODUCER, CONSUMER = (
    "org.apache.kafka.tools.ConsoleProducer",
    "org.apache.kafka.tools.consumer.ConsoleConsumer",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TierlogBroker]:
    own = {
        "listeners": "SASL://127.0.0.1:0",
        "listener.security.protocol.map": "SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL",
        "delegation.token.secret.key": KEY,
        "super.users": "User:admin;User:ada",
    }
    with TierlogBroker(tmp_path / "broker", SETTINGS | own) as running:
        yield running


def login(file: Path, module: str, mechanism: str, options: str) -> Path:
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required {options};\n"
    )
    return file


def user(directory: Path, name: str) -> Path:
    options = f'username="{name}" password="{name}"'
    return login(directory / f"{name}.properties", "plain.PlainLoginModule", "PLAIN", options)


def run(
    classpath: str, tool: str, broker: TierlogBroker, config: Path, *options: str, stdin: str = ""
) -> str:
    command = ["java", "-Xmx256m", "-cp", classpath, tool, "--bootstrap-server", broker.bootstrap]
    ended = subprocess.run(
        [*command, "--command-config", str(config), *options],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_kafkas_tool_and_clients_use_tokens(
    java_classpath: str, broker: TierlogBroker, tmp_path: Path
) -> None:
    ada, bob, eve = (user(tmp_path, name) for name in ("ada", "bob", "eve"))
    create = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    created = run(java_classpath, TOKENS, broker, ada, *create)
    row = next(line for line in created.splitlines() if "User:ada" in line)
    token_id, hmac, owner, requester, renewers, *_ = row.split()
    assert (owner, requester, renewers) == ("User:ada", "User:ada", "[User:bob]")
    of_ada = ("--describe", "--owner-principal", "User:ada")
    described = run(java_classpath, TOKENS, broker, bob, *of_ada)
    assert token_id in described
    assert hmac in described
    assert token_id not in run(java_classpath, TOKENS, broker, eve, *of_ada)
    renewed = run(java_classpath, TOKENS, broker, bob, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "Completed renew operation. New expiry date" in renewed
    refused = run(
        java_classpath, TOKENS, broker, eve, "--expire", "--expiry-time-period", "-1", "--hmac", hmac
    )
    assert "DelegationTokenOwnerMismatchException" in refused

    options = f'username="{token_id}" password="{hmac}" tokenauth="true"'
    job = login(tmp_path / "job.properties", "scram.ScramLoginModule", "SCRAM-SHA-512", options)
    assert "Created topic by-token" in run(
        java_classpath, TOPICS, broker, job, "--create", "--topic", "by-token"
    )
    run(java_classpath, PRODUCER, broker, job, "--topic", "by-token", stdin="one\ntwo\n")
    reading = ("--topic", "by-token", "--from-beginning", "--max-messages", "2", "--timeout-ms", "60000")
    read = run(java_classpath, CONSUMER, broker, job, *reading)
    assert "one\ntwo\n" in read
    by_token = run(java_classpath, TOKENS, broker, job, *create)
    assert "Delegation Token requests are not allowed" in by_token

    expired = run(
        java_classpath, TOKENS, broker, ada, "--expire", "--expiry-time-period", "-1", "--hmac", hmac
    )
    assert "Completed expire operation. New expiry date" in expired
    again = run(java_classpath, TOPICS, broker, job, "--list")
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in again
