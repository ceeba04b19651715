"""Admin route that measures this node's disks and its object store: `POST /v1/self-test`.

Bounded in bytes and time, and one at a time. Files are unlinked while they are open, so that not even a crash
leaves one. Objects are below the prefix for checks of the store, and are deleted at the end.
"""

import asyncio
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from tierlog.base.daemon_threads import DaemonThreads
from tierlog.broker.gateway.node import Node
from tierlog.broker.gateway.requests import decode_body, http_error
from tierlog.tiering.object_store import ObjectStore

DISK_BYTES_MAX = 256 << 20
DISK_FREE_FACTOR = 10
"""A directory with less free space than so many times the bytes is not written to."""

SYNCS_MAX = 1000
SYNC_BYTES = 4096
OBJECT_BYTES = 8 << 20
"""As the parts of an upload."""

SMALL_OBJECTS = 8
SECONDS_MAX = 30.0
LATE_S = 10.0
"""A directory or store may exceed the seconds of its test by so much before it counts as hanging."""

HANGING_MAX = 64
"""Directories that may hang at once: each keeps its thread."""

DISK, STORE = "disk", "store"
T = TypeVar("T")


class SelfTestRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seconds`: for each directory and the store. `disk_bytes`: that are written to each directory."""

    tests: tuple[str, ...] = (DISK, STORE)
    seconds: float = 5.0
    disk_bytes: int = 64 << 20


def self_test_routes(node: Node) -> list[web.AbstractRouteDef]:
    running: set[str] = set()
    whole = asyncio.Lock()
    threads = DaemonThreads("self-test", HANGING_MAX)

    async def self_test(request: web.Request) -> web.Response:
        body = await decode_body(request, SelfTestRequest)
        if not 0 < body.seconds <= SECONDS_MAX or not 0 < body.disk_bytes <= DISK_BYTES_MAX:
            limits = f"seconds up to {SECONDS_MAX:g}, disk_bytes up to {DISK_BYTES_MAX}"
            raise http_error(web.HTTPBadRequest, f"out of bounds: {limits}")
        if running or whole.locked():
            where = f": {', '.join(sorted(running))}" if running else ""
            raise http_error(web.HTTPConflict, f"a self-test runs, or hangs{where}")
        async with whole:
            disks = await _disks(node, body, running, threads) if DISK in body.tests else []
            store = await _store(node, body.seconds) if STORE in body.tests else None
        return web.json_response({"node": node.settings.node_id, "disks": disks, "store": store})

    return [web.post("/v1/self-test", self_test)]


# --- disks


async def _disks(
    node: Node, body: SelfTestRequest, running: set[str], threads: DaemonThreads
) -> list[dict[str, Any]]:
    """One directory after the other: several may be on one disk. A thread in a directory that hangs stays,
    and until it ends no other test begins. The other directories have threads of their own."""
    found = []
    for directory in _directories(node):
        running.add(directory)

        def measure(path: str = directory) -> dict[str, Any]:
            try:
                return measure_disk(Path(path), body.disk_bytes, body.seconds)
            finally:
                running.discard(path)

        try:
            async with asyncio.timeout(body.seconds + LATE_S):
                measured = await asyncio.get_running_loop().run_in_executor(threads, measure)
        except TimeoutError:
            measured = {"error": f"no result within {body.seconds + LATE_S:g} s"}
        except OSError as failure:
            measured = {"error": failure.strerror or str(failure)}
        found.append({"directory": str(Path(directory).absolute()), **measured})
    return found


def _directories(node: Node) -> list[str]:
    own = node.settings.log_dirs if node.is_broker else ()
    return list(dict.fromkeys([*own, str(node.settings.metadata_directory)]))


def measure_disk(directory: Path, size: int, seconds: float) -> dict[str, Any]:
    """Bytes per second of a sequential write with its flush, and times of flushes of 4 KiB in milliseconds.
    Each takes half of the time at most. Raises OSError."""
    space = os.statvfs(directory)
    if space.f_bavail * space.f_frsize < size * DISK_FREE_FACTOR:
        return {"error": f"less than {DISK_FREE_FACTOR} times {size:,} bytes are free"}
    with tempfile.TemporaryFile(dir=directory, prefix=".self-test-", buffering=0) as file:
        written, chunk, begin = 0, os.urandom(1 << 20), perf_counter()
        while written < size and perf_counter() - begin < seconds / 2:
            written += file.write(chunk)
        os.fsync(file.fileno())
        rate = written / (perf_counter() - begin)
        times: list[float] = []
        begin = perf_counter()
        while len(times) < SYNCS_MAX and perf_counter() - begin < seconds / 2:
            before = perf_counter()
            file.write(chunk[:SYNC_BYTES])
            os.fdatasync(file.fileno())
            times.append(perf_counter() - before)
    return {"written_bytes": written, "write_bytes_per_s": rate, "syncs": len(times), **_times("sync", times)}


# --- the object store


async def _store(node: Node, seconds: float) -> dict[str, Any] | None:
    """None without an object store."""
    serving = node.serving
    if serving is None or not serving.remote.has_store:
        return None
    prefix = f"{serving.remote.keys.probe(node.settings.node_id)}/self-test-{secrets.token_hex(4)}"
    keys: list[str] = []
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(seconds + LATE_S):
            await _measure_store(serving.remote.store, prefix, seconds, keys, found)
    except TimeoutError:
        found["error"] = f"no result within {seconds + LATE_S:g} s"
    except Exception as failure:  # stores raise errors of their libraries
        found["error"] = str(failure) or type(failure).__name__
    finally:
        found["left_objects"] = await _delete(serving.remote.store, keys)
    return found


async def _measure_store(
    store: ObjectStore, prefix: str, seconds: float, keys: list[str], found: dict[str, Any]
) -> None:
    """Adds times in milliseconds of small requests, and bytes per second of one large object each way."""
    small, large = os.urandom(1024), os.urandom(OBJECT_BYTES)
    times: dict[str, list[float]] = {"put": [], "get": [], "list": []}
    begin = perf_counter()
    for number in range(SMALL_OBJECTS):
        key = f"{prefix}/{number}"
        keys.append(key)
        await _timed(times["put"], lambda key=key: store.put(key, small))  # type: ignore[misc]
        await _timed(times["get"], lambda key=key: store.get(key, 0, len(small)))  # type: ignore[misc]
        await _timed(times["list"], lambda: _count(store, prefix))
        for name, measured in times.items():
            found |= _times(name, measured)
        if perf_counter() - begin > seconds / 2:
            break
    key = f"{prefix}/large"
    keys.append(key)
    once: list[float] = []
    await _timed(once, lambda: store.put(key, large))
    found["put_bytes_per_s"] = OBJECT_BYTES / once[0]
    await _timed(once, lambda: store.get(key, 0, OBJECT_BYTES))
    found["get_bytes_per_s"] = OBJECT_BYTES / once[1]


async def _timed(times: list[float], call: Callable[[], Awaitable[T]]) -> T:
    before = perf_counter()
    result = await call()
    times.append(perf_counter() - before)
    return result


async def _count(store: ObjectStore, prefix: str) -> int:
    return len([info async for info in store.list(prefix)])


async def _delete(store: ObjectStore, keys: list[str]) -> list[str]:
    """Delete the objects. Returns the keys if the store does not answer: some may be left."""
    with suppress(Exception):
        async with asyncio.timeout(LATE_S):
            await store.delete(keys)
            return []
    return keys


def _times(name: str, times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    at_99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {
        f"{name}_p50_ms": ordered[len(ordered) // 2] * 1000,
        f"{name}_p99_ms": at_99 * 1000,
        f"{name}_max_ms": ordered[-1] * 1000,
    }
