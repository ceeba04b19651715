"""The systemd unit, the container file and the compose file, checked without systemd or containers."""

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from waiting import until

from tierlog.base.process_limits import OTHER_DESCRIPTORS
from tierlog.broker.net.core.bounds import THROTTLED_CONNECTIONS_MAX
from tierlog.cli import process
from tierlog.cli.cluster_files import free_ports
from tierlog.config.node import NodeSettings
from tierlog.config.sources import read_environment, read_toml, settings_from

ROOT = Path(__file__).parents[2]
HOST = ROOT / "terraform" / "host"
UNIT = HOST / "tierlog@.service"
BIN = Path(sys.executable).parent
LAST_OF_DATAGRAM = 4096


def unit() -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def instructions() -> list[tuple[str, str]]:
    """(instruction, words) of the container file, with lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def environment(**added: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIERLOG_")}
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", **added}


@contextmanager
def running(*command: str | Path, cwd: Path, env: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """systemd requires that the command exists, so this environment's command is used."""
    text = UNIT.read_text(encoding="utf-8").replace("/opt/tierlog/bin/tierlog", str(BIN / "tierlog"))
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    instance = tmp_path / "tierlog@1.service"
    instance.symlink_to(UNIT.name)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True, check=False
    )
    said = [line for line in verified.stderr.splitlines() if "tierlog@" in line]
    assert (verified.returncode, said) == (0, []), verified.stderr


def test_unit_allows_enough_time_and_descriptors() -> None:
    service, defaults = unit()["Service"], NodeSettings()
    stop_ms = defaults.controlled_shutdown_timeout_ms + 2 * defaults.log_dirs_stop_timeout_ms
    assert int(service["TimeoutStopSec"]) * 1000 > stop_ms
    assert stop_ms < process.STOP_TIMEOUT_S * 1000
    wanted = (
        defaults.log_max_open_files + defaults.max_connections + THROTTLED_CONNECTIONS_MAX + OTHER_DESCRIPTORS
    )
    assert int(service["LimitNOFILE"]) >= wanted
    assert (service["KillSignal"], service["Restart"]) == ("SIGTERM", "on-failure")


def test_example_settings_are_valid() -> None:
    texts = {**read_toml(HOST / "node.toml"), "controller.quorum.secret": "s"}
    settings = settings_from(texts)
    assert settings.node_id in settings.voters and len(settings.voters) == 3
    state = unit()["Service"]["StateDirectory"].replace("%i", "1")
    assert [Path(path).is_relative_to(Path("/var/lib") / state) for path in settings.log_dirs] == [True]


def test_unit_command_notifies_readiness_and_ends_with_sigterm(tmp_path: Path) -> None:
    texts = read_toml(HOST / "node.toml")
    kafka, admin = free_ports(2)
    own = {
        "listeners": f"PLAINTEXT://127.0.0.1:{kafka}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{kafka}",
        "admin.listener": f"127.0.0.1:{admin}",
        "controller.quorum.voters": f"1@127.0.0.1:{admin}",
        "log.dirs": str(tmp_path / "data"),
        "object.store.url": "",
    }
    config = tmp_path / "1.toml"
    config.write_text(
        "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in {**texts, **own}.items())
    )
    assert tomllib.loads(config.read_text())
    command = shlex.split(unit()["Service"]["ExecStart"].replace("/etc/tierlog/%i.toml", str(config)))
    command[0] = str(BIN / Path(command[0]).name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        env = environment(
            NOTIFY_SOCKET=str(tmp_path / "notify"), TIERLOG_CONTROLLER_QUORUM_SECRET="of the env file"
        )
        with running(*command, cwd=tmp_path, env=env) as node:
            ready = manager.recv(LAST_OF_DATAGRAM).decode()
            assert ready.startswith("READY=1\n") and str(kafka) in ready
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/health", timeout=60) as answer:
                assert answer.status == 200
            node.send_signal(signal.SIGTERM)
            assert node.wait(60) == 0


def test_node_that_waits_for_its_quorum_ends_with_sigterm(tmp_path: Path) -> None:
    kafka, admin, other, another = free_ports(4)
    voters = f"1@127.0.0.1:{admin},2@127.0.0.1:{other},3@127.0.0.1:{another}"
    settings = {
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{kafka}",
        "admin.listener": f"127.0.0.1:{admin}",
        "log.dirs": "data",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    env = environment(TIERLOG_CONTROLLER_QUORUM_SECRET="s")

    def waits() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/v1/quorum", timeout=60) as answer:
                return json.load(answer)["leader"] == -1
        except (OSError, http.client.HTTPException):  # the latter: the kernel connected it to itself
            return False

    with running(BIN / "tierlog", "server", *words, cwd=tmp_path, env=env) as node:
        until(waits, "it is there, and alone")
        node.send_signal(signal.SIGTERM)
        assert node.wait(60) == 0


# --- the container file


def test_container_file_copies_existing_paths() -> None:
    copied = [
        words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words
    ]
    sources = [source for words in copied for source in words]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    links = {link.name for link in (ROOT / "src" / "tierlog").iterdir() if link.is_symlink()}
    assert {*links, "src", "pyproject.toml", "README.md", "LICENSE", "requirements.lock"} == set(sources)


def test_constraints_pin_every_dependency(tmp_path: Path) -> None:
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    [command] = [words for name, words in instructions() if name == "RUN" and words.startswith("sed")]
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    pinned = {
        re.split(r"[=\[; ]", line)[0].lower(): line
        for line in (tmp_path / "constraints.txt").read_text().splitlines()
    }
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[=><\[]", need)[0].lower() for need in needed} - set(pinned) == set()
    assert [line for line in pinned.values() if "--hash" in line or line.endswith("\\")] == []


def test_container_environment_entry_point_and_health_check_work(tmp_path: Path) -> None:
    found = instructions()
    given = dict(
        words.split("=", 1) for name, words in found if name == "ENV" and words.startswith("TIERLOG_")
    )
    assert set(read_environment(given)) == {"log.dirs", "listeners", "admin.listener"}
    kafka, admin = free_ports(2)
    here = {
        name: value.replace(":9092", f":{kafka}")
        .replace(":9644", f":{admin}")
        .replace("/var/lib/tierlog", str(tmp_path))
        .replace("0.0.0.0", "127.0.0.1")
        for name, value in given.items()
    }
    [entry] = [json.loads(words) for name, words in found if name == "ENTRYPOINT"]
    [check] = [json.loads(words.partition("CMD ")[2]) for name, words in found if name == "HEALTHCHECK"]
    check = [word.replace(":9644", f":{admin}") for word in check]
    [stop] = [signal.Signals[words] for name, words in found if name == "STOPSIGNAL"]
    env = environment(**here)
    assert subprocess.run(check, env=env, capture_output=True, check=False).returncode != 0
    with running(*entry, "--json", cwd=tmp_path, env=env) as node:
        assert node.stdout is not None
        served = json.loads(node.stdout.readline())
        assert served["bootstrap"] == f"127.0.0.1:{kafka}"
        assert subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0
        node.send_signal(stop)
        assert node.wait(60) == 0


# --- the compose file


def test_compose_file_runs_a_broker_that_tiers_to_its_s3_server(tmp_path: Path) -> None:
    """The command of its S3 server, and the settings of its broker, with free ports and other directories."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    kafka, admin, s3 = free_ports(3)

    def here(text: str) -> str:
        for port, free in (("9092", kafka), ("9644", admin), ("9000", s3)):
            text = text.replace(f":{port}", f":{free}")
        return text.replace("/objects", str(tmp_path / "objects"))

    gateway = subprocess.check_output([ROOT / "localstack/get-s3-server.sh", "versitygw"], text=True).strip()
    shell, option, script = services["s3"]["entrypoint"]
    command = [shell, option, here(script).replace("exec versitygw", f"exec {gateway}")]
    broker = {name: here(value) for name, value in services["tierlog"]["environment"].items()}
    broker["TIERLOG_LOG_DIRS"] = str(tmp_path / "data")
    with (
        running(*command, cwd=tmp_path, env=environment(**services["s3"]["environment"])),
        running(BIN / "tierlog", "server", "--json", cwd=tmp_path, env=environment(**broker)) as node,
    ):
        assert node.stdout is not None
        assert json.loads(node.stdout.readline())["bootstrap"] == f"127.0.0.1:{kafka}"
        until(lambda: any((tmp_path / "objects/tierlog").rglob("cluster.json")), "it writes to the bucket")
    registry = services["karapace"]["environment"]
    assert here(registry["KARAPACE_BOOTSTRAP_URI"]) == f"127.0.0.1:{kafka}"
