"""A test that crashes its worker fails by name, and the run ends without waiting for the remaining tests."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = 8
"""More than are dealt out at first, so that some wait for a worker."""

PLUGINS = ("-p", "xdist.plugin", "-p", "pytest_rerunfailures")
"""Those that act when a worker crashes."""

PASSES = """
def test_passes():
    pass
"""

CRASHES = """
import os, signal

def test_before():
    pass

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

def test_behind():
    pass
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crash_ends_the_run_and_is_named(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    (tmp_path / "test_0.py").write_text(CRASHES)
    for number in range(1, FILES):
        (tmp_path / f"test_{number}.py").write_text(PASSES)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *options_of_make()],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "support", ROOT / "src"))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    assert "crashed while running 'test_0.py::test_crashes'" in run.stdout
    assert "A WORKER CRASHED" in run.stdout


def options_of_make() -> list[str]:
    found = re.search(r"^PYTEST := \$\(BIN\)/pytest (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].replace("$(JOBS)", "2").split()
