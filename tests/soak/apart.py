"""Processes that have to say something now and then: a hanging one must not hold up who listens to it."""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence

from tally import Tally

SILENCE_S = 20.0
HUNG = "hung: "
CLOSED = "groups left"
"""Counted: clients that hung in `close()`, and those that did not."""


class Silent(Exception):
    """It has said nothing for too long."""


def lines(process: "subprocess.Popen[bytes]", silence_s: float) -> Iterator[bytes]:
    """What it writes to its standard output, until it ends. Raises Silent."""
    if process.stdout is None:
        raise OSError("the process has no pipe")
    fd, begun = process.stdout.fileno(), b""
    while True:
        if not select.select([fd], [], [], silence_s)[0]:
            raise Silent(f"nothing was heard of it for {silence_s:g} s")
        read = os.read(fd, 1 << 16)
        if not read:
            return
        *whole, begun = (begun + read).split(b"\n")
        yield from whole


class Apart:
    """A part of the load in a process of its own.

    confluent-kafka can hang for ever in `Consumer.close()` when the group rebalances at that moment, and it
    holds the interpreter's lock: every thread of the process stands still. It ends with that process, and the
    others go on.
    """

    def __init__(self, name: str, command: Sequence[str], tally: Tally, silence_s: float = SILENCE_S) -> None:
        self._name = name
        self._command = command
        self._tally = tally
        self._silence_s = silence_s

    def live(self) -> None:
        """One life of the process, with what it tells; whoever calls it again begins the next one."""
        with subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                for line in lines(process, self._silence_s):
                    self._tally.add(json.loads(line))
                self._tally.fault(f"{self._name} ended", f"exit code {process.wait()}")
            except Silent:
                self._tally.count(HUNG + self._name)
            finally:
                process.kill()
