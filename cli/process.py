"""Broker process: starts, stops, kills and restarts a broker. For `tierlog.testing`, the demo and local
clusters.

It runs `tierlog dev --json`, whose first line of output says where it serves, so nothing is polled. The
broker ends with the process that started it (`--exit-with-parent`), unless it is detached: then its directory
identifies the process (`cluster_processes`).
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

from tierlog.cli.local_security import ADMIN, LocalSecurity, close_to_others
from tierlog.config.definitions import InvalidSetting, SettingType
from tierlog.config.node import NODE_SETTINGS
from tierlog.config.sources import ENVIRONMENT_PREFIX, as_text
from tierlog.config.tls import listener_setting

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 90.0
"""Longer than the defaults let a shutdown take: `controlled.shutdown.timeout.ms`, plus twice
`log.dirs.stop.timeout.ms` to close the logs."""

LOG_TAIL_BYTES = 16_384


class BrokerFailed(Exception):
    """The broker ended, or did not serve in time. The message includes the end of its log."""


class TierlogBroker:
    """One broker process. `start()` returns once it serves. As a context manager it always ends.

    Args:
        directory: for its data, objects and log file; created if missing.
        settings: settings by their Kafka names, added to those of `tierlog dev`.
        object_store: URL of the object store; default: the directory `object_dir`.
        environment: variables added to those of this process, without its TIERLOG_… variables. They may
            change before the next start: `PYTHONPATH` names another build of tierlog.
        detached: the broker outlives this process, and does not receive Ctrl-C of its terminal.
        secure: a listener with TLS, users and ACLs, and an admin API that needs a password. `client_settings`
            has what clients need; `users` are created in addition to the administrator.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        object_store: str | None = None,
        environment: Mapping[str, str] | None = None,
        detached: bool = False,
        secure: bool = False,
        users: Collection[str] = (),
        python: str = sys.executable,
    ) -> None:
        self.directory = Path(directory)
        self.data_dir = self.directory / "data"
        self.object_dir = self.directory / "objects"
        self.log_path = self.directory / "broker.log"
        self.settings = dict(settings or {})
        self.bootstrap = "127.0.0.1:0"
        self.admin_url = "http://127.0.0.1:0"
        self._object_store = object_store or f"file://{self.object_dir.absolute()}"
        self.environment = dict(environment or {})
        self._detached = detached
        self._python = python
        self._security = LocalSecurity(self.directory) if secure else None
        self._users = tuple(users)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        """Size of the log when the process started."""

    @property
    def host(self) -> str:
        return self.bootstrap.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises BrokerFailed if it does not run."""
        if self._process is None or not self.running:
            raise BrokerFailed(f"the broker in {self.directory} is not running\n{self.log_tail()}")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> "TierlogBroker":
        """Start the process and wait until it serves. After a stop, it uses the same ports again."""
        if self.running:
            return self
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if self._security is not None:
            self._security.prepare([self.data_dir], self.bootstrap, self._users)
            close_to_others(self.object_dir)  # segments, which only ACLs give access to
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            variables = {**_environment(), **self._secrets(), **self.environment}
            self._process = self._spawn(self._command(), variables, log)
        if self._detached:
            from tierlog.cli import cluster_processes

            cluster_processes.record_process(self.directory, self._process.pid)
        try:
            response = json.loads(self._first_line(timeout_s))
        except BaseException:
            self.kill()
            raise
        self.admin_url = response["admin"]
        self.bootstrap = response["bootstrap"] or self.bootstrap  # a controller node has none
        if self._security is not None:
            self._security.write_client_file(self.bootstrap)
        return self

    def client_settings(self, user: str = ADMIN, password: str | None = None) -> dict[str, Any]:
        """Settings of clients that use librdkafka, such as confluent-kafka. `user`: the administrator, one of
        `users`, or with a `password` one that the test has created."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap}
        return self._security.librdkafka_settings(self.bootstrap, user, password)

    def python_client_settings(self, user: str = ADMIN, password: str | None = None) -> dict[str, Any]:
        """Keyword arguments of the clients of kafka-python and aiokafka; `user` as in `client_settings`."""
        if self._security is None:
            return {"bootstrap_servers": self.bootstrap}
        return self._security.python_settings(self.bootstrap, user, password)

    @property
    def client_file(self) -> Path | None:
        """Kafka's client settings of the administrator, for Java clients and `tierlog --client-config`. None
        if the broker is not secure."""
        return None if self._security is None else self._security.client_file

    def kill(self) -> None:
        """Send SIGKILL, as a crash: data that was not synced is only in the page cache."""
        self.signal(signal.SIGKILL)
        self._reap(STOP_TIMEOUT_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM and wait for a clean shutdown. Raises BrokerFailed if it fails or times out."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            code = self._reap(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            message = f"the broker did not shut down within {timeout_s:g} s\n{self.log_tail()}"
            raise BrokerFailed(message) from None
        if code not in (0, -signal.SIGKILL):
            raise BrokerFailed(f"the broker exited with code {code}\n{self.log_tail()}")

    def restart(self, timeout_s: float = START_TIMEOUT_S) -> "TierlogBroker":
        """Stop the broker if it runs, and start it again on the same ports and data."""
        if self.running:
            self.stop()
        return self.start(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def memory_bytes(self) -> tuple[int, int]:
        """(current, peak) resident memory of the process, from /proc."""
        found = {"VmRSS": 0, "VmHWM": 0}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
        return found["VmRSS"], found["VmHWM"]

    def log_tail(self, max_bytes: int = LOG_TAIL_BYTES) -> str:
        """The end of the broker's log (its stderr), across restarts."""
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-max_bytes:].decode(errors="replace")

    def _run_log(self) -> str:
        """The end of the log, without lines of earlier runs."""
        return self.log_path.read_bytes()[self._log_start :][-LOG_TAIL_BYTES:].decode(errors="replace")

    def __enter__(self) -> "TierlogBroker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __repr__(self) -> str:
        return f"TierlogBroker({self.bootstrap}, {self.directory})"

    def _spawn(
        self, command: list[str], environment: dict[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if self._detached else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=self._detached,
        )

    def _command(self) -> list[str]:
        command = [self._python, "-m", "tierlog.cli.main", "dev", "--json"]
        command += [] if self._detached else ["--exit-with-parent"]
        command += ["--port", str(self.port), "--admin-port", self.admin_url.rpartition(":")[2]]
        command += ["--data-dir", str(self.data_dir), "--object-store", self._object_store]
        for name, value in self._all_settings().items():
            if not _is_for_environment(name):
                command += ["--set", f"{name}={as_text(value)}"]
        return command

    def _secrets(self) -> dict[str, str]:
        """Passwords, as variables: every user of the machine can read command lines."""
        return {
            f"{ENVIRONMENT_PREFIX}{name.upper().replace('.', '_')}": as_text(value)
            for name, value in self._all_settings().items()
            if _is_for_environment(name)
        }

    def _all_settings(self) -> dict[str, object]:
        secure = {} if self._security is None else self._security.settings(self.port)
        return {**secure, **self.settings}

    def _first_line(self, timeout_s: float) -> bytes:
        process = self._process
        if process is None or process.stdout is None:
            raise BrokerFailed("the broker was not started")
        line, deadline = b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise BrokerFailed(f"the broker did not start within {timeout_s:g} s\n{self._run_log()}")
            read = os.read(process.stdout.fileno(), 4096)
            if not read:
                raise BrokerFailed(
                    f"the broker exited with code {process.wait(STOP_TIMEOUT_S)}\n{self._run_log()}"
                )
            line += read
        return line

    def _reap(self, timeout_s: float) -> int:
        process = self._process
        if process is None:
            return 0
        code = process.wait(timeout_s)
        self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        return code


def _is_for_environment(name: str) -> bool:
    """Whether a setting is a password, and its name can be that of a variable."""
    try:
        of_listener = listener_setting(name)
    except InvalidSetting:
        return False  # the broker says why
    setting = NODE_SETTINGS.get(of_listener[1] if of_listener else name)
    is_secret = setting is not None and setting.type is SettingType.PASSWORD
    return is_secret and name == name.lower() and "_" not in name


def _environment() -> dict[str, str]:
    """This process's environment without TIERLOG_… settings, which are meant for another broker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
