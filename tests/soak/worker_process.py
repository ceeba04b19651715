"""Worker processes of the load: each must report regularly, and is killed if it hangs."""

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence

from tally import Tally

SILENCE_S = 20.0
"""A process that has written nothing for this long counts as hung."""

HUNG = "hung: "
"""Prefix of a counter's key: how often the named worker process hung."""

CLOSED = "groups left"
"""Key of the counter of consumers that closed."""


class Silent(Exception):
    """The process has written nothing for too long."""


def lines(process: "subprocess.Popen[bytes]", silence_s: float) -> Iterator[bytes]:
    """Lines of the process's standard output, until it ends.

    Raises Silent if the process writes nothing for `silence_s` seconds, OSError if it has no pipe.
    """
    if process.stdout is None:
        raise OSError("the process has no pipe")
    fd, incomplete = process.stdout.fileno(), b""
    while True:
        if not select.select([fd], [], [], silence_s)[0]:
            raise Silent(f"no output for {silence_s:g} s")
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            return
        *complete, incomplete = (incomplete + chunk).split(b"\n")
        yield from complete


class WorkerProcess:
    """A part of the load that runs in a separate process.

    confluent-kafka can hang forever in `Consumer.close()` if the group rebalances at that moment. It then
    holds the interpreter's lock (GIL) and blocks every thread of its process. In a separate process, only
    that process is killed, and the rest of the load continues.
    """

    def __init__(self, name: str, command: Sequence[str], tally: Tally, silence_s: float = SILENCE_S) -> None:
        self._name = name
        self._command = command
        self._tally = tally
        self._silence_s = silence_s

    def live(self) -> None:
        """Start a process and collect its reports until it ends or hangs. Call again to start the next."""
        with subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                for line in lines(process, self._silence_s):
                    self._tally.add(json.loads(line))
                self._tally.fault(f"{self._name} ended", f"exit code {process.wait()}")
            except Silent:
                self._tally.count(HUNG + self._name)
            finally:
                process.kill()
