"""Processes of a soak run: a hanging one is killed and counted, and measurements are kept."""

import json
import os
from pathlib import Path

import pytest
from soak import run
from tally import Tally
from worker_process import WorkerProcess

from tierlog.cli.process import TierlogBroker

REPORT = json.dumps({"counts": {"read": 3}, "faults": {"consume": "the first one"}})


def test_silent_process_is_killed_and_counted() -> None:
    tally = Tally()
    worker = WorkerProcess(
        "members", ["sh", "-c", f"echo '{REPORT}'; echo '{REPORT}'; exec sleep 600"], tally, silence_s=3.0
    )
    worker.live()
    assert tally.take() == {
        "counts": {"read": 6, "hung: members": 1},
        "faults": {"consume": "the first one"},
    }


def test_process_that_exits_is_a_fault() -> None:
    tally = Tally()
    WorkerProcess("members", ["sh", "-c", "exit 3"], tally).live()
    assert tally.take() == {
        "counts": {"fault: members ended": 1},
        "faults": {"members ended": "exit code 3"},
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """One broker for all tests; the one that kills it is last."""
    with TierlogBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


def test_hanging_load_keeps_its_measurements(broker: TierlogBroker, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    load = ["sh", "-c", f"sleep 600 & echo $! > {note}; echo '{REPORT}'; wait"]
    found = run(broker, 10, load, timeout_s=3.0)
    assert [sample.counts["read"] for sample in found.samples] == [3]
    assert found.faults == {"consume": "the first one"}
    assert found.ended_early.startswith("the load hangs")
    with pytest.raises(ProcessLookupError):  # what it started does not continue either
        while True:
            os.kill(int(note.read_text()), 0)


def test_load_that_ends_early_keeps_its_measurements(broker: TierlogBroker) -> None:
    found = run(broker, 10, ["sh", "-c", f"echo '{REPORT}'; exit 4"])
    assert len(found.samples) == 1
    assert found.ended_early == "the load ended with exit code 4"


def test_dead_broker_ends_the_run(broker: TierlogBroker) -> None:
    load = ["sh", "-c", f"echo '{REPORT}'; kill -9 {broker.pid}; echo '{REPORT}'; exec sleep 600"]
    found = run(broker, 10, load, timeout_s=30)
    assert found.ended_early == "the broker ended"
    assert len(found.samples) <= 1
