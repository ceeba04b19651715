"""Canaries: the secrets of tests, which are recognized wherever they should not be.

Passwords, keys and tokens of tests begin with MARK. `tests/conftest.py` fails a test if MARK is in its
captured output, or in the log or command line of a broker. `.ci/find-canaries` fails a run of CI if it is in
its output. Neither prints the secret.
"""

from pathlib import Path
from typing import Any

import pytest

from tierlog.cli.process import TierlogBroker

MARK = "canary-"
REDACTED = "(a secret of the tests)"

leaks: list[str] = []
"""Places where brokers of this test showed a secret."""


def canary(name: str) -> str:
    """A secret."""
    return f"{MARK}of-{name}"


def redacted(text: str) -> str:
    """The text without what makes a secret of it."""
    return text.replace(MARK, REDACTED)


def watch_brokers(patch: pytest.MonkeyPatch) -> None:
    """Search the command line of each broker process when it starts, and its log when it has ended. If it
    starts warm (`warm_start`), the system does not show its command line."""
    first_line, reap = TierlogBroker._first_line, TierlogBroker._reap

    def started(broker: TierlogBroker, timeout_s: float) -> bytes:
        try:
            return first_line(broker, timeout_s)
        finally:  # not before: the kernel shows an empty command line for a moment
            words = broker._process.args if broker._process is not None else ""
            if MARK in str(words) or (broker.running and _has_mark(Path(f"/proc/{broker.pid}/cmdline"))):
                leaks.append("the command line of a broker, which every user of the machine can read")

    def ended(broker: TierlogBroker, timeout_s: float) -> int:
        ran = broker._process is not None
        code = reap(broker, timeout_s)
        if ran and broker.log_path.exists() and _has_mark(broker.log_path):
            leaks.append("the log of a broker")
        return code

    patch.setattr(TierlogBroker, "_first_line", started)
    patch.setattr(TierlogBroker, "_reap", ended)


def check_report(report: Any) -> None:
    """Fail the test if its output has a secret, or if its brokers showed one."""
    found = [name for name, text in report.sections if MARK in text]
    if report.when == "teardown":
        found += leaks
        leaks.clear()
    if not found:
        return
    report.sections = [(name, redacted(text)) for name, text in report.sections]
    if not report.failed:  # a traceback shows the test's source, which has secrets
        report.outcome = "failed"
        report.longrepr = f"a secret of the tests is in: {', '.join(found)} (tests/support/canaries.py)"


def _has_mark(file: Path) -> bool:
    try:
        return MARK.encode() in file.read_bytes()
    except OSError:
        return False
