"""A test that crashes its worker fails by name, and the run ends without waiting for the remaining tests.
A test that fails is named at once, although another one hangs."""

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


FAILS = """
def test_fails():
    assert 1 + 1 == 3, "not three"
"""

HANGS = """
import threading

def test_hangs():
    threading.Event().wait()
"""


def begin(directory: Path, *files: str) -> "subprocess.Popen[str]":
    """Run the tests of the files as `make` does."""
    shutil.copy(ROOT / "tests" / "conftest.py", directory)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    for number, content in enumerate(files):
        (directory / f"test_{number}.py").write_text(content)
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *PLUGINS, *options_of_make()],
        cwd=directory,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests" / "support", ROOT / "src"))),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_crash_ends_the_run_and_is_named(tmp_path: Path) -> None:
    with begin(tmp_path, CRASHES, *[PASSES] * (FILES - 1)) as run:
        output = run.communicate()[0]
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "crashed while running 'test_0.py::test_crashes'" in output
    assert "A WORKER CRASHED" in output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failure_is_named_while_other_tests_run(tmp_path: Path) -> None:
    with begin(tmp_path, FAILS, HANGS) as run:
        assert run.stdout is not None
        try:
            lines = iter(run.stdout.readline, "")
            assert "FAILED (call): test_0.py::test_fails\n" in lines  # read up to it
            assert next(lines).strip() == "AssertionError: not three"
        finally:
            run.kill()


def options_of_make() -> list[str]:
    found = re.search(r"^PYTEST := \$\(BIN\)/pytest (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].replace("$(JOBS)", "2").split()
