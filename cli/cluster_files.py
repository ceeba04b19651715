"""Files of a local cluster: its plan, and a pointer to the cluster that was started last.

`cluster.json` in the cluster's directory holds node ids, ports, cluster id, secret and settings; only its
owner can read it. `tierlog cluster up` restarts the same cluster from it. Commands without --data-dir use the
cluster that was started last; a file in the user's state directory names it.
"""

import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import SystemRandom

import msgspec

from tierlog.base.types import random_uuid
from tierlog.broker.storage.checkpoints import encode_uuid
from tierlog.cli.errors import CliError, ExitCode, usage
from tierlog.cli.output import counted
from tierlog.config.node import BROKER, CONTROLLER
from tierlog.config.sources import as_text

FILE = "cluster.json"
HOST = "127.0.0.1"
DEFAULT_BASE_PORT = 9092
PORT_MAX = 65_535
NODE_PORTS = range(15_000, 32_000)
"""Below the ports that systems give to clients: 32768 on Linux, 49152 elsewhere."""

ADMIN_PORT_OFFSET = 552
"""A node's admin port minus its Kafka port: 9092 gives 9644, the commands' default."""


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """`port`: for Kafka clients; 0 if the node is not a broker."""

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
    """`settings`: for every node, over those that a cluster needs. `temporary`: `cluster down` removes the
    directory. `secure`: with TLS, users and ACLs (`local_security`)."""

    cluster_id: str
    secret: str
    nodes: tuple[NodePlan, ...]
    settings: dict[str, str] = {}
    temporary: bool = False
    secure: bool = False

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes if node.bootstrap)

    @property
    def brokers(self) -> list[NodePlan]:
        return [node for node in self.nodes if BROKER in node.roles]

    @property
    def voters(self) -> list[NodePlan]:
        """Nodes that vote when the cluster starts for the first time; the quorum may have changed since."""
        return [node for node in self.nodes if CONTROLLER in node.roles]

    @property
    def controllers_only(self) -> list[NodePlan]:
        """Controller nodes: they vote and are not brokers."""
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
        """Settings of every node, except its id, its roles and the secret. The default replication factor is
        the number of brokers, at most three."""
        replicas = min(len(self.brokers), 3)
        voters = ",".join(f"{node.id}@{HOST}:{node.admin_port}" for node in self.voters)
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
    secure: bool = False,
) -> ClusterPlan:
    """Plan `count` brokers with ids from 1. They also vote, unless there are `voters`: controller nodes with
    the ids that follow.

    `base_port` is the Kafka port of node 1, and the others follow it. 0 chooses free ports here, because the
    nodes' settings name each other's ports.
    """
    total = count + voters
    if base_port:
        admin_port = base_port + ADMIN_PORT_OFFSET
        if admin_port + total - 1 > PORT_MAX:
            highest = PORT_MAX - ADMIN_PORT_OFFSET - total + 1
            message = f"--port {base_port} is too high for {counted(total, 'node')}"
            raise usage(message, f"The highest possible value is --port {highest}.")
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
        settings=settings_as_text(settings or {}),
        temporary=temporary,
        secure=secure,
    )


def with_settings(plan: ClusterPlan, settings: Mapping[str, object]) -> ClusterPlan:
    """The plan with these settings added or replaced."""
    return msgspec.structs.replace(plan, settings={**plan.settings, **settings_as_text(settings)})


def with_only_settings(plan: ClusterPlan, settings: Mapping[str, object]) -> ClusterPlan:
    """The plan with these settings and no others."""
    return msgspec.structs.replace(plan, settings=settings_as_text(settings))


def settings_as_text(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: as_text(value) for name, value in settings.items()}


def load(directory: Path) -> ClusterPlan | None:
    """The plan in the directory, or None if there is no cluster. Raises CliError if the file cannot be
    read."""
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=ClusterPlan)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as failure:
        hint = "The file holds the cluster's nodes: restore it from a copy, or start with an empty directory."
        raise CliError(f"cannot read {directory / FILE}: {failure}", hint=hint) from None


def save(directory: Path, plan: ClusterPlan) -> None:
    """Replace the plan atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    replace_file(directory / FILE, text + b"\n")


def node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}"


# --- the cluster that was started last


def find_cluster(directory: Path | None) -> tuple[Path, ClusterPlan]:
    """The cluster in the directory, or the one that was started last. Raises CliError if there is none."""
    found = directory or last_started()
    plan = load(found) if found is not None else None
    if found is None or plan is None:
        where = f"no cluster in {directory}" if directory else "no local cluster found"
        hint = (
            "Start one with `tierlog cluster up`, or name its directory with --data-dir. "
            "`tierlog cluster health` and `tierlog cluster info` show others."
        )
        raise CliError(where, hint=hint, code=ExitCode.FAILED)
    return found, plan


def last_started() -> Path | None:
    """Directory of the cluster that was started last; None once it is down."""
    try:
        directory = Path(_pointer().read_text(encoding="utf-8").strip())
    except OSError:
        return None
    return directory if (directory / FILE).exists() else None


def set_last_started(directory: Path) -> None:
    pointer = _pointer()
    pointer.parent.mkdir(parents=True, exist_ok=True)
    replace_file(pointer, f"{directory.absolute()}\n".encode())


@contextmanager
def rollback_on_failure(directory: Path, plan: ClusterPlan) -> Iterator[None]:
    """Context of a cluster's start: makes it the cluster that was started last.

    A failed start leaves no settings behind: the pointer names the previous cluster again, and an existing
    cluster gets its previous plan back. A new cluster keeps its nodes and ports, which may already have data.
    """
    previous, before = last_started(), load(directory)
    set_last_started(directory)
    try:
        yield
    except BaseException as failure:
        if not isinstance(failure, KeyboardInterrupt):
            if (directory / FILE).exists():
                save(directory, before or with_only_settings(plan, {}))
            clear_last_started(directory)
            if previous is not None and (before is not None or previous != directory):
                set_last_started(previous)
        raise


def clear_last_started(directory: Path) -> None:
    """Remove the pointer if it names this directory, or no cluster."""
    if last_started() in (None, directory.absolute()):
        _pointer().unlink(missing_ok=True)


def state_directory() -> Path:
    """In the user's state directory (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tierlog"


def _pointer() -> Path:
    return state_directory() / "cluster"


# --- ports


def free_ports(count: int) -> list[int]:
    """Distinct free ports. None is of those that systems give to clients, whose connections could take the
    port of a node that is down for a moment."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in SystemRandom().sample(NODE_PORTS, len(NODE_PORTS)):
            if len(found) == count:
                break
            bound = stack.enter_context(socket.socket())
            with suppress(OSError):  # it is in use
                bound.bind((HOST, port))
                found.append(port)
        return found


def ports_in_use(ports: list[int]) -> list[int]:
    """Those of the ports that are in use."""
    found = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                found.append(port)
    return found


def replace_file(path: Path, content: bytes) -> None:
    """Atomic, and readable only by the owner at every moment: the content may hold a secret."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # else a power failure may leave an empty file under the name
    new.replace(path)
