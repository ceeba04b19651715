"""What a cluster of processes on this machine is made of, kept in its directory so that `up` goes on with it.

`cluster.json` holds ids, ports, cluster id, secret and settings; it is readable by its owner alone. Which
cluster commands mean when none is named stands in a file of the user's: the one that was started last.
"""

import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

import msgspec

from tierlog.base.types import random_uuid
from tierlog.broker.storage.checkpoints import encode_uuid
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.config.node import BROKER, CONTROLLER

FILE = "cluster.json"
HOST = "127.0.0.1"
FIRST_PORT = 9092
PORT_MAX = 65_535
ADMIN_ABOVE = 552
"""From a node's port for Kafka to that of its admin API, so that the first is where commands look: 9644."""


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """`port`: for Kafka's clients; 0 for one that is no broker."""

    id: int
    port: int
    admin_port: int
    roles: tuple[str, ...] = (BROKER, CONTROLLER)

    @property
    def bootstrap(self) -> str | None:
        return f"{HOST}:{self.port}" if BROKER in self.roles else None

    @property
    def admin_url(self) -> str:
        return f"http://{HOST}:{self.admin_port}"


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: of every node, over those that a cluster needs. `temporary`: the directory goes with it."""

    cluster_id: str
    secret: str
    nodes: tuple[NodePlan, ...]
    settings: dict[str, str] = {}
    temporary: bool = False

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes if node.bootstrap)

    @property
    def brokers(self) -> list[NodePlan]:
        return [node for node in self.nodes if BROKER in node.roles]

    @property
    def apart(self) -> list[NodePlan]:
        """Those that only vote."""
        return [node for node in self.nodes if BROKER not in node.roles]

    @property
    def roles(self) -> dict[int, tuple[str, ...]]:
        return {node.id: node.roles for node in self.nodes}

    @property
    def ports(self) -> list[int]:
        return [port for node in self.nodes for port in (node.port, node.admin_port) if port]

    @property
    def admin_urls(self) -> dict[int, str]:
        return {node.id: node.admin_url for node in self.nodes}

    def all_settings(self) -> dict[str, str]:
        """Of every node, but for its id, its roles and the secret: as many replicas as there are brokers for,
        and three at most."""
        replicas = min(len(self.brokers), 3)
        voting = [node for node in self.nodes if CONTROLLER in node.roles]
        voters = ",".join(f"{node.id}@{HOST}:{node.admin_port}" for node in voting)
        return {
            "cluster.id": self.cluster_id,
            "controller.quorum.voters": voters,
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(1 if replicas < 3 else 2),
            "offsets.topic.replication.factor": str(replicas),
            **self.settings,
        }


def new_plan(
    count: int,
    *,
    voters: int = 0,
    base_port: int = 0,
    settings: Mapping[str, object] | None = None,
    temporary: bool = False,
) -> ClusterPlan:
    """`count` brokers with ids from 1 on, which vote too; unless there are `voters` beside them, with the ids
    that follow. `base_port`: Kafka's of node 1, others follow it; 0: free ones, chosen here, since the nodes
    name each other by them."""
    total = count + voters
    if base_port:
        admin_port = base_port + ADMIN_ABOVE
        if admin_port + total - 1 > PORT_MAX:
            highest = PORT_MAX - ADMIN_ABOVE - total + 1
            raise usage(f"--port {base_port} leaves no room for {total} nodes", f"At most --port {highest}.")
        ports = [*range(base_port, base_port + count), *range(admin_port, admin_port + total)]
    else:
        ports = free_ports(count + total)
    ports[count:count] = [0] * voters
    roles = [(BROKER, CONTROLLER) if not voters else (BROKER,)] * count + [(CONTROLLER,)] * voters
    return ClusterPlan(
        cluster_id=encode_uuid(random_uuid(SystemRandom())),
        secret=secrets.token_hex(16),
        nodes=tuple(
            NodePlan(id=number + 1, port=ports[number], admin_port=ports[total + number], roles=roles[number])
            for number in range(total)
        ),
        settings=as_text(settings or {}),
        temporary=temporary,
    )


def with_settings(plan: ClusterPlan, settings: Mapping[str, object]) -> ClusterPlan:
    """Others stay as they are."""
    return msgspec.structs.replace(plan, settings={**plan.settings, **as_text(settings)})


def with_only(plan: ClusterPlan, settings: Mapping[str, object]) -> ClusterPlan:
    """The plan with these settings in place of all others."""
    return msgspec.structs.replace(plan, settings=as_text(settings))


def as_text(settings: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def load(directory: Path) -> ClusterPlan | None:
    """None if there is no cluster in the directory; raises CliError if its file is not to be read."""
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=ClusterPlan)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as failure:
        hint = "It says which nodes there are; put it back from a copy, or begin with an empty directory."
        raise CliError(f"cannot read {directory / FILE}: {failure}", hint=hint) from None


def save(directory: Path, plan: ClusterPlan) -> None:
    """Whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    _replace(directory / FILE, text + b"\n")


def node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}"


# --- which one is meant


def chosen(directory: Path | None) -> tuple[Path, ClusterPlan]:
    """The cluster in the directory; without one, that which was started last. Raises CliError."""
    found = directory or last_started()
    plan = load(found) if found is not None else None
    if found is None or plan is None:
        where = f" in {directory}" if directory else " that was started here"
        hint = "`tierlog cluster up` starts one; --data-dir names where another lies."
        raise CliError(f"there is no cluster{where}", hint=hint, code=ExitCode.FAILED)
    return found, plan


def last_started() -> Path | None:
    """The directory of the cluster that commands mean; None once it is down for good."""
    try:
        directory = Path(_pointer().read_text(encoding="utf-8").strip())
    except OSError:
        return None
    return directory if (directory / FILE).exists() else None


def remember(directory: Path) -> None:
    pointer = _pointer()
    pointer.parent.mkdir(parents=True, exist_ok=True)
    _replace(pointer, f"{directory.absolute()}\n".encode())


@contextmanager
def undone_if_it_fails(directory: Path, plan: ClusterPlan) -> Iterator[None]:
    """For the start of a cluster: commands mean it from now on.

    If the start fails, it leaves no settings behind: commands mean the cluster that they meant before, and
    one that existed has its former plan. A new one keeps its nodes and ports, which may have data by now.
    """
    meant, before = last_started(), load(directory)
    remember(directory)
    try:
        yield
    except BaseException as failure:
        if not isinstance(failure, KeyboardInterrupt):
            if (directory / FILE).exists():
                save(directory, before or with_only(plan, {}))
            forget(directory)
            if meant is not None and (before is not None or meant != directory):
                remember(meant)
        raise


def forget(directory: Path) -> None:
    """Commands mean it no more, if they did."""
    if last_started() in (None, directory.absolute()):
        _pointer().unlink(missing_ok=True)


def _pointer() -> Path:
    """State of a user's programs lies there (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tierlog" / "cluster"


# --- ports


def free_ports(count: int) -> list[int]:
    """Free a moment ago; all of them are held until the last is known, so that they differ."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in held]


def taken(ports: list[int]) -> list[int]:
    """Those that somebody listens on."""
    found = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                found.append(port)
    return found


def _replace(path: Path, content: bytes) -> None:
    """Not readable by others at any moment: it may hold a secret."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    beside.replace(path)
