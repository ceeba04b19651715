"""File store: where a job writes files, as pyarrow's file systems reach it.

A directory, `s3://bucket/prefix`, `gs://…`, `abfss://…` or `hdfs://…`. Options of S3 are those of pyarrow's
S3FileSystem. The store is pickled for executors, which open it again.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

S3_SCHEMES = ("s3://", "s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class FileStore:
    """`url`: of the folder below which all names are. `options`: name and value of S3FileSystem's."""

    url: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def create(self, name: str) -> Any:
        """A stream that writes a new file. On object stores the file appears when the stream is closed."""
        system, path = self._open(name)
        if self.is_local:
            system.create_dir(path.rpartition("/")[0], recursive=True)
        return system.open_output_stream(path)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file that readers see completely or not at all."""
        if not self.is_local:
            with self.create(name) as stream:
                stream.write(content)
            return
        _, path = self._open(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = f"{path}.{os.getpid()}.new"
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        self.sync_folders([name])

    def create_once(self, name: str, content: bytes) -> None:
        """As `write`, but raises FileExistsError if the file exists. Only a directory excludes that two
        processes succeed at once."""
        if not self.is_local:
            if self.size(name) is not None:
                raise FileExistsError(name)
            self.write(name, content)
            return
        staged = f"{name}.{os.getpid()}.staged"
        self.write(staged, content)
        _, path = self._open(name)
        _, staged_path = self._open(staged)
        try:
            os.link(staged_path, path)
            self.sync_folders([name])
        finally:
            os.unlink(staged_path)

    def sync(self, name: str) -> None:
        """Make a file that was written survive a power failure. Object stores do so by themselves."""
        if self.is_local:
            _sync(self._open(name)[1])
            self.sync_folders([name])

    def sync_folders(self, names: Iterable[str]) -> None:
        """Make the names of files survive a power failure: sync their folders, up to that of the store."""
        if not self.is_local:
            return
        root = Path(self._open("")[1])
        folders = {parent for name in names for parent in Path(root / name).parents}
        for folder in sorted(folders, reverse=True):
            if folder == root or root in folder.parents:
                _sync(str(folder))
        _sync(str(root.parent))

    def children(self) -> list[str]:
        """Names of the files and folders at the top."""
        system, path = self._open("")
        selector = pafs.FileSelector(path, allow_not_found=True)
        return [info.base_name for info in system.get_file_info(selector)]

    def read(self, name: str) -> bytes:
        system, path = self._open(name)
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if it does not exist."""
        system, path = self._open(name)
        info = system.get_file_info([path])[0]
        return int(info.size) if info.type == pafs.FileType.File else None

    def names(self, folder: str) -> Iterator[str]:
        """All files below a folder."""
        system, root = self._open("")
        _, path = self._open(folder)
        selector = pafs.FileSelector(path, allow_not_found=True, recursive=True)
        for info in system.get_file_info(selector):
            if info.type == pafs.FileType.File:
                yield info.path[len(root.rstrip("/")) + 1 :]

    def move(self, name: str, to: str) -> None:
        """On object stores: a copy on the server, and a deletion."""
        system, path = self._open(name)
        _, target = self._open(to)
        if self.is_local:
            system.create_dir(target.rpartition("/")[0], recursive=True)
        system.move(path, target)

    def delete(self, folder: str) -> None:
        """Delete a folder and all below it."""
        system, path = self._open(folder)
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            return

    @property
    def is_local(self) -> bool:
        return "://" not in self.url or self.url.startswith("file://")

    def _open(self, name: str) -> tuple[Any, str]:
        system, path = _file_system(self.url, self.options)
        return system, f"{path}/{name}" if name else path


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@lru_cache(maxsize=8)
def _file_system(url: str, options: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    if url.startswith(S3_SCHEMES) and options:
        given: dict[str, Any] = dict(options)
        if "://" in given.get("endpoint_override", ""):
            given["scheme"], _, given["endpoint_override"] = given["endpoint_override"].partition("://")
        return pafs.S3FileSystem(**given), url.partition("://")[2].rstrip("/")
    if "://" not in url:
        return pafs.LocalFileSystem(), os.path.abspath(url)
    system, path = pafs.FileSystem.from_uri(url)
    return system, path.rstrip("/")
