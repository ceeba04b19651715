"""Load in separate processes, which must report regularly: a hanging one must not block its reader."""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence

from tally import Tally

SILENCE_S = 20.0
HUNG = "hung: "
CLOSED = "groups left"
"""Counter keys: clients that hung in `close()`, and clients that closed."""


class Silent(Exception):
    """The process has written no line for too long."""


def lines(process: "subprocess.Popen[bytes]", silence_s: float) -> Iterator[bytes]:
    """Lines of the process's standard output, until it ends. Raises Silent."""
    if process.stdout is None:
        raise OSError("the process has no pipe")
    fd, begun = process.stdout.fileno(), b""
    while True:
        if not select.select([fd], [], [], silence_s)[0]:
            raise Silent(f"no output for {silence_s:g} s")
        read = os.read(fd, 1 << 16)
        if not read:
            return
        *complete, begun = (begun + read).split(b"\n")
        yield from complete


class WorkerProcess:
    """A part of the load in a process of its own.

    confluent-kafka can hang forever in `Consumer.close()` when the group rebalances at that moment. It then
    holds the interpreter's lock and blocks every thread. Only this process is killed, and the rest of the
    load continues.
    """

    def __init__(self, name: str, command: Sequence[str], tally: Tally, silence_s: float = SILENCE_S) -> None:
        self._name = name
        self._command = command
        self._tally = tally
        self._silence_s = silence_s

    def live(self) -> None:
        """Run the process once and collect its reports. Call again to start the next process."""
        with subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                for line in lines(process, self._silence_s):
                    self._tally.add(json.loads(line))
                self._tally.fault(f"{self._name} ended", f"exit code {process.wait()}")
            except Silent:
                self._tally.count(HUNG + self._name)
            finally:
                process.kill()
