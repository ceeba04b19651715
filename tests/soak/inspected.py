"""A broker that reports what it holds: `tierlog dev`, with a thread that answers on its standard streams.

Each line on standard input asks for one line of JSON: how many objects of each type the interpreter tracks,
how many blocks it has allocated, and what the C allocator uses and keeps. Garbage is collected first, so
that what is counted is reachable. Started by churn.py; ends when its standard input is closed.
"""

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
    found["large"] = _large()
    objects = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    gc.freeze()
    found["objects"] = dict(objects)
    if tracemalloc.is_tracing():
        found["traced"] = _grown(before)
    return found


LARGE_BYTES = 512
"""What is larger comes from the C allocator, and not from Python's own."""


def _large() -> dict[str, int]:
    """Bytes of large objects, by what refers to them and their type; each object once."""
    seen: set[int] = set()
    found: Counter[str] = Counter()
    for holder in gc.get_objects():
        for each in (holder, *gc.get_referents(holder)):
            if isinstance(each, type(sys)) or id(each) in seen:
                continue
            size = sys.getsizeof(each)
            if size >= LARGE_BYTES:
                seen.add(id(each))
                found[f"{type(holder).__qualname__} > {type(each).__qualname__}"] += size
    return dict(found)


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
    from tierlog.cli.main import main as tierlog

    def answer() -> None:
        before: dict[str, tracemalloc.Snapshot] = {}
        for _ in sys.stdin:
            print(json.dumps(look(before)), flush=True)
        os._exit(0)

    if os.environ.get("CHURN_TRACED"):
        tracemalloc.start(TRACED_FRAMES)
    threading.Thread(target=answer, name="inspection", daemon=True).start()
    sys.argv[0] = "tierlog"
    tierlog()


if __name__ == "__main__":
    main()
