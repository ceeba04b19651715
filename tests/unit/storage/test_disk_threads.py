"""Threads of a directory: bounded, reused, and never waited for by the end of the process."""

import asyncio
import subprocess
import sys
import threading
import weakref

import pytest

from tierlog.broker.storage.disk_threads import DiskThreads, all_done

STUCK = """
import threading
from tierlog.broker.storage.disk_threads import DiskThreads

threads = DiskThreads("disk")
entered = threading.Event()
threads.submit(lambda: (entered.set(), threading.Event().wait()))
entered.wait()
threads.shutdown()
print("at the end", flush=True)
"""


async def test_no_more_threads_than_allowed_work_and_each_serves_again() -> None:
    threads, gate = DiskThreads("disk", most=2), threading.Event()
    entered = threading.Semaphore(0)

    def work() -> str:
        entered.release()
        gate.wait(30)
        return threading.current_thread().name

    works = [asyncio.wrap_future(threads.submit(work)) for _ in range(10)]
    for _ in range(2):
        await asyncio.to_thread(entered.acquire)
    assert not entered.acquire(blocking=False)  # eight wait
    gate.set()
    assert set(await asyncio.gather(*works)) == {"disk-1", "disk-2"}
    threads.shutdown()


async def test_a_failure_is_its_callers() -> None:
    threads = DiskThreads("disk", most=1)
    loop = asyncio.get_running_loop()
    with pytest.raises(OSError, match="broken"):
        await loop.run_in_executor(threads, _fail)
    assert await loop.run_in_executor(threads, lambda: 7) == 7
    threads.shutdown()


class Answer:
    """Something that can be lost."""


def test_an_idle_thread_keeps_no_answer_alive() -> None:
    threads, lost = DiskThreads("disk", most=1), threading.Event()
    answer = threads.submit(Answer).result()
    weakref.finalize(answer, lost.set)
    del answer
    assert lost.wait(5)
    threads.shutdown()


async def test_work_that_ends_is_waited_for_and_a_hang_is_told() -> None:
    threads, gate = DiskThreads("disk", most=2), threading.Event()
    loop = asyncio.get_running_loop()
    stuck = loop.run_in_executor(threads, gate.wait)
    others = [loop.run_in_executor(threads, lambda: None) for _ in range(20)]
    assert await all_done(others, 30)
    assert not await all_done([stuck, *others], 0.01)
    gate.set()
    assert await all_done([stuck], 30)
    threads.shutdown()


def test_a_process_ends_though_its_disk_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at the end\n", "")


def _fail() -> None:
    raise OSError(5, "broken")
