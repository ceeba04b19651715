"""Secrets of the tests are found where they should not be, and are not printed by what finds them."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import canaries
import pytest
from canaries import canary

from tierlog.cli.process import TierlogBroker

FIND = Path(__file__).parents[3] / ".ci" / "find-canaries"


def report(*sections: tuple[str, str], when: str = "call", failed: bool = False) -> Any:
    return SimpleNamespace(sections=list(sections), when=when, failed=failed, outcome="passed", longrepr="")


def test_captured_output_with_a_secret_fails_the_test() -> None:
    found = report(("Captured stdout call", "fine"), ("Captured stderr call", f"password={canary('ada')}"))
    canaries.check_report(found)
    assert found.outcome == "failed"
    assert "Captured stderr call" in found.longrepr
    assert canaries.MARK not in f"{found.longrepr}{found.sections}"


def test_other_output_and_tracebacks_change_nothing() -> None:
    passed = report(("Captured stderr call", "serving"))
    canaries.check_report(passed)
    assert passed.outcome == "passed"


@pytest.mark.slow
@pytest.mark.usefixtures("brokers_from_scratch")
def test_broker_that_shows_a_secret_is_noticed(tmp_path: Path) -> None:
    broker = TierlogBroker(tmp_path, {"broker.rack": canary("rack")})
    try:
        with broker:
            assert canaries.leaks == [
                "the command line of a broker, which every user of the machine can read"
            ]
            broker.log_path.write_bytes(broker.log_path.read_bytes() + canary("logged").encode())
        assert "the log of a broker" in canaries.leaks
        found = report(when="teardown")
        canaries.check_report(found)
        assert found.outcome == "failed"
    finally:
        canaries.leaks.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("brokers_from_scratch")
def test_passwords_among_settings_are_not_on_the_command_line(tmp_path: Path) -> None:
    words = f'ScramLoginModule required username="broker" password="{canary("broker")}";'
    settings = {"sasl.jaas.config": words, "ssl.key.password": canary("key")}
    with TierlogBroker(tmp_path, settings) as broker:
        shown = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
        variables = Path(f"/proc/{broker.pid}/environ").read_bytes()
    assert canaries.MARK.encode() not in shown
    assert variables.count(canaries.MARK.encode()) == 2
    assert canaries.leaks == []


def test_search_of_a_whole_run_fails_without_printing_what_it_finds(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_bytes(b"\xff\x00 passed\n" * 3 + f"password: {canary('ada')}\n".encode())
    found = subprocess.run([FIND, output], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "lines 4" in found.stdout
    assert canaries.MARK not in found.stdout + found.stderr
    output.write_text("1 passed\n")
    found = subprocess.run([FIND, output], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
