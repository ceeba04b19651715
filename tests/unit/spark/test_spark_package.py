"""The archive for executors, unpacked at another path and used by processes of their own."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tierlog.spark import package
from tierlog.spark.package import PackageError, write_package

DECODE = """
import json
from tierlog.records import kernels
from tierlog.records.columnar import COLUMNS, decode_columns
from tierlog.records.writer import NewRecord, encode_batch

record = NewRecord(7, b"key", b"value", [("name", b"header")])
(columns,) = decode_columns(encode_batch([record]), list(COLUMNS))
functions = [function for function in vars(kernels).values() if hasattr(function, "stats")]
compiled = sum(sum(function.stats.cache_misses.values()) for function in functions)
values = [bytes(value).decode() for value in columns.arrays["value"].to_pylist()]
print(json.dumps([kernels.__file__, compiled, values, columns.arrays["headers"].to_pylist()[0][0]["key"]]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tierlog alone, without the libraries."""
    directory = tmp_path_factory.mktemp("package")
    made = write_package(directory / "executor.tar.gz", with_dependencies=False)
    assert made.size_bytes == made.path.stat().st_size
    with tarfile.open(made.path) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    return directory / "unpacked"


def decoded(unpacked: Path, cache: Path) -> list[object]:
    """File of the kernels, number of compiled functions, values and the first header."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "NUMBA_CACHE_DIR": str(cache)}
    ended = subprocess.run(
        [sys.executable, "-c", DECODE], env=environment, capture_output=True, text=True, check=True
    )
    found: list[object] = json.loads(ended.stdout)
    return found


@pytest.mark.slow  # numba compiles the decoder's loops
def test_kernels_of_the_archive_need_no_compiler(unpacked: Path, tmp_path: Path) -> None:
    kernels = str(unpacked / "tierlog" / "records" / "kernels.py")
    assert decoded(unpacked, tmp_path) == [kernels, 0, ["value"], "name"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_kernels_whose_source_changed_are_compiled_again(unpacked: Path, tmp_path: Path) -> None:
    source = unpacked / "tierlog" / "records" / "kernels.py"
    before = source.read_text()
    try:
        source.write_text(before + "\n# changed\n")
        _, compiled, *rows = decoded(unpacked, tmp_path)
    finally:
        source.write_text(before)
    assert compiled != 0
    assert rows == [["value"], "name"]


@pytest.mark.slow
def test_archive_holds_nothing_of_brokers(unpacked: Path) -> None:
    assert sorted(path.name for path in unpacked.iterdir()) == ["pyspark_tierlog", "tierlog"]
    packages = {path.name for path in (unpacked / "tierlog").iterdir() if path.is_dir()}
    assert {"base", "metadata", "records", "spark", "tiering"} <= packages
    assert packages & {"broker", "cli"} == set()


def test_archive_must_be_named_so_that_spark_unpacks_it(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"must end with \.tar\.gz"):
        write_package(tmp_path / "executor.zip")
    assert list(tmp_path.iterdir()) == []


def test_archive_that_cannot_be_written_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "_compile_kernels", lambda _: pytest.fail("kernels were compiled"))
    with pytest.raises(PackageError, match="cannot be written"):
        write_package(tmp_path / "missing" / "executor.tar.gz")
