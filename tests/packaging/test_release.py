"""The files of a release: complete, the same each time, and refused for a tree that is not one."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tierlog

ROOT = Path(__file__).parents[2]
WHEEL, SDIST = f"tierlog-{tierlog.__version__}-py3-none-any.whl", f"tierlog-{tierlog.__version__}.tar.gz"
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs", "localstack"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def git(tree: Path, *words: str) -> str:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@example.com", "-c", "core.hooksPath=/dev/null"]
    ended = subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True, text=True)
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit: this tree, with changes that are not committed here."""
    tree = tmp_path_factory.mktemp("repository") / "tierlog"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=NOT_COPIED)
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "release")
    return tree


def release(tree: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [tree / ".ci" / "release", "--target", target, "--pure", "--no-bill", *options]
    environment = {**os.environ, "BIN": str(Path(sys.executable).parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("release") / "dist"
    ended = release(tree, target)
    assert ended.returncode == 0, ended.stderr
    return target


def test_a_release_has_wheel_sdist_container_file_and_their_checksums(made: Path) -> None:
    lines = dict(reversed(line.split()) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert set(lines) == {WHEEL, SDIST, "Dockerfile", "constraints.txt"}
    assert {file.name for file in made.iterdir()} == {*lines, "SHA256SUMS"}
    for name, checksum in lines.items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == checksum


def test_the_wheel_knows_its_commit(tree: Path, made: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(made / WHEEL).extractall(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "tierlog", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    commit = git(tree, "rev-parse", "HEAD")[:8]
    assert ended.stdout == f"tierlog {tierlog.__version__} (commit {commit})\n"


def test_the_container_file_installs_the_wheel_beside_it(made: Path) -> None:
    text = (made / "Dockerfile").read_text()
    assert f"COPY {WHEEL} constraints.txt ./" in text
    assert f"--constraint constraints.txt ./{WHEEL}" in text
    assert "COPY src" not in text and "COPY pyproject.toml" not in text
    assert "aiohttp==" in (made / "constraints.txt").read_text()


def test_two_runs_make_the_same_bytes(tree: Path, made: Path, tmp_path: Path) -> None:
    assert release(tree, tmp_path / "again").returncode == 0
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text()


def test_uncommitted_changes_are_refused(tree: Path, tmp_path: Path) -> None:
    extra = tree / "src" / "tierlog" / "extra.py"
    extra.touch()
    try:
        ended = release(tree, tmp_path / "dist")
    finally:
        extra.unlink()
    assert ended.returncode == 1
    assert ended.stderr.startswith("no release: uncommitted changes, such as src/tierlog/extra.py")
    assert not (tmp_path / "dist").exists()


def test_a_directory_with_other_files_is_not_emptied(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    ended = release(tree, tmp_path)
    assert ended.returncode == 1 and "has files that are not of a release, such as notes.txt" in ended.stderr
    assert (tmp_path / "notes.txt").exists()


def test_a_version_that_the_changelog_does_not_have_is_refused(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tree, "clone", "--quiet", str(tree), str(other))
    (other / "src" / "tierlog" / "__init__.py").write_text('"""tierlog"""\n\n__version__ = "7.8.9"\n')
    git(other, "commit", "--quiet", "--all", "--message", "version")
    ended = release(other, tmp_path / "dist")
    assert (ended.returncode, ended.stderr) == (
        1,
        "no release: CHANGELOG.md has no section `## 7.8.9 (YYYY-MM-DD)`\n",
    )
