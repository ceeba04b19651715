"""A broker that reports its memory: `tierlog dev` with a thread that answers on its standard streams.

For each line on standard input it writes one line of JSON: the number of objects of each type, the
interpreter's allocated blocks, and the used and free bytes of the C allocator. Garbage is collected first,
so only reachable objects count. Started by churn.py; ends when its standard input is closed.
"""

import asyncio
import ctypes
import gc
import json
import os
import sys
import threading
import tracemalloc
from collections import Counter
from typing import Any

TRACED_FRAMES = 4


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later (malloc.h)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def look(before: "dict[str, tracemalloc.Snapshot]") -> dict[str, Any]:
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallInfo
    used = libc.mallinfo2()
    found: dict[str, Any] = {
        "blocks": sys.getallocatedblocks(),
        "malloc_used": used.uordblks + used.hblkhd,
        "malloc_free": used.fordblks,
    }
    gc.unfreeze()
    objects = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    gc.freeze()
    found["objects"] = dict(objects)
    if tracemalloc.is_tracing():
        found["traced"] = _grown(before)
    return found


def _grown(before: "dict[str, tracemalloc.Snapshot]") -> list[str]:
    now = tracemalloc.take_snapshot()
    last = before.get("last")
    before["last"] = now
    if last is None:
        return []
    return [
        f"{row.size_diff:+d} bytes in {row.count_diff:+d}: "
        + " < ".join(str(frame) for frame in row.traceback)
        for row in now.compare_to(last, "traceback")[:12]
    ]


def main() -> None:
    from tierlog.broker import app
    from tierlog.cli.main import main as tierlog

    make = app._loop_factory() or asyncio.new_event_loop
    loops: list[asyncio.AbstractEventLoop] = []

    def recorded() -> asyncio.AbstractEventLoop:
        loops.append(make())
        return loops[-1]

    def answer() -> None:
        before: dict[str, tracemalloc.Snapshot] = {}
        for _ in sys.stdin:
            # In the loop, between two callbacks: listing the objects while a tuple is being built makes that
            # fail, because the list refers to the tuple.
            loops[-1].call_soon_threadsafe(lambda: print(json.dumps(look(before)), flush=True))
        os._exit(0)

    app._loop_factory = lambda: recorded
    if os.environ.get("CHURN_TRACED"):
        tracemalloc.start(TRACED_FRAMES)
    threading.Thread(target=answer, name="inspection", daemon=True).start()
    sys.argv[0] = "tierlog"
    tierlog()


if __name__ == "__main__":
    main()
