"""Real S3 servers as processes on free ports of 127.0.0.1."""

import functools
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import botocore.loaders
import minio
from canaries import canary

from tierlog.cli.cluster_files import free_ports

SCRIPT = Path(__file__).parents[2] / "localstack" / "get-s3-server.sh"
ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "tierlog", canary("s3"), "us-east-1", "tierlog"


def credentials(access_key: str, secret_key: str) -> dict[str, str]:
    """Environment of a process that uses a server."""
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}


CREDENTIALS = credentials(ACCESS_KEY, SECRET_KEY)
"""Environment of a process with all rights."""

botocore.loaders.create_loader = functools.cache(botocore.loaders.create_loader)
"""Each session of botocore would read the descriptions of S3 again, which take a tenth of a second: the tests
make hundreds of stores."""


@dataclass
class S3Server:
    """A server process. After `kill` it can be started again with the same address and directory."""

    name: str
    address: str  # host:port
    directory: Path
    _process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Returns once the server serves requests."""
        command, environment = _command(self.name, self.address, self.directory)
        log_path = self.directory / "server.log"
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=log, stderr=log
            )
        await_answer(self._process, self.address, log_path)

    def kill(self) -> None:
        """SIGKILL, as when the server's machine fails."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """The server hangs, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def create_user(self, access_key: str, secret_key: str) -> None:
        """Create a user of versitygw with the rights that the policy of a bucket gives."""
        assert self.name == "versitygw"
        root = ("--access", ACCESS_KEY, "--secret", SECRET_KEY, "--endpoint-url", self.endpoint)
        new = ("--access", access_key, "--secret", secret_key, "--role", "user")
        subprocess.run([_binary(self.name), "admin", *root, "create-user", *new], check=True)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"

    def url(self, prefix: str) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region={REGION}"

    def minio_client(self, secret_key: str = SECRET_KEY) -> minio.Minio:
        """The bucket through another client library than the product's."""
        return minio.Minio(self.address, ACCESS_KEY, secret_key, secure=False, region=REGION)


def available() -> list[str]:
    """The servers against which this run tests."""
    names = ["versitygw", "moto"]
    if os.environ.get("TIERLOG_TEST_MINIO") == "1" or _built("minio"):
        names.append("minio")
    return names


@contextmanager
def running(name: str, directory: Path) -> Iterator[S3Server]:
    """A server with an empty bucket; stopped at the end."""
    server = S3Server(name, f"127.0.0.1:{free_port()}", directory)
    try:
        server.start()
        server.minio_client().make_bucket(BUCKET)
        yield server
    finally:
        server.stop()


def _command(name: str, address: str, directory: Path) -> tuple[list[str], dict[str, str]]:
    data = directory / "data"
    data.mkdir(exist_ok=True)
    if name == "moto":
        host, port = address.split(":")
        return [sys.executable, "-m", "moto.server", "-H", host, "-p", port], {}
    binary = _binary(name)
    if name == "versitygw":
        users = directory / "users"
        users.mkdir(exist_ok=True)
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        return [binary, "--port", address, "--quiet", "--iam-dir", str(users), "posix", str(data)], keys
    keys = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_UPDATE": "off"}
    return [binary, "server", "--quiet", "--address", address, str(data)], keys


def _binary(name: str) -> str:
    return subprocess.run([SCRIPT, name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _built(name: str) -> bool:
    version = re.search(rf"\[{name}\]=\S+@(\S+)", SCRIPT.read_text())
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tierlog"
    cache = Path(os.environ.get("TIERLOG_CACHE", cache))
    return version is not None and (cache / "bin" / f"{name}-{version.group(1)}").exists()


def free_port() -> int:
    return free_ports(1)[0]


def await_answer(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    """Wait for a response that is not 503: for some milliseconds, minio refuses each request with the advice
    to retry after a minute, which clients follow."""
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            connection = http.client.HTTPConnection(address, timeout=10)
            connection.request("GET", "/")
            status = connection.getresponse().status
            connection.close()
            if status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)  # the start of another program cannot be awaited
    raise RuntimeError(f"the S3 server on {address} did not start:\n{log.read_text(errors='replace')}")
