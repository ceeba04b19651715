"""Makes the first query of a local session start sooner. Called by `session`.

A first query spends most of its time on starting: the JVM loads thousands of classes, and three Python
processes import PySpark before the first task does. None of this changes a result, and each part may fail:
then the session starts as any other does.
"""

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from tierlog.base.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVES_KEPT_MS = 30 * 86_400_000

_LAUNCHER = """#!/bin/sh
# Removes Spark's zip files from the start of PYTHONPATH, and runs Python with the installed PySpark.
PYTHONPATH=${{PYTHONPATH#"{zips}"}}
export PYTHONPATH
exec "{python}" "$@"
"""


def cache_directory() -> Path:
    """tierlog's directory in the user's cache. Raises OSError if the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierlog"
    except RuntimeError as failure:
        raise OSError(str(failure)) from None


def write_script(path: Path, text: str) -> None:
    """An executable file with this text. Replaced atomically, because several processes may start at once."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(path)


def python_launcher() -> str:
    """The Python of Spark's workers: one that imports the installed PySpark, or this one.

    Spark puts `pyspark.zip`, which has no compiled modules, before all installed packages. So each Python
    process of a query compiles PySpark's source again, for about 0.8 seconds.
    """
    import pyspark

    package = Path(pyspark.__file__).parent
    lib = package / "python" / "lib"
    zips = [lib / "pyspark.zip", *sorted(lib.glob("py4j-*.zip"))]
    found_by_workers = [sysconfig.get_path("purelib"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    is_spark_home = os.environ.get("SPARK_HOME", str(package)) == str(package)
    if not is_spark_home or not zips[0].exists() or str(package.parent) not in found_by_workers:
        return sys.executable
    text = _LAUNCHER.format(zips="".join(f"{path}{os.pathsep}" for path in zips), python=sys.executable)
    try:
        launcher = cache_directory() / f"python-{_digest(text)}"
        write_script(launcher, text)
    except OSError:
        return sys.executable
    return str(launcher) if os.access(launcher, os.X_OK) else sys.executable  # not on a mount with noexec


def class_archive_options(java_home: Path) -> str:
    """Java's options for an archive of loaded classes (AppCDS), in the user's cache.

    The first session that finds none writes it when its JVM ends. Java ignores an archive of other classes.
    """
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    try:
        java = (java_home / "bin" / "java").resolve()
        of = f"{java} {_release(java_home)} {jars} {jars.stat().st_mtime_ns}"
        cache_directory().mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    archive = cache_directory() / f"spark-classes-{_digest(of)}.jsa"
    is_complete = _is_complete(archive)
    if " " in str(archive) or not (is_complete or os.access(archive.parent, os.W_OK)):
        return ""
    if not is_complete:
        _remove_old_archives(archive.parent)
    option = "-XX:SharedArchiveFile" if is_complete else "-XX:ArchiveClassesAtExit"
    return f"{option}={archive} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def start_workers(spark: "SparkSession") -> None:
    """Start the process that forks Python workers, and register the source at the same time.

    Spark has one such process for each set of environment variables. Data sources that are registered share
    theirs with `mapInArrow`.
    """
    starting = Thread(target=_run_a_worker, args=[spark], name="tierlog-start-workers", daemon=True)
    starting.start()
    from pyspark.errors import AnalysisException

    from tierlog.spark.source import TierlogSource

    # PySpark 4.0 refuses a source that it finds by itself, and later ones log a warning
    manager = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    with _only_errors(spark, manager), suppress(AnalysisException):
        spark.dataSource.register(TierlogSource)
    starting.join()


def _run_a_worker(spark: "SparkSession") -> None:
    with suppress(Exception):  # a query says what is wrong with the workers
        spark.sparkContext.setJobDescription("start Python workers")
        spark.range(0, 1, 1, 1).mapInArrow(_unchanged, "id BIGINT").count()


def _unchanged(batches: Any) -> Any:
    return batches


@contextmanager
def _only_errors(spark: "SparkSession", logger: str) -> Iterator[None]:
    """Without warnings of one of Java's loggers. With another library than Log4j, they are logged."""
    log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    before = None
    with suppress(Exception):
        before = log4j.LogManager.getLogger(logger).getLevel()
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
    try:
        yield
    finally:
        if before is not None:
            log4j.core.config.Configurator.setLevel(logger, before)


def _is_complete(archive: Path) -> bool:
    """Java writes the header last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(4))
    except OSError:
        return False


def _remove_old_archives(directory: Path) -> None:
    """Those of earlier versions of Java and PySpark: 160 MB each. A JVM that has one mapped keeps it."""
    oldest_ms = SystemClock().now_ms() - ARCHIVES_KEPT_MS
    for other in directory.glob("spark-classes-*.jsa"):
        with suppress(OSError):
            if other.stat().st_mtime * 1000 < oldest_ms:
                other.unlink()


def _release(java_home: Path) -> str:
    try:
        return (java_home / "release").read_text()
    except OSError:
        return ""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
