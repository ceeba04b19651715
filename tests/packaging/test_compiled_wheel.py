"""The wheel with compiled hot modules (ADR 0007): Python finds them in it, and a broker runs with them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tierlog.testing import TierlogBroker

ROOT = Path(__file__).parents[2]
COMPILE = ROOT / ".ci" / "compile_hot.py"

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip lays it out. Needs a C compiler."""
    target, unpacked = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("unpacked")
    ended = subprocess.run(
        [sys.executable, COMPILE, "--wheel", target], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (wheel,) = target.glob("*.whl")
    assert f"-cp{sys.version_info[0]}{sys.version_info[1]}-" in wheel.name, "for this Python only"
    zipfile.ZipFile(wheel).extractall(unpacked)
    return unpacked


def test_python_finds_the_compiled_modules(unpacked: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, COMPILE, "--check"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_broker_serves_clients_from_the_compiled_wheel(unpacked: Path, tmp_path: Path) -> None:
    with TierlogBroker(tmp_path, environment={"PYTHONPATH": str(unpacked)}) as broker:
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
        assert f"{unpacked}/tierlog/broker/handlers/produce." in maps
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        for number in range(100):
            producer.produce("compiled", b"%d" % number)
        assert producer.flush(60) == 0
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["compiled"])
        values = {message.value() for _ in range(100) if (message := consumer.poll(30)) is not None}
        consumer.close()
    assert values == {b"%d" % number for number in range(100)}
