"""Object store of a chaos run: a real S3 server that can be stopped, killed, isolated or slowed down."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import minio

from havoc.network import STORE, Network
from havoc.nodes import ChaosFailed, Process, until

SCRIPT = Path(__file__).parents[3] / "localstack" / "get-s3-server.sh"
ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "chaos", "chaos-secret", "us-east-1", "chaos"
START_WITHIN_S = 30.0
RUNS_S, STANDS_S = 0.05, 0.45
"""Start timeout of a slow server, which runs a tenth of the time."""


def program() -> str:
    """Path of the server, which is built first if it never was; that needs a network."""
    return subprocess.run([SCRIPT], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Store(Process):
    """`start` again after a kill: what it had is on its disk."""

    def __init__(self, directory: Path, network: Network) -> None:
        super().__init__()
        directory.mkdir()
        self._network, self._directory, self._program = network, directory, program()
        (directory / "data").mkdir()

    def __str__(self) -> str:
        return "the object store"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/run?endpoint=http://{self._network.places[STORE].admin}&region={REGION}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the nodes: credentials."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def start(self) -> None:
        place = self._network.places[STORE]
        words = [self._program, "--port", place.admin_bind, "--quiet", "posix", str(self._directory / "data")]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._network.command(STORE, words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
            )
        self._network.is_at(STORE, self._process.pid)
        until(self._answers, "the S3 server answers", START_WITHIN_S)

    def make_bucket(self) -> None:
        client = minio.Minio(
            self._network.places[STORE].admin, ACCESS_KEY, SECRET_KEY, secure=False, region=REGION
        )
        client.make_bucket(BUCKET)

    @contextmanager
    def slow(self) -> Iterator[None]:
        healed = threading.Event()
        thread = threading.Thread(target=self._drag, args=(healed,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            healed.set()
            thread.join()

    def _drag(self, healed: threading.Event) -> None:
        while not healed.is_set():
            self.signal(signal.SIGSTOP)
            healed.wait(STANDS_S)
            self.signal(signal.SIGCONT)
            healed.wait(RUNS_S)

    def _answers(self) -> bool:
        if not self.running:
            raise ChaosFailed(f"the S3 server ended: see {self._directory / 'server.log'}")
        host, _, port = self._network.places[STORE].admin.rpartition(":")
        socket.create_connection((host, int(port)), timeout=1).close()
        return True
