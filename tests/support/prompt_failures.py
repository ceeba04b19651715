"""Failures as they happen: the name of each failed test and its error, while the other tests still run.

pytest reports failures at the end, which a run that is ended from outside does not reach.
"""

import pytest
from canaries import redacted

LINES_MAX, LINE_CHARACTERS = 6, 200


class PromptFailures:
    """A plugin of the process that prints: the controller, if pytest-xdist has workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or report.outcome not in ("failed", "rerun"):
            return
        what = "RUNS AGAIN" if report.outcome == "rerun" else f"FAILED ({report.when})"
        reporter.write_line(f"\n{what}: {report.nodeid}")  # below the line of dots
        for line in redacted(_error(report)).splitlines()[:LINES_MAX]:
            reporter.write_line(f"    {line[:LINE_CHARACTERS]}")
        reporter.flush()


def _error(report: pytest.TestReport) -> str:
    """The message of the exception; the end of the report, if there was none."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash else "\n".join(report.longreprtext.splitlines()[-LINES_MAX:])
