"""The simulator's parts: virtual time, processes that die at any await, unsynced disks, a network."""

import asyncio
import errno
import random
from collections import Counter
from pathlib import Path

import pytest
from simulator.disk import Disk
from simulator.loop import Process, SimLock, SimLoop, Stalled
from simulator.network import Broken, Network, Refused
from simulator.splits import split

from tierlog.base.files import write_atomically


def test_clock_jumps_to_the_next_due_callback():
    loop = SimLoop(random.Random(1))

    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert loop.run_for(main()) == pytest.approx(3600)


def test_loop_without_due_callbacks_raises():
    loop = SimLoop(random.Random(1))
    with pytest.raises(Stalled):
        loop.run_for(_never(loop))


async def _never(loop: SimLoop) -> None:
    await loop.create_future()


def test_callbacks_of_a_killed_process_never_run():
    loop = SimLoop(random.Random(1))
    seen = []
    process = Process(loop, "a")

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append(loop.time())
        finally:
            seen.append("tidied up")

    async def main() -> None:
        process.spawn(work())
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(5)

    loop.run_for(main())
    assert seen == [1.0, 2.0]


def test_failure_of_a_watched_task_is_collected():
    loop = SimLoop(random.Random(1))
    failures: list[BaseException] = []

    async def work(failure: Exception | None) -> None:
        await asyncio.sleep(1)
        if failure is not None:
            raise failure

    async def main() -> None:
        process, odd = Process(loop, "a"), ValueError("odd")
        process.watch(work(None), failures)
        process.watch(work(ValueError("of one that was cancelled")), failures).cancel()
        process.watch(work(odd), failures)
        await asyncio.sleep(2)
        assert failures == [odd]

    loop.run_for(main())


def test_paused_process_resumes_its_callbacks():
    loop = SimLoop(random.Random(1))
    seen = []
    process = Process(loop, "a")

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(loop.time())

    async def main() -> None:
        process.spawn(work())
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        process.resume()
        await asyncio.sleep(5)

    loop.run_for(main())
    assert seen == [1.0, 11.5, 12.5]


def test_work_of_threads_runs_in_the_loop():
    loop = SimLoop(random.Random(1))

    async def main() -> tuple[int, float]:
        return await asyncio.to_thread(lambda: 7), loop.time()

    result, at = loop.run_for(main())
    assert result == 7
    assert at > 0


# --- the disk


def test_synced_bytes_survive_a_loss_of_power(tmp_path: Path):
    disk = Disk(tmp_path)
    files = disk.attach()
    path = tmp_path / "log"
    fd = files.open(path, create=True)
    files.writev_at(fd, [b"synced"], 0)
    files.sync(fd)
    files.sync_directory(tmp_path)
    files.writev_at(fd, [b"SYN", b"and more"], 3)
    files.die()
    disk.lose_power(random.Random(1), keep=0.0)
    assert path.read_bytes() == b"synced"


def test_unsynced_writes_may_be_torn(tmp_path: Path):
    ends = set()
    for seed in range(60):
        root = tmp_path / str(seed)
        root.mkdir()
        disk = Disk(root)
        files = disk.attach()
        fd = files.open(root / "log", create=True)
        files.sync_directory(root)
        for number in range(4):
            files.writev_at(fd, [bytes([65 + number]) * 2048], number * 2048)
        files.die()
        disk.lose_power(random.Random(seed))
        ends.add((root / "log").stat().st_size)
    assert {0, 8192} < ends
    assert any(end % 2048 for end in ends)


def test_unsynced_names_are_reverted(tmp_path: Path):
    disk = Disk(tmp_path)
    files = disk.attach()
    write_atomically(files, tmp_path / "kept", b"old")
    files.open(tmp_path / "new", create=True)
    files.rename(tmp_path / "kept", tmp_path / "renamed")
    files.unlink(tmp_path / "renamed")
    files.die()
    disk.lose_power(random.Random(1), keep=0.0)
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["kept"]


def test_injected_read_error_is_raised_once(tmp_path: Path):
    disk = Disk(tmp_path)
    files = disk.attach()
    fd = files.open(tmp_path / "log", create=True)
    files.writev_at(fd, [b"bytes"], 0)
    disk.fails_at["read"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        files.read_at(fd, 5, 0)
    assert files.read_at(fd, 5, 0) == b"bytes"


# --- the network


def _network(seed: int = 1) -> tuple[SimLoop, Network]:
    loop = SimLoop(random.Random(seed))
    return loop, Network(loop, random.Random(seed))


async def _answer(text: str) -> str:
    await asyncio.sleep(0.01)
    return text


def test_requests_of_a_connection_are_answered_in_order():
    loop, network = _network()
    for name in ("a", "b"):
        network.listen(name, Process(loop, name))
    served = []

    async def serve(number: int) -> int:
        served.append(number)
        return number

    async def main() -> list[int]:
        calls = [network.call("a", "b", 1, lambda number=number: serve(number)) for number in range(20)]
        return await asyncio.gather(*calls)

    assert loop.run_for(main()) == list(range(20))
    assert served == list(range(20))


def test_dead_process_refuses_connections_and_cut_link_breaks_them():
    loop, network = _network()
    process = Process(loop, "b")
    network.listen("a", Process(loop, "a"))
    network.listen("b", process)

    async def main() -> None:
        assert await network.call("a", "b", 1, lambda: _answer("yes")) == "yes"
        network.cut("b", "a")
        with pytest.raises(Broken):
            await network.call("a", "b", 1, lambda: _answer("lost on the way back"))
        network.heal()
        process.kill()
        network.listen("b", None)
        with pytest.raises(Refused):
            await network.call("a", "b", 1, lambda: _answer("no process there"))

    loop.run_for(main())


def test_request_waits_for_a_cut_link_to_heal():
    loop, network = _network()
    for name in ("a", "b"):
        network.listen(name, Process(loop, name))

    async def main() -> float:
        network.cut("a", "b")
        asking = network.call("a", "b", 1, lambda: _answer("yes"))
        await asyncio.sleep(2)
        assert not asking.done()
        network.heal()
        assert await asking == "yes"
        return loop.time()

    assert loop.run_for(main()) < 3


def test_request_cancelled_on_its_way_is_not_served():
    loop, network = _network()
    served = []
    for name in ("a", "b"):
        network.listen(name, Process(loop, name))

    async def serve() -> None:
        served.append(loop.time())

    async def main() -> None:
        network.call("a", "b", 1, serve).cancel()
        await network.call("a", "b", 1, serve)
        await asyncio.sleep(1)

    loop.run_for(main())
    assert len(served) == 1


def test_message_to_a_paused_process_waits():
    loop, network = _network()
    process = Process(loop, "b")
    network.listen("b", process)
    came: list[float] = []

    async def main() -> None:
        process.pause()
        network.post("a", "b", lambda: came.append(loop.time()))
        await asyncio.sleep(1)
        assert not came
        process.resume()
        await asyncio.sleep(0)

    loop.run_for(main())
    assert came == [pytest.approx(1.0)]


def test_request_breaks_when_its_server_dies():
    loop, network = _network()
    process = Process(loop, "b")
    network.listen("a", Process(loop, "a"))
    network.listen("b", process)

    async def main() -> None:
        asking = asyncio.ensure_future(network.call("a", "b", 1, lambda: _never(loop)))
        await asyncio.sleep(1)
        process.kill()
        network.listen("b", None)
        with pytest.raises(Broken):
            await asking

    loop.run_for(main())


def test_messages_are_lost_duplicated_and_reordered():
    loop, network = _network()
    network.listen("b", Process(loop, "b"))
    network.message_faults.loss = network.message_faults.duplication = network.message_faults.reordering = 0.3
    came: list[int] = []

    async def main() -> None:
        for number in range(200):
            network.post("a", "b", lambda number=number: came.append(number))
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)

    loop.run_for(main())
    assert set(came) < set(range(200))
    assert len(came) > len(set(came))
    assert came != sorted(came)


def test_nodes_split_into_two_groups_and_reunite():
    loop, network = _network()
    names = ("a", "b", "c")
    faults = Counter[str]()
    seen = set()

    async def main() -> None:
        splitting = asyncio.ensure_future(split(names, network, random.Random(1), 1.0, faults))
        while faults["split"] < 20:
            await asyncio.sleep(0.05)
            seen.add(tuple(network.connects(*pair) for pair in (("a", "b"), ("a", "c"), ("b", "c"))))
        splitting.cancel()

    loop.run_for(main())
    assert seen == {
        (True, True, True),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    }


def test_the_same_seed_gives_the_same_run():
    def run(seed: int) -> list[tuple[float, int]]:
        loop, network = _network(seed)
        network.listen("b", Process(loop, "b"))
        network.message_faults.loss = network.message_faults.reordering = 0.2
        came: list[tuple[float, int]] = []

        async def main() -> None:
            for number in range(50):
                network.post("a", "b", lambda number=number: came.append((loop.time(), number)))
                await asyncio.to_thread(lambda: None)
            await asyncio.sleep(1)

        loop.run_for(main())
        return came

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_work_that_finds_a_lock_held_is_done_once_it_is_released() -> None:
    loop, lock, done = SimLoop(random.Random(1)), SimLock(), []

    def work() -> None:
        with lock:
            done.append(loop.time())

    async def main() -> None:
        await loop.run_in_executor(None, lock.acquire)
        waiting = loop.run_in_executor(None, work)
        await asyncio.sleep(1)
        assert not done and not lock.acquire(blocking=False)
        lock.release()
        await waiting

    loop.run_for(main())
    assert len(done) == 1 and done[0] > 1


@pytest.mark.parametrize("is_synced", (True, False))
def test_lost_names_of_a_renamed_directory_are_not_those_of_its_successor(
    tmp_path: Path, is_synced: bool
) -> None:
    """A log that moves away and back leaves its old directory, in which some names were not synced."""
    disk = Disk(tmp_path)
    files = disk.attach()
    old, away, new = tmp_path / "t-0", tmp_path / "t-0-delete", tmp_path / "t-0-future"
    for directory in (old, new):
        files.make_directory(directory)
        files.close(files.open(directory / "1.log", create=True))
    files.sync_directory(new)
    files.rename(old, away)
    files.rename(new, old)
    if is_synced:
        files.sync_directory(tmp_path)
    files.die()
    disk.lose_power(random.Random(1), keep=0.0)
    assert (old if is_synced else new).joinpath("1.log").exists()
    assert not (away if is_synced else old).joinpath("1.log").exists()
