"""Builds of tierlog besides the one under test, as directories for PYTHONPATH of real nodes.

`previous_release`: a wheel of a commit in the history of this clone, kept below `build/releases`. Nothing
comes from the network. `changed_copy`: this tree with other version constants, as a later release.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import tierlog

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "releases"
BEFORE_0_1_0 = "46ccc503527b5a54e9691e741958636a9f92c1aa"
SOURCES = ("src", "broker", "cli", "metadata", "spark", "tiering")


class NoHistory(Exception):
    """The clone is shallow: `git fetch --unshallow` gets the commit."""


def previous_release(directory: Path) -> Path:
    """The newest tagged release before this version; without one, the last commit before 0.1.0. A shallow
    clone has neither: then a copy of this tree in `directory` with another version, which shows less."""
    tags = _git("tag", "--merged", "HEAD", "--sort=-version:refname", "--list", "v[0-9]*").split()
    older = [tag for tag in tags if tag != f"v{tierlog.__version__}"]
    try:
        return wheel_of(older[0] if older else BEFORE_0_1_0)
    except NoHistory as missing:
        warnings.warn(f"no previous release runs beside this tree: {missing}", stacklevel=2)
        return changed_copy(directory, {"__init__.py": {"__version__": '"0.0.1"'}})


def wheel_of(revision: str) -> Path:
    """The unpacked wheel of a revision, built once. Raises NoHistory."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
    except subprocess.CalledProcessError:
        raise NoHistory(f"this clone does not have {revision}: run `git fetch --unshallow`") from None
    target = CACHE / commit
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as scratch:
            os.replace(_unpacked_wheel(commit, Path(scratch)), target)
    return target


def changed_copy(directory: Path, changes: Mapping[str, Mapping[str, str]]) -> Path:
    """This tree with other values of constants. `changes`: file below src/tierlog -> name -> value."""
    for part in SOURCES:
        shutil.copytree(
            ROOT / part, directory / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file, constants in changes.items():
        path = directory / "src" / "tierlog" / file
        text = path.read_text(encoding="utf-8")
        for name, value in constants.items():
            text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
            assert count == 1, f"{file} has {count} lines with {name}"
        path.write_text(text, encoding="utf-8")
    return directory / "src"


def _unpacked_wheel(commit: str, scratch: Path) -> Path:
    archive, source, made = scratch / "source.tar", scratch / "source", scratch / "made"
    _git("archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="tar")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(scratch),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        wheel.extractall(made)
    return made


def _git(*words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return ended.stdout
