"""Brokers that start warm are processes like any other."""

import os
import signal
import sys
from pathlib import Path

import pytest
from warm_start import MAIN, WarmProcess, WarmStart

from tierlog.cli.process import BrokerFailed, TierlogBroker


def parent(pid: int) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["PPid"])


def test_broker_is_a_child_of_the_tests_with_descriptors_of_its_own(tmp_path: Path) -> None:
    with TierlogBroker(tmp_path / "one") as one, TierlogBroker(tmp_path / "two") as two:
        assert isinstance(one._process, WarmProcess)
        assert parent(one.pid) == parent(two.pid) == os.getpid()
        opened = [os.readlink(file) for file in Path(f"/proc/{two.pid}/fd").iterdir()]
        assert any(str(two.directory) in file for file in opened)
        assert not any(str(one.directory) in file for file in opened)
        one.stop()
        assert two.running and not one.running
        two.signal(signal.SIGKILL)
        assert two._process is not None
        assert two._process.wait(60) == -signal.SIGKILL


def test_broker_that_fails_has_its_exit_status_and_its_message(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"num\.partitions") as failed:
        TierlogBroker(tmp_path, {"num.partitions": "many"}).start()
    assert "the broker exited with code" in str(failed.value)


def test_other_variables_of_the_interpreter_start_a_broker_from_scratch(tmp_path: Path) -> None:
    with TierlogBroker(tmp_path, environment={"PYTHONUTF8": "1"}) as broker:
        assert not isinstance(broker._process, WarmProcess)
        assert b"PYTHONUTF8=1" in Path(f"/proc/{broker.pid}/environ").read_bytes()


def test_variables_that_packages_read_when_they_are_imported_need_a_start_from_scratch() -> None:
    warm, command = WarmStart(), [sys.executable, "-m", MAIN, "--help"]
    others = {**os.environ, "TIERLOG_BOOTSTRAP": "127.0.0.1:1"}
    assert warm.can_start(command, others, detached=False)
    for name in ("NO_COLOR", "TERMINAL_WIDTH", "_TYPER_STANDARD_TRACEBACK"):
        assert not warm.can_start(command, {**others, name: "7"}, detached=False)
