"""A REST gateway as a process of its own, and requests to it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

from canaries import MARK


class Answer(NamedTuple):
    status: int
    body: Any
    """Decoded JSON; a list if there are several lines."""
    headers: dict[str, str]


class RestProcess:
    """`words`: options of `tierlog rest`. As a context manager it always ends."""

    def __init__(self, directory: Path, bootstrap: str, *words: str) -> None:
        self._log = directory / "rest.log"
        command = [sys.executable, "-m", "tierlog", "rest", "--bootstrap", bootstrap, "--port", "0", "--json"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        self.url = json.loads(line)["url"]

    def __enter__(self) -> "RestProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        text = self._log.read_text()
        assert MARK not in text
        assert "rest.request.failed" not in text, text
        assert "rest.task.failed" not in text, text

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        return self._memory("VmRSS:")

    def peak_memory_bytes(self) -> int:
        """The most that it had since its start."""
        return self._memory("VmHWM:")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(name)[2].split()[0]) * 1024

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.split()[0] == name))

    @staticmethod
    def basic(login: str) -> str:
        """Value of the header Authorization."""
        return f"Basic {b64encode(login.encode()).decode()}"

    def call(
        self, method: str, path: str, body: Any = None, *, login: str | None = None, **headers: str
    ) -> Answer:
        """`body`: a document, or bytes as they are. `login`: USER:PASSWORD, or a token."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        if login is not None:
            sent["Authorization"] = self.basic(login) if ":" in login else login
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answer(response.status, _decoded(response.read()), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, _decoded(error.read()), dict(error.headers))

    def get(self, path: str, **options: Any) -> Answer:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        return self.call("POST", path, body, **options)

    def cluster_path(self, login: str | None = None) -> str:
        """/v3/clusters/{cluster_id}."""
        clusters = self.get("/v3/clusters", login=login).body["data"]
        return f"/v3/clusters/{clusters[0]['cluster_id']}"


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body or b"null")
    except ValueError:
        return [json.loads(line) for line in body.splitlines()]
