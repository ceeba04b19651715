"""An hour without the object store in virtual time, and ten minutes in CI."""

import logging
from pathlib import Path

import pytest
import structlog
from simulator.outage import OutageRun

LINES_MAX = 60
"""Warnings and errors of three brokers, of which each leads one partition."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("outage_s", "growth"), [(600.0, 2), pytest.param(3600.0, 10, marks=pytest.mark.nightly)]
)
def test_nothing_but_the_local_logs_grows_without_the_store(
    tmp_path: Path, outage_s: float, growth: int
) -> None:
    run = OutageRun(tmp_path, outage_s)
    structlog.configure(
        processors=[run.count_line], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
    )
    run.play()
    before, samples, after = run.before, run.samples, run.after
    assert before is not None
    assert after is not None
    early = samples[2]
    for sample in samples[3:]:
        assert sample.remote_end == early.remote_end  # nothing was uploaded
        assert sample.tasks <= early.tasks + growth
        assert sample.jobs <= 6
        assert sample.readers <= 6
        assert sample.deletions <= early.deletions + 2
        assert sample.started <= 3
        assert sample.metadata_index <= early.metadata_index + 2 * growth
        assert sample.log_lines <= LINES_MAX
    assert after.remote_end > 10 * before.remote_end
    assert (after.deletions, after.started, after.jobs) == (0, 0, 0)
