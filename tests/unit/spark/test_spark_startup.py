"""Startup of a local session: each part makes it faster, and stands aside where it does not fit."""

import subprocess
import sys
from pathlib import Path

import pytest

from tierlog.spark.startup import class_archive_options, python_launcher

pyspark = pytest.importorskip("pyspark")
HOME = Path(pyspark.__file__).parent
ZIP = HOME / "python" / "lib" / "pyspark.zip"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)


def python_path_of_workers() -> str:
    """As Spark makes it: the zip files, its own jar, and what the user has set."""
    zips = [ZIP, *ZIP.parent.glob("py4j-*.zip"), HOME / "jars" / "spark-core.jar", "/of/the user"]
    return ":".join(map(str, zips))


def test_workers_import_the_installed_pyspark_and_not_the_zip_file() -> None:
    told = "import os, pyspark, sys; print(pyspark.__file__, sys.executable, os.environ['PYTHONPATH'])"
    for python, file in ((sys.executable, ZIP), (python_launcher(), HOME)):
        done = subprocess.run(
            [python, "-c", told],
            env={"PYTHONPATH": python_path_of_workers()},
            capture_output=True,
            text=True,
            check=True,
        )
        path, executable, *rest = done.stdout.split(maxsplit=2)
        assert Path(path).is_relative_to(file) and executable == sys.executable
        assert "/of/the user" in rest[0]


def test_another_spark_home_keeps_its_own_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_launcher() != sys.executable
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert python_launcher() == sys.executable


def test_a_pyspark_that_workers_would_not_find_is_left_in_the_zip_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nonexistent")
    monkeypatch.setenv("PYTHONPATH", "/nonexistent either")
    assert python_launcher() == sys.executable
    monkeypatch.setenv("PYTHONPATH", str(HOME.parent))
    assert python_launcher() != sys.executable


def test_classes_are_archived_once_and_then_used(tmp_path: Path) -> None:
    first = class_archive_options(tmp_path)
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    archive = Path(first.split()[0].partition("=")[2])
    archive.write_bytes(bytes(4_096))  # Java writes the header last: not complete
    assert class_archive_options(tmp_path) == first
    archive.write_bytes(b"\xa8\xab\x0b\xf0")
    assert class_archive_options(tmp_path).startswith(f"-XX:SharedArchiveFile={archive} ")
    (tmp_path / "release").write_text("another Java")
    assert str(archive) not in class_archive_options(tmp_path)


def test_no_archive_without_a_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive_options(tmp_path) == "" and python_launcher() == sys.executable
