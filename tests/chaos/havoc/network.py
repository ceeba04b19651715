"""Network of the nodes: a namespace for each if the machine allows it, otherwise loopback with a proxy.

The run first moves into new network, mount and process namespaces (`enter`). When it ends, for any reason,
the kernel ends its processes and removes its links and mounts, so no cleanup is necessary.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

CLIENTS, STORE = 0, 9
"""Stand for the clients and the object store where nodes are named by their ids, from 1 to 8."""

UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_ROOT = ("--user", "--map-root-user")
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
TOOLS = ("setpriv", "unshare", "nsenter", "ip", "iptables")
SUBNET = "10.231.0"
KAFKA_PORT, ADMIN_PORT = 9092, 9644
INSIDE = "CHAOS_INSIDE"


class Place(NamedTuple):
    """Addresses of one node: what it binds, and what others connect to (host:port each)."""

    kafka_bind: str
    admin_bind: str
    kafka: str
    admin: str


class Network(Protocol):
    name: str
    places: dict[int, Place]

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        """The command line, wrapped to run in the node's network."""

    def is_at(self, node: int, pid: int) -> None:
        """Called with the process id of the node after each start."""

    def cut(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Drop all packets from the sources to the targets."""

    def lose(self, share: float) -> None:
        """Drop this share of all packets."""

    def heal(self) -> None: ...

    def close(self) -> None: ...


def why_not() -> str | None:
    """Why this machine cannot have namespaces; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    rules = (
        "mount -t tmpfs tmpfs /run && ip link add b0 type bridge && ip link add v0 type veth peer name v1 && "
    )
    rules += "iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP"
    probe = subprocess.run([*_unshare(), "sh", "-c", rules], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else probe.stderr.strip().splitlines()[-1]


def enter() -> int:
    """Run this program again in new namespaces (`is_inside`). Returns its exit code.

    Signals are forwarded as a kill, since `unshare` ignores SIGINT and SIGTERM. If this process is killed,
    the program ends too.
    """
    command = [*WITH_PARENT, *_unshare(), sys.executable, *sys.argv]
    process = subprocess.Popen(command, env={**os.environ, INSIDE: "1"})
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: process.kill())
    code = process.wait()
    return code if code >= 0 else 128 - code


def is_inside() -> bool:
    return INSIDE in os.environ


def _unshare() -> tuple[str, ...]:
    return UNSHARE if os.geteuid() == 0 else (*UNSHARE[:1], *AS_ROOT, *UNSHARE[1:])


class Namespaces:
    """A namespace for each node, joined by a bridge. Clients run outside, on the bridge."""

    name = "namespaces"

    def __init__(self, nodes: Sequence[int]) -> None:
        self._ips = {CLIENTS: f"{SUBNET}.254"} | {node: f"{SUBNET}.{node}" for node in nodes}
        self.places = {
            node: Place(*(f"{self._ips[node]}:{port}" for port in (KAFKA_PORT, ADMIN_PORT) * 2))
            for node in nodes
        }
        _run("mount -t tmpfs tmpfs /run")  # where `ip netns` and iptables keep their files
        Path("/run/netns").mkdir()
        _run("ip link set lo up")
        _run("ip link add br0 type bridge")
        _run(f"ip addr add {self._ips[CLIENTS]}/24 dev br0")
        _run("ip link set br0 up")
        for node in nodes:
            _run(f"ip netns add n{node}")
            _run(f"ip link add v{node} type veth peer name eth0 netns n{node}")
            _run(f"ip link set v{node} master br0 up")
            _run(f"ip -n n{node} addr add {self._ips[node]}/24 dev eth0")
            _run(f"ip -n n{node} link set eth0 up")
            _run(f"ip -n n{node} link set lo up")

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        return [*(["nsenter", f"--net=/run/netns/n{node}"] if node != CLIENTS else []), *words]

    def is_at(self, node: int, pid: int) -> None:
        pass

    def cut(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Drop packets where they arrive: as in a failing network, the sender is not notified."""
        senders = list(sources)
        for target in targets:
            for source in senders:
                if source != target:
                    self._iptables(target, f"-A INPUT -s {self._ips[source]} -j DROP")

    def lose(self, share: float) -> None:
        for node in self._ips:
            self._iptables(node, f"-A INPUT ! -i lo -m statistic --mode random --probability {share} -j DROP")

    def heal(self) -> None:
        for node in self._ips:
            self._iptables(node, "-F INPUT")

    def close(self) -> None:
        """Nothing to do: the kernel removes everything at the end of the run."""

    def _iptables(self, node: int, rule: str) -> None:
        subprocess.run(self.command(node, ["iptables", *rule.split()]), check=True, capture_output=True)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
