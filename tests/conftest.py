"""Settings of all tests: examples of Hypothesis, and second tries in CI.

Hypothesis draws new examples on every run. With HYPOTHESIS_PROFILE=fixed, as in CI, it draws the same ones
each time, so that what fails there is what was changed. No example has a time limit: the machine may be busy.

With RERUN_REAL_PROCESSES=1, as in CI, a test that starts real processes runs a second time when it fails,
since a busy machine may starve one of them. The end of the run lists every second try (ADR 0009).
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("drawn", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drawn"))

REAL_PROCESSES = {"chaos", "clients", "docs", "integration", "packaging"}
"""Folders of tests that start real processes. All other tests are deterministic and get one try."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("RERUN_REAL_PROCESSES") != "1":
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in REAL_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    second_tries = terminalreporter.stats.get("rerun", [])
    if second_tries:
        terminalreporter.section("FAILED ONCE AND RUN AGAIN", red=True)
        for report in second_tries:
            terminalreporter.write_line(f"{report.nodeid}\n{report.longreprtext}")
