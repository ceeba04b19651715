"""The wheel is complete and works in an empty environment outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "cli", "metadata", "spark", "tiering")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*words: str | Path, cwd: Path, stdin: str = "") -> str:
    """Runs a command without this checkout's environment; returns its standard output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TIERLOG_", "VIRTUAL"))
    }
    ended = subprocess.run(words, cwd=cwd, env=kept, input=stdin, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the checkout without stale files."""
    directory = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, directory / "tierlog", symlinks=True, ignore=ignored)
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        directory,
        cwd=directory / "tierlog",
    )
    return next(directory.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel and its dependencies in the locked versions."""
    directory = tmp_path_factory.mktemp("environment")
    locked = [line.rstrip(" \\\n") for line in (ROOT / "requirements.lock").open() if line[0].isalnum()]
    (directory / "constraints.txt").write_text("\n".join(locked))
    run(sys.executable, "-m", "venv", directory / "venv", cwd=directory)
    python = directory / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", wheel, cwd=directory)
    return python.parent


@pytest.fixture
def broker(installed: Path, tmp_path: Path) -> Iterator[str]:
    """Bootstrap address of a broker that runs the installed wheel."""
    command = [installed / "tierlog", "dev", "--port", "0", "--json", "--exit-with-parent"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["bootstrap"]
        process.terminate()


def test_wheel_contains_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {
        f"tierlog/{file.relative_to(ROOT)}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if "__pycache__" not in file.parts
    }
    modules |= {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert modules - names == set()
    assert {"tierlog/py.typed", "tierlog/testing.py", "pyspark_tierlog/__init__.py"} <= names
    page = {f"tierlog/broker/gateway/web/static/{name}" for name in ("app.css", "app.js", "icon.svg")}
    assert page <= names
    assert not {name for name in names if name.startswith("tests/")}


@pytest.mark.nightly
def test_installed_command_prints_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "tierlog", "--version", cwd=tmp_path).startswith("tierlog ")


@pytest.mark.nightly
def test_installed_command_produces_and_consumes(installed: Path, broker: str, tmp_path: Path) -> None:
    tierlog = installed / "tierlog"
    run(tierlog, "topic", "create", "greetings", "-p", "3", "-b", broker, cwd=tmp_path)
    run(
        tierlog,
        "produce",
        "greetings",
        "-K",
        ":",
        "-z",
        "zstd",
        "-b",
        broker,
        cwd=tmp_path,
        stdin="a:one\nb:two\nc:three\n",
    )
    lines = run(tierlog, "consume", "greetings", "--from-beginning", "-F", "json", "-b", broker, cwd=tmp_path)
    records = [json.loads(line) for line in lines.splitlines()]
    assert sorted((record["key"], record["value"]) for record in records) == [
        ("a", "one"),
        ("b", "two"),
        ("c", "three"),
    ]
