"""Clients outside Python: kcat, Java, Go and JavaScript, and Kafka's tools. Prints which of them ran."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_process import KafkaProcess

HERE = Path(__file__).parent
GET_CHROMIUM = HERE.parents[1] / ".ci/get-chromium.sh"
ran: dict[str, str] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what ran in it."""
    if (handed_over := getattr(session.config, "workeroutput", None)) is not None:
        handed_over["ran"] = ran


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ran.update(getattr(node, "workeroutput", {}).get("ran", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ran:
        terminalreporter.section("clients outside Python")
        for client, version in sorted(ran.items()):
            terminalreporter.write_line(f"{client}: {version}")


@pytest.fixture(scope="session")
def kcat() -> str:
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        ran["kcat"] = "NOT RUN: not installed (Debian: apt-get install kcat)"
        pytest.skip(ran["kcat"])
    version = subprocess.run([found, "-V"], capture_output=True, text=True, check=True).stdout
    ran["kcat"] = "ran, " + next(line for line in version.splitlines() if line.startswith("Version"))
    return found


@pytest.fixture(scope="session")
def chromium() -> str:
    """A browser, for the web page."""
    found = subprocess.run([GET_CHROMIUM], capture_output=True, text=True, check=False)
    if found.returncode:
        ran["Chromium"] = "NOT RUN: not installed (Debian: apt-get install chromium)"
        pytest.skip(ran["Chromium"])
    path = found.stdout.splitlines()[-1]
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    ran["Chromium"] = "ran, " + version.strip()
    return path


@pytest.fixture(scope="session")
def kcat_with_scram(kcat: str) -> str:
    """kcat, if its librdkafka can log in with SCRAM to Kafka 4 and tierlog."""
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", ran["kcat"])
    if version is None or tuple(map(int, version.groups())) < (2, 6, 1):
        ran["kcat with SCRAM"] = "NOT RUN: librdkafka before 2.6.1 sends a nonce that Kafka 4 refuses too"
        pytest.skip(ran["kcat with SCRAM"])
    return kcat


@pytest.fixture(scope="session")
def kcat_with_oidc(kcat: str) -> str:
    """kcat, if its librdkafka can ask an issuer for tokens."""
    command = [kcat, "-X", "sasl.oauthbearer.method=oidc", "-X", "dump"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        ran["kcat with OAUTHBEARER"] = "NOT RUN: its librdkafka is built without libcurl"
        pytest.skip(ran["kcat with OAUTHBEARER"])
    return kcat


@pytest.fixture(scope="session")
def java_classpath() -> Iterator[str]:
    """The jars by Maven, fetched on the first use."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        ran["Java client and tools"] = "NOT RUN: java and mvn are not both installed"
        pytest.skip(ran["Java client and tools"])
    fetched = subprocess.run(
        [HERE / "fetch-java.sh"], capture_output=True, text=True, timeout=600, check=False
    )
    if fetched.returncode:
        pytest.fail(f"Maven could not fetch the Java clients:\n{fetched.stderr}")
    jars = fetched.stdout.strip()
    ran["Java client and tools"] = "ran, " + os.path.basename(jars)
    yield f"{jars}/*"


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled programs in go/. go.mod and go.sum have the versions of their modules."""
    if shutil.which("go") is None:
        ran["franz-go"] = "NOT RUN: go is not installed"
        pytest.skip(ran["franz-go"])
    target = tmp_path_factory.mktemp("go")
    _made("franz-go", ["go", "build", "-C", str(HERE / "go"), "-o", str(target), "./..."])
    ran["franz-go"] = "ran, " + re.findall(r"franz-go (v\S+)", (HERE / "go" / "go.mod").read_text())[0]
    return target


@pytest.fixture(scope="session")
def go_copy(go_programs: Path) -> str:
    """The program that copies a topic."""
    return str(go_programs / "copy")


@pytest.fixture
def go_with_librdkafka(tmp_path: Path) -> Path:
    """A directory for one program that uses confluent-kafka-go. go.mod and go.sum have its version."""
    if shutil.which("go") is None or shutil.which("gcc") is None:
        ran["confluent-kafka-go"] = "NOT RUN: go and gcc are not both installed"
        pytest.skip(ran["confluent-kafka-go"])
    directory = tmp_path / "go"
    shutil.copytree(HERE / "generated" / "go", directory)
    ran["confluent-kafka-go"] = "ran, " + re.findall(r" (v\S+)", (directory / "go.mod").read_text())[0]
    return directory


@pytest.fixture(scope="session")
def node_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of node/ beside their modules, whose versions are in package-lock.json."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        ran["KafkaJS"] = "NOT RUN: node and npm are not both installed"
        pytest.skip(ran["KafkaJS"])
    directory = tmp_path_factory.mktemp("node") / "programs"
    shutil.copytree(HERE / "node", directory, ignore=shutil.ignore_patterns("node_modules"))
    _made("KafkaJS", ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(directory)])
    pinned = json.loads((directory / "package.json").read_text())["dependencies"]
    ran["KafkaJS"] = "ran, " + pinned["kafkajs"]
    return directory


@pytest.fixture(scope="session")
def node_copy(node_programs: Path) -> str:
    """The program that copies a topic."""
    return str(node_programs / "copy.js")


def _made(client: str, command: list[str]) -> None:
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if made.returncode:
        pytest.fail(f"{client} could not be built:\n{made.stdout}{made.stderr}")


@pytest.fixture(scope="session")
def kafka(java_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """Apache Kafka itself, of the version of the Java client."""
    process = KafkaProcess(java_classpath, tmp_path_factory.mktemp("kafka"))
    ran["Apache Kafka"] = "ran, for comparison"
    yield process
    process.stop()
