"""`POST /v1/self-test`: a directory that hangs does not keep others from being tested."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tierlog.broker.gateway import self_test
from tierlog.cli.self_test import DISK, STORE, time_limit_s

DISKS = {"tests": ["disk"], "seconds": 0.1, "disk_bytes": 1}


class Disks:
    """Directories of which one hangs until it is released."""

    def __init__(self, hanging: str) -> None:
        self.hanging = hanging
        self.begun, self.released = threading.Event(), threading.Event()

    def measure(self, directory: Path, size: int, seconds: float) -> dict[str, Any]:
        if directory.name == self.hanging:
            self.begun.set()
            self.released.wait()
        return {"write_bytes_per_s": 1.0}


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Disks("b")
    monkeypatch.setattr(self_test, "measure_disk", made.measure)
    yield made
    made.released.set()


def client(*directories: str, store: Any = None) -> TestClient[Any, Any]:
    settings = SimpleNamespace(node_id=1, log_dirs=directories, metadata_directory=Path(directories[0]))
    node: Any = SimpleNamespace(settings=settings, is_broker=True, serving=store)
    application = web.Application()
    application.add_routes(self_test.self_test_routes(node))
    return TestClient(TestServer(application))


async def test_directories_after_one_that_hangs_are_measured(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "LATE_S", 0.1)
    async with client("a", "b") as http:
        hanging = await (await http.post("/v1/self-test", json=DISKS)).json()
        assert ["error" in one for one in hanging["disks"]] == [False, True]
        refused = await http.post("/v1/self-test", json=DISKS)
        assert refused.status == 409 and "hangs: b" in await refused.text()
    async with client("b", "a", "c") as http:
        found = await (await http.post("/v1/self-test", json=DISKS)).json()
        assert ["error" in one for one in found["disks"]] == [True, False, False]


@pytest.mark.parametrize("seconds", [1.0, self_test.SECONDS_MAX])
@pytest.mark.parametrize("directories", [1, 3, 12])
def test_a_node_has_time_for_all_of_its_directories(seconds: float, directories: int) -> None:
    longest = (seconds + self_test.LATE_S) * (directories + 1) + self_test.LATE_S
    assert time_limit_s((DISK, STORE), seconds, directories) > longest
