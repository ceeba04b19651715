"""Archive for `spark-submit --archives`: tierlog and what an executor imports, from this environment.

It holds a directory for PYTHONPATH, without Python and PySpark, which a cluster has. The kernels are compiled
ahead (`records.kernel_cache`), so that a new Python worker does not spend seconds on it. Libraries are copied
as they are installed here: executors need the same Python version, operating system and architecture.
Called by `tierlog spark package`.
"""

import gzip
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import tierlog

EXECUTOR_DISTRIBUTIONS = ("numpy", "pyarrow", "numba", "boto3", "zstandard", "cramjam", "crc32c", "msgspec")
"""All that an executor imports, besides PySpark and what these require."""

NOT_OF_EXECUTORS = frozenset({"broker", "cli", "testing.py", "__pycache__", "compiled_kernels"})
_NEEDLESS_DIRECTORIES = frozenset({"__pycache__", "tests", "include"})
_NEEDLESS_SUFFIXES = (".pyi", ".pyc", ".pxd", ".pxi", ".h", ".a")
_TIME = 315_532_800  # 1980-01-01: the same input gives the same archive
_GZIP_LEVEL = 3  # level 9 takes far longer, for little


class PackageError(RuntimeError):
    """This environment lacks what belongs into the archive, or the archive cannot be written."""


@dataclass(frozen=True, slots=True)
class Package:
    """The archive that was written. Executors need this version of Python and this platform."""

    path: Path
    size_bytes: int
    distributions: dict[str, str]
    python: str
    platform: str


def write_package(path: Path, *, with_dependencies: bool = True) -> Package:
    """Write the archive, which replaces an earlier one at once. Raises PackageError."""
    if not path.name.endswith((".tar.gz", ".tgz")):
        raise PackageError(f"{path} must end with .tar.gz or .tgz: Spark unpacks an archive by its name")
    found = _closure(EXECUTOR_DISTRIBUTIONS) if with_dependencies else {}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # opened first: compiling takes ten seconds, which a wrong path need not wait for
        with (
            gzip.GzipFile(temporary, "wb", _GZIP_LEVEL, mtime=_TIME) as packed,
            tempfile.TemporaryDirectory() as kernels,
        ):
            _compile_kernels(Path(kernels))
            _write(packed, {**_of_tierlog(Path(kernels)), **_of_distributions(found.values())})
        temporary.replace(path)
    except OSError as error:
        raise PackageError(f"{path} cannot be written: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return Package(
        path=path,
        size_bytes=path.stat().st_size,
        distributions={name: found[name].version for name in sorted(found)},
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        platform=sysconfig.get_platform(),
    )


def _compile_kernels(directory: Path) -> None:
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(directory / "numba")}
    command = [sys.executable, "-m", "tierlog.spark.values.ahead", str(directory / "compiled_kernels")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise PackageError(f"the kernels could not be compiled: {ended.stderr.strip()}")


def _of_tierlog(kernels: Path) -> dict[str, Path]:
    """Files of tierlog by their names in the archive."""
    root = Path(tierlog.__file__).parent
    files = {f"tierlog/{path.name}": path for path in root.iterdir() if path.suffix == ".py"}
    for package in (path for path in root.iterdir() if path.is_dir()):
        for path in _walk(package):
            files[f"tierlog/{package.name}/{path.relative_to(package).as_posix()}"] = path
    for path in (root.parent / "pyspark_tierlog").glob("*.py"):
        files[f"pyspark_tierlog/{path.name}"] = path
    for path in (kernels / "compiled_kernels").iterdir():
        files[f"tierlog/records/compiled_kernels/{path.name}"] = path
    return {name: path for name, path in files.items() if not NOT_OF_EXECUTORS & set(name.split("/")[1:2])}


def _walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.is_dir() and path.name not in NOT_OF_EXECUTORS:
            yield from _walk(path)
        elif path.suffix in (".py", ".json", ".so"):
            yield path


def _of_distributions(found: Iterable[Distribution]) -> dict[str, Path]:
    files = {}
    for one in found:
        for file in one.files or ():
            name = PurePosixPath(file)
            needless = ".." in name.parts or _NEEDLESS_DIRECTORIES & set(name.parts)
            if not needless and not name.name.endswith(_NEEDLESS_SUFFIXES):
                path = Path(str(one.locate_file(file)))
                if path.is_file():
                    files[str(name)] = path
    return files


def _closure(names: Iterable[str]) -> dict[str, Distribution]:
    """Distributions and those that they require, by their normalised names. Extras are left out, and so is
    a requirement that is not installed here: a marker excludes it."""
    found: dict[str, Distribution] = {}
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            if name in EXECUTOR_DISTRIBUTIONS:
                raise PackageError(f"{name} is not installed here: pip install 'tierlog[spark]'") from None
            continue
        for requirement in found[name].requires or ():
            wanted, _, marker = requirement.partition(";")
            if "extra" not in marker and (match := re.match(r"[A-Za-z0-9._-]+", wanted)):
                todo.append(match[0])
    return found


def _write(packed: gzip.GzipFile, files: dict[str, Path]) -> None:
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(files):
            member = archive.gettarinfo(str(files[name].resolve()), name)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = _TIME
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            with open(files[name], "rb") as content:
                archive.addfile(member, content)
