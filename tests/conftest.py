"""Configuration of all tests: Hypothesis profiles, reruns in CI, and the order of the files.

Hypothesis draws new examples on every run. With HYPOTHESIS_PROFILE=fixed, as in CI, it draws the same
examples each time, so that a failure there comes from the change under test. Examples have no deadline, since
the machine may be busy.

With RERUN_REAL_PROCESSES=1, as in CI, a failed test that starts real processes runs a second time, since a
busy machine may starve one of them. The end of the run lists every rerun (ADR 0009).

Failures and reruns are also printed when they happen (`prompt_failures`).

A test fails if its output, or the log or command line of a broker, has a secret of the tests (`canaries`).

Commands find no profile of the developer, whose cluster the tests would change.

A crash of a pytest-xdist worker fails its test without a rerun and ends the run.
"""

import gc
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from canaries import check_report, redacted, watch_brokers
from hypothesis import settings
from prompt_failures import PromptFailures
from warm_start import WarmStart, brokers_start_warm

os.environ["PYSPARK_SUBMIT_ARGS"] = (
    "--conf spark.python.authenticate.socketTimeout=120s "  # 15 s are too short for a busy machine
    "--conf spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 pyspark-shell"
)
"""Options of every Spark driver that a test starts. In SPARK_CONF_DIR they would be in Java's class path:
Java would not use its archive of loaded classes, and each driver would take 20 s of CPU longer to start."""

settings.register_profile("drawn", deadline=None)
settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drawn"))

SLOW_TIMEOUT_S = 300
"""Time-out of a slow test that sets none. On a busy machine, some take five times as long as alone."""

REAL_PROCESSES = {"chaos", "clients", "docs", "integration", "packaging"}
"""Folders of tests that start real processes. All other tests are deterministic and get one try."""


LONG_FILES = (
    "integration/test_spark_write.py",
    "integration/test_node_identity.py",
    "integration/test_spark_jobs.py",
    "integration/test_local_cluster.py",
    "integration/test_spark_read.py",
    "docs/test_commands.py",
    "integration/test_spark_rewrite.py",
    "integration/test_tiered_cluster.py",
    "integration/test_spark_connect.py",
    "integration/test_replicated_cluster.py",
    "integration/test_spark_stream.py",
    "integration/test_rolling_security.py",
    "integration/test_spark_s3.py",
    "integration/test_doctor.py",
    "integration/test_spark_replay.py",
    "integration/test_spark_snapshots.py",
)
"""The files whose slow tests take longest, which begin first: a worker that begins one at the end of the run
leaves the others idle. `make slow` keeps the order. Spark computes, while clusters wait: they take turns."""


GC_THRESHOLDS = 20_000, 20, 20
"""Allocations between two collections of the youngest objects, and how many of those between two of the older
ones. With Python's own (700, 10, 10), half of the fast tests' CPU time goes into collections."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage collection visits what is imported for the tests: it lives until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(PromptFailures(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
    if os.environ.get("RERUN_REAL_PROCESSES") != "1":
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in REAL_PROCESSES:
            item.add_marker(pytest.mark.flaky(reruns=1))


MEMORY = Path("/dev/shm")
TARGETS = ("TIERLOG_PROFILE", "TIERLOG_BOOTSTRAP", "TIERLOG_ADMIN", "TIERLOG_CLIENT_CONFIG")


@pytest.fixture(scope="session", autouse=True)
def _no_target_of_the_developer(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        for name in TARGETS:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _watched_brokers() -> Generator[WarmStart, None, None]:
    with pytest.MonkeyPatch.context() as patch, brokers_start_warm(patch) as warm:
        watch_brokers(patch)
        yield warm


@pytest.fixture
def brokers_from_scratch(_watched_brokers: WarmStart, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the system knows of a process from its start: its command line and its variables."""
    monkeypatch.setattr(_watched_brokers, "enabled", False)


@pytest.fixture
def memory_path(tmp_path: Path) -> Generator[Path, None, None]:
    """A directory in memory, if there is one, for tests that simulate power failures: they wait for hundreds
    of fsyncs, which take long on a busy disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="tierlog-tests.") as directory:
        yield Path(directory)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    check_report(report)
    item.stash[FAILED] = report.failed or (report.when != "setup" and item.stash[FAILED])
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """After a failure, end the fixtures of the module and session before pytest-rerunfailures keeps them for
    the second try: a broker in which the test has created its topic would make it fail again."""
    if item.get_closest_marker("flaky") and item.stash[FAILED]:
        item.session._setupstate.teardown_exact(None)


CRASHED = pytest.StashKey[list[str]]()
"""Crashed workers of pytest-xdist."""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Record the crash of a worker, which pytest-xdist does not report with -q."""
    if error:
        node.config.stash.setdefault(CRASHED, []).append(f"{node.gateway.id}: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    second_tries = terminalreporter.stats.get("rerun", [])
    if second_tries:
        terminalreporter.section("FAILED ONCE AND RUN AGAIN", red=True)
        for report in second_tries:
            # a traceback shows the test's source, and a run that passes must show no secret
            terminalreporter.write_line(f"{report.nodeid}\n{redacted(report.longreprtext)}")
    crashed = terminalreporter.config.stash.get(CRASHED, [])
    if crashed:
        terminalreporter.section("A WORKER CRASHED, AND MANY TESTS DID NOT RUN", red=True)
        terminalreporter.write_line("\n".join(crashed))
        terminalreporter.write_line(
            "The failure above names the test; what the worker's threads did is further up."
        )
