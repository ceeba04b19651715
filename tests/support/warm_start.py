"""Brokers and commands of tests fork from a process that has imported tierlog: none imports it again.

The imports take a second of CPU time, two thirds of a start, and the tests start hundreds of brokers. The
process with the imports (`serve`, this file as a program) is a child of the tests' process, and so is each
broker that it clones: a broker has memory, files and signals of its own, and is waited for and killed as any
other. Only /proc shows the command line and the variables of the process that was cloned. They all
have the same hashes of texts (PYTHONHASHSEED), unlike brokers that start from scratch.

A broker starts from scratch, with `execve`, if its interpreter or its build of tierlog is another one, if it
outlives the tests, and in tests that use `brokers_from_scratch`.
"""

import array
import contextlib
import ctypes
import gc
import json
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from typing import IO, Any, NoReturn

import pytest

SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE_PARENT = 0x8000
"""The new process is a child of the caller's parent."""

FROM_THE_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "TZ", "OPENSSL_", "SSL_", "COVERAGE_"),
    *("TYPER_", "_TYPER_", "TERMINAL_WIDTH", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
)
"""Beginnings of variables that are read before tierlog runs: by the interpreter, C libraries, or imports."""

MAIN = "tierlog.cli.main"
IMPORTED = (
    MAIN,
    "tierlog.cli.node",
    "tierlog.broker.app",
    "tierlog.config.providers",
    "tierlog.tiering.local_store",
    "tierlog.tiering.s3_client",
    "botocore.session",
    "uvloop",
    "typer._adapters",
    "tierlog.cli.producing",
    "tierlog.cli.consuming",
    "tierlog.cli.admin",
    "tierlog.cli.cluster_processes",
)
"""All that brokers and commands import, some of it late."""

REQUEST_BYTES_MAX = 1 << 20


class WarmProcess(subprocess.Popen[bytes]):
    """A process that `serve` has cloned. Its parent is this process."""

    def __init__(
        self, command: list[str], pid: int, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes] | None
    ) -> None:
        # not Popen's own, which would start the command
        self.args, self.pid, self.returncode = command, pid, None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.encoding = self.errors = self.text_mode = None
        self._child_created, self._communication_started = True, False
        self._waitpid_lock, self._sigint_wait_secs = threading.Lock(), 0.25
        self._input, self.pipesize = None, -1


class WarmStart:
    """The process that clones brokers, of this process. It starts with the first broker."""

    def __init__(self) -> None:
        self.enabled = SYS_CLONE is not None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._variables: dict[str, str] = {}

    def can_start(self, command: list[str], environment: Mapping[str, str], detached: bool) -> bool:
        fits = command[:3] == [sys.executable, "-m", MAIN] and not detached
        current = self._variables if self._process else _read_at_start(os.environ)
        return self.enabled and fits and _read_at_start(environment) == current

    def start(
        self, command: list[str], environment: Mapping[str, str], log: IO[bytes] | None = None
    ) -> WarmProcess:
        """`log`: for the standard error; without it a pipe."""
        request = {
            "arguments": command[3:],
            "environment": dict(environment),
            "directory": os.getcwd(),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        its_stdin, stdin = os.pipe()
        stdout, its_stdout = os.pipe()
        stderr, its_stderr = (-1, os.dup(log.fileno())) if log is not None else os.pipe()
        try:
            pid = self._ask(request, [its_stdin, its_stdout, its_stderr])
        except BaseException:
            for descriptor in (stdin, stdout, stderr)[: 2 if log is not None else 3]:
                os.close(descriptor)
            raise
        finally:
            for descriptor in (its_stdin, its_stdout, its_stderr):
                os.close(descriptor)
        errors = os.fdopen(stderr, "rb") if log is None else None
        return WarmProcess(command, pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), errors)

    def close(self) -> None:
        if self._process is not None and self._socket is not None:
            self._socket.close()
            self._process.wait(60)
        self._process = self._socket = None

    def _ask(self, request: Mapping[str, Any], descriptors: list[int]) -> int:
        with self._lock:
            channel = self._socket or self._begin()
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            channel.sendmsg([json.dumps(request).encode()], passed)
            pid = channel.recv(64)
        if not pid:
            raise ChildProcessError("the process that clones brokers has ended; its error is above")
        return int(pid)

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._variables = _read_at_start(os.environ)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._socket = ours
        return ours


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(FROM_THE_START)}


@contextlib.contextmanager
def brokers_start_warm(patch: pytest.MonkeyPatch) -> Generator[WarmStart, None, None]:
    """All brokers of this process, until the end."""
    from tierlog.cli.process import TierlogBroker

    warm, from_scratch = WarmStart(), TierlogBroker._spawn

    def spawn(
        broker: TierlogBroker, command: list[str], environment: dict[str, str], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        if warm.can_start(command, environment, broker._detached):
            return warm.start(command, environment, log)
        return from_scratch(broker, command, environment, log)

    patch.setattr(TierlogBroker, "_spawn", spawn)
    patch.setattr(sys.modules[__name__], "_current", warm)
    try:
        yield warm
    finally:
        warm.close()


_current: WarmStart | None = None


def run(
    command: list[str], environment: Mapping[str, str], stdin: bytes = b"", timeout_s: float = 120
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of tierlog in a process of its own, and capture what it prints."""
    warm = _current
    if warm is None or not warm.can_start(command, environment, detached=False):
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
    with warm.start(command, environment) as process:
        try:
            printed, errors = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.wait(), printed, errors)


def serve(channel: socket.socket) -> None:
    """Clone a process for each request, until the tests' process closes its end. Returns in each clone, which
    is a broker with the request's command line, variables and descriptors."""
    while True:
        request, passed, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, 3)
        if not request:
            os._exit(0)
        pid = _clone()
        if pid == 0:
            break
        for descriptor in passed:
            os.close(descriptor)
        channel.send(str(pid).encode())
    channel.close()
    for number, descriptor in enumerate(passed):
        os.dup2(descriptor, number)
        os.close(descriptor)
    wanted = json.loads(request)
    resource.setrlimit(resource.RLIMIT_NOFILE, wanted["descriptors"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["directory"])
    sys.path[0] = wanted["directory"]  # as `python -m` has it
    sys.argv = [str(sys.modules[MAIN].__file__), *wanted["arguments"]]


def _clone() -> int:
    """As `os.fork`, except that the new process is a sibling of this one."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(SYS_CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return pid
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError("clone failed")
    return pid


def _main(descriptor: int) -> NoReturn:
    import importlib

    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    from tierlog.cli import main

    tree = main.command_tree(main.app)
    main.command_tree = lambda _: tree
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=descriptor))
    main.main()
    sys.exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
