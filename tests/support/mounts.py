"""Mounts small and broken file systems. A test that may not mount is skipped and says so."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"NOT RUN: mounting a file system needs root: {done.stderr.strip()}")


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=False)


@contextmanager
def tmpfs(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of this size."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
    try:
        yield path
    finally:
        _unmount(path)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Remount the path read-only, as the kernel does with a damaged disk: opening for writing fails with
    EROFS.
    """
    _mount("--bind", str(path), str(path))
    try:
        _mount("-o", "remount,bind,ro", str(path))
        yield
    finally:
        _unmount(path)
