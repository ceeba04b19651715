"""Disk threads: bounded, reused, and not waited for at process exit."""

import asyncio
import subprocess
import sys
import threading
import weakref

import pytest

from tierlog.base.daemon_threads import DaemonThreads
from tierlog.broker.storage.disk_threads import wait_for_disk

STUCK = """
import threading
from tierlog.base.daemon_threads import DaemonThreads

threads = DaemonThreads("disk", 2)
entered = threading.Event()
threads.submit(lambda: (entered.set(), threading.Event().wait()))
entered.wait()
threads.shutdown()
print("at the end", flush=True)
"""


async def test_threads_are_bounded_and_reused() -> None:
    threads, gate = DaemonThreads("disk", max_threads=2), threading.Event()
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


async def test_exception_is_passed_to_the_caller() -> None:
    threads = DaemonThreads("disk", max_threads=1)
    loop = asyncio.get_running_loop()
    with pytest.raises(OSError, match="broken"):
        await loop.run_in_executor(threads, _fail)
    assert await loop.run_in_executor(threads, lambda: 7) == 7
    threads.shutdown()


class Result:
    """A result that can be garbage collected."""


def test_idle_thread_keeps_no_result_alive() -> None:
    threads, lost = DaemonThreads("disk", max_threads=1), threading.Event()
    result = threads.submit(Result).result()
    weakref.finalize(result, lost.set)
    del result
    assert lost.wait(5)
    threads.shutdown()


async def test_wait_for_disk_waits_for_work_and_reports_a_hang() -> None:
    threads, gate = DaemonThreads("disk", max_threads=2), threading.Event()
    loop = asyncio.get_running_loop()
    stuck = loop.run_in_executor(threads, gate.wait)
    others = [loop.run_in_executor(threads, lambda: None) for _ in range(20)]
    assert await wait_for_disk(others, 30)
    assert not await wait_for_disk([stuck, *others], 0.01)
    gate.set()
    assert await wait_for_disk([stuck], 30)
    threads.shutdown()


def test_process_exits_although_its_disk_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "at the end\n", "")


def _fail() -> None:
    raise OSError(5, "broken")
