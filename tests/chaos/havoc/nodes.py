"""Node processes, which can be killed, stopped, wiped and given faulty system calls."""

import json
import mmap
import os
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

from havoc.network import Network, Place
from tierlog.base.clock import SystemClock
from tierlog.base.types import random_uuid
from tierlog.broker.storage.checkpoints import encode_uuid
from tierlog.cli.admin import AdminApi
from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.errors import CliError
from tierlog.cli.local_cluster import SECRET
from tierlog.cli.local_security import ADMIN, HOSTS, LocalSecurity
from tierlog.config.node import BROKER, CONTROLLER
from tierlog.config.sources import ENVIRONMENT_PREFIX

START_TIMEOUT_S = 180.0  # a start takes some seconds on an idle machine
REQUEST_TIMEOUT_S = 2.0
ANSWER_S = 60.0  # within which a node of a busy machine answers
SHIM = Path(__file__).with_name("shim.c")
CONTROL = "CHAOS_CONTROL"
DISK_BYTES, VOTER_DISK_BYTES = 1 << 30, 64 << 20
"""Sizes of the file systems that can be filled. They are in memory, and take only as much as is written."""

SETTINGS = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "false",
    "metadata.reserve.bytes": 1 << 17,  # so small that records soon fill the space it gives up
    "log.flush.offset.checkpoint.interval.ms": 2000,  # so that logs are fsynced while fsync fails
}


SECURE = {"connections.max.reauth.ms": 20_000}
"""Settings of a secure cluster in addition: each round has logins that end."""

CERTIFICATE_AGE_S, CERTIFICATE_DAYS = 3 * 86_400, 30

METADATA = "__cluster_metadata"
"""The directory of the quorum's log, in a log directory."""

CLIENT = "chaos"
"""User of the clients of a secure cluster."""

HANGS = -1
"""Value of `fsync` with which fsync never returns."""


class ControlFile:
    """The file from which shim.c reads the faults of one node."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 16)
        self.path = path

    def set(self, *, clock_s: int = 0, fsync: int = 0) -> None:
        """`fsync`: the errno that it fails with, or HANGS."""
        struct.pack_into("=qq", self._page, 0, clock_s, fsync)


def build_shim(directory: Path) -> Path | None:
    """Compile shim.c. Returns None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    built = directory / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(SHIM)], check=True)
    return built


class Process:
    """A process that can be started several times."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


class Node(Process):
    def __init__(
        self,
        node_id: int,
        directory: Path,
        network: Network,
        settings: Mapping[str, object],
        environment: Mapping[str, str],
        shim: Path | None,
    ) -> None:
        super().__init__()
        directory.mkdir(parents=True)
        self.id, self.data, self.log_path = node_id, directory / "data", directory / "node.log"
        self.data.mkdir()
        self.votes = CONTROLLER in str(settings["process.roles"])
        self.control = ControlFile(directory / "control")
        self._network = network
        self._settings = {**settings, "node.id": node_id, "log.dirs": self.data / "logs"}
        self._environment = dict(environment)
        self.build: Path | None = None  # for PYTHONPATH of the next start; None: as this process
        if shim is not None:
            self._environment |= {"LD_PRELOAD": str(shim), CONTROL: str(self.control.path)}

    def __str__(self) -> str:
        return f"node {self.id}"

    @property
    def place(self) -> Place:
        return self._network.places[self.id]

    @property
    def admin(self) -> AdminApi:
        return AdminApi(f"http://{self.place.admin}", timeout_s=REQUEST_TIMEOUT_S)

    def begin(self) -> None:
        """Start the process, but do not wait until it serves, which takes a quorum."""
        self._network.is_at(self.id, self._launch())

    def _launch(self) -> int:
        """Start the process; returns its id."""
        arguments = [sys.executable, "-m", "tierlog.cli.main", "server", "--json"]
        for name, value in self._settings.items():
            arguments += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._network.command(self.id, arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    **without_settings(os.environ),
                    **self._environment,
                    **({"PYTHONPATH": str(self.build)} if self.build else {}),
                },
            )
        return self._process.pid

    def stop(self) -> None:
        """Stop cleanly, with controlled shutdown."""
        self.signal(signal.SIGTERM)
        if self._process is not None:
            self._process.wait(START_TIMEOUT_S)
        self.kill()

    @contextmanager
    def twin(self, directory: Path) -> Iterator["Node"]:
        """A second process with this broker's id, an empty directory and other ports. It is killed at the
        end."""
        host, _, _ = self.place.admin_bind.rpartition(":")
        settings = {name: value for name, value in self._settings.items() if name != "advertised.listeners"}
        protocol = str(settings["listeners"]).partition(":")[0]
        settings |= {
            "process.roles": BROKER,
            "listeners": f"{protocol}://{host}:0",
            "admin.listener": f"{host}:0",
        }
        other = Node(self.id, directory, self._network, settings, self._environment, None)
        other.build = self.build
        other._launch()
        try:
            yield other
        finally:
            other.kill()
            shutil.rmtree(directory)

    def copy_directories(self, directory: Path) -> None:
        """Copy the log directories without the metadata log: a quorum cannot tolerate a voter that forgets
        its votes."""
        shutil.copytree(self.data / "logs", directory, ignore=shutil.ignore_patterns(METADATA))

    def put_back(self, directory: Path) -> None:
        """Restore the log directories from the copy. The process must have ended."""
        for path in (self.data / "logs").iterdir():
            if path.name != METADATA:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(directory, self.data / "logs", dirs_exist_ok=True)
        shutil.rmtree(directory)

    def wait_until_it_serves(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            raise ChaosFailed(f"node {self.id} was not started")
        if not select.select([process.stdout], [], [], START_TIMEOUT_S)[0]:
            raise ChaosFailed(f"node {self.id} did not serve within {START_TIMEOUT_S:g} s")
        line = process.stdout.readline()
        if not line:
            raise ChaosFailed(f"node {self.id} ended with exit code {process.wait(10)}: see {self.log_path}")
        json.loads(line)

    def start(self) -> None:
        self.begin()
        self.wait_until_it_serves()

    def first_segment(self, topic: str, partition: int) -> int:
        """Base offset of the partition's oldest segment on this disk."""
        found = (self.data / "logs" / f"{topic}-{partition}").glob("*.log")
        return min((int(path.stem) for path in found), default=-1)

    def wipe(self) -> None:
        """Empty the data directory, as if the disk had been replaced."""
        for path in self.data.iterdir():
            shutil.rmtree(path)


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _security(directory: Path, hosts: tuple[str, ...]) -> LocalSecurity:
    """With certificates that are some days old, so that a node whose clock is behind trusts them, too."""
    security = LocalSecurity(directory, hosts)
    security.directory.mkdir(parents=True, mode=0o700)
    issued_s = SystemClock().now_ms() // 1000 - CERTIFICATE_AGE_S
    LocalAuthority(security.directory, issued_s, CERTIFICATE_DAYS).issue("broker", hosts)
    return security


class ChaosFailed(Exception):
    """The cluster did not recover as required between faults."""


class Cluster:
    """`brokers` are the voters too, unless there are separate `voters`. `disks`: whether file systems may be
    mounted. Then the first broker and all separate voters have small disks, which can be filled. `secure`:
    clients and brokers connect over SASL_SSL, and ACLs decide what clients may do. The admin API stays open,
    as it takes passwords only over TLS or at a loopback address."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        brokers: Sequence[int],
        voters: Sequence[int] = (),
        shim: Path | None,
        disks: bool,
        secure: bool = False,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.network, self.disks, self.shim = network, disks, shim
        roles = dict.fromkeys(brokers, BROKER if voters else f"{BROKER},{CONTROLLER}")
        roles |= dict.fromkeys(voters, CONTROLLER)
        quorum = ",".join(f"{node}@{network.places[node].admin}" for node in voters or brokers)
        common = {
            **SETTINGS,
            "cluster.id": encode_uuid(random_uuid(SystemRandom())),
            "controller.quorum.voters": quorum,
            "object.store.url": f"file://{directory / 'objects'}",
            **settings,
        }
        hosts = [*HOSTS, *(place.kafka.rpartition(":")[0] for place in network.places.values())]
        self._security = _security(directory, tuple(dict.fromkeys(hosts))) if secure else None
        protocol = "PLAINTEXT" if self._security is None else "SASL_SSL"
        if self._security is not None:
            common |= {**self._security.settings(0), **SECURE, **settings}
            common = {name: value for name, value in common.items() if not name.startswith("admin.")}
        environment = {**(environment or {}), SECRET: secrets.token_hex(16)}
        self.nodes = {
            node: Node(
                node,
                directory / f"node-{node}",
                network,
                {
                    **common,
                    "process.roles": roles[node],
                    "listeners": f"{protocol}://{place.kafka_bind}",
                    "advertised.listeners": f"{protocol}://{place.kafka}",
                    "admin.listener": place.admin_bind,
                },
                environment,
                shim,
            )
            for node in roles
            for place in [network.places[node]]
        }
        self.brokers = {node: self.nodes[node] for node in brokers}
        self.voters = {node: self.nodes[node] for node in voters or brokers}
        self.apart = bool(voters)
        self.small_disk = self.nodes[min(brokers)]
        self._mounted: list[Path] = []
        if disks:
            self._mount(self.small_disk.data, DISK_BYTES)
            for node in voters:
                self._mount(self.nodes[node].data, VOTER_DISK_BYTES)

    def _mount(self, path: Path, size: int) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
        self._mounted.append(path)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.place.kafka for node in self.brokers.values())

    def client(self, user: str = "") -> dict[str, object]:
        """Settings of clients. `user`: of a secure cluster; the administrator, or CLIENT."""
        if self._security is None:
            return {"bootstrap.servers": self.bootstrap}
        return self._security.librdkafka_settings(self.bootstrap, user or ADMIN)

    def start(self) -> None:
        if self._security is not None:
            logs = [node.data / "logs" for node in self.brokers.values()]
            self._security.prepare(logs, self.bootstrap, [CLIENT])
        for node in self.nodes.values():
            if not node.running:
                node.begin()
        for node in self.nodes.values():
            node.wait_until_it_serves()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.signal(signal.SIGCONT)
            node.kill()

    def close(self) -> None:
        self.kill()
        for path in self._mounted:
            # lazily, as a process that hangs in the kernel may keep it busy
            subprocess.run(["umount", "--lazy", str(path)], check=False)

    def ask(self, path: str, **query: object) -> Any:
        """The response of the first node that answers. Raises ChaosFailed if none does within ANSWER_S."""
        deadline_s = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline_s:
            for node in self.nodes.values():
                try:
                    return node.admin.get(path, **query)
                except (CliError, OSError):
                    continue
            time.sleep(0.1)
        raise ChaosFailed(f"no node answers GET {path}")

    def controller(self) -> Node:
        """The leader of the quorum in the highest term that any node reports."""
        best: dict[str, Any] = {}
        for node in self.nodes.values():
            try:
                result = node.admin.get("/v1/quorum")
            except (CliError, OSError):
                continue
            if result["role"] == "leader" and result["term"] > best.get("term", -1):
                best = result
        if not best:
            raise ChaosFailed("no node leads the quorum")
        return self.nodes[best["node_id"]]

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        return list(self.ask("/v1/partitions", topic=topic)["partitions"])

    def tiers(self, topic: str) -> list[dict[str, Any]]:
        """Tier status of each partition, from its leader. Raises ChaosFailed."""
        rows, found = self.partitions(topic), []
        for node in {row["leader"] for row in rows} & self.brokers.keys():
            found += self.nodes[node].admin.get("/v1/tier/status", topic=topic)["partitions"]
        if {tier["partition"] for tier in found} != {row["partition"] for row in rows}:
            raise ChaosFailed("not every partition's leader reports its tier status")
        return found


def until(holds: Any, what: str | Callable[[], str], within_s: float) -> float:
    """Wait until `holds()` is true. Returns the seconds that it took. Raises ChaosFailed, which names
    `what`."""
    began = time.monotonic()
    while True:
        try:
            if holds():
                return time.monotonic() - began
        except (CliError, OSError, ChaosFailed):
            pass
        if time.monotonic() - began > within_s:
            raise ChaosFailed(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.2)
