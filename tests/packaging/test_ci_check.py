"""`.ci/check`, which `make check` starts, with tools that only say how they were started."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / ".ci" / "check"
TOOL = '#!/bin/sh\ngrep SigIgn: /proc/$$/status\nexit "$RESULT"\n'
SIGINT_BIT = 1 << 1


@pytest.fixture
def _heeded_interrupts() -> Iterator[None]:
    """A shell cannot heed a signal that was ignored when it started, as in a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.usefixtures("_heeded_interrupts")
def test_tools_may_be_interrupted_and_their_failures_count(tmp_path: Path, result: int) -> None:
    for name in ("ruff", "mypy", "lint-imports", "pytest"):
        (tmp_path / name).write_text(TOOL)
        (tmp_path / name).chmod(0o700)
    environment = {**os.environ, "BIN": str(tmp_path), "JOBS": "1", "RESULT": str(result)}
    ended = subprocess.run([CHECK], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == result
    ignored = [int(line.split()[1], 16) for line in ended.stdout.splitlines() if line.startswith("SigIgn:")]
    assert len(ignored) == 5 and not any(one & SIGINT_BIT for one in ignored), ended.stdout
