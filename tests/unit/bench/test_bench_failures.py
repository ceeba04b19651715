"""`make bench` when a case or a broker fails: the failure is reported, and later cases are measured."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from report import TIERLOG, Report
from suite import Broker, CaseFailed, run_case
from versus import Standing, measure_case

CASE = "memory after the load"


def process_that_ended() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_failed_case_says_why() -> None:
    with pytest.raises(CaseFailed, match="No such file or directory"):
        run_case(Broker("127.0.0.1:1", process_that_ended()), "idle", "--seconds", "0", "--warm-s", "0")


def test_a_case_that_hangs_is_ended() -> None:
    with pytest.raises(CaseFailed, match="not done within 1 s"):
        run_case(Broker("127.0.0.1:1", os.getpid()), "idle", "--seconds", "1000", limit_s=1)


def test_dead_broker_is_restarted_and_its_failure_reported() -> None:
    started = []

    @contextmanager
    def start() -> Iterator[Broker]:
        started.append(process_that_ended())
        yield Broker("127.0.0.1:1", started[-1], TIERLOG)

    report = Report({}, rounds=2, seconds=0.1)
    standing = Standing(TIERLOG, start)
    measure_case(CASE, standing, "", report)
    measure_case(CASE, standing, "", report)
    assert len(started) == 2
    assert ["No such file" in reason for reason in report.at(CASE, TIERLOG).failures] == [True, True]
    assert not report.whole(CASE, [TIERLOG])
