"""Freed memory returns to the kernel, even if small blocks remain between large ones."""

import subprocess
import sys

MIB = 1 << 20
CHILD = """
import os, sys
from tierlog.base.process_limits import keep_malloc_small

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

assert keep_malloc_small()
del [bytearray(24 << 20)][0]  # by default glibc takes all that is not larger from its heap from here on
before = resident()
large, small = [], []
for _ in range(60):
    large.append(b"x" * (1 << 20))
    small.append(b"x" * 3000)
held = resident() - before
del large
print(held, resident() - before)
"""


def test_freed_memory_returns_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    held, left = map(int, done.stdout.split())
    assert held > 55 * MIB
    assert left < 5 * MIB
