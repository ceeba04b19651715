"""Platform: the ports through which a node reaches its machine and other nodes.

Everything else in a node is the same in production and in the simulator, which replaces these ports. Slow
work goes to threads by `loop.run_in_executor`, so the event loop is the port for threads.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from tierlog.base.addresses import host_port
from tierlog.base.clock import Clock, SystemClock
from tierlog.base.files import Files, OsFiles
from tierlog.base.network import Network, Peer, Unreachable
from tierlog.base.open_files import OpenFiles
from tierlog.base.process_limits import OTHER_DESCRIPTORS, descriptor_limit, share_of_logs
from tierlog.base.tasks import TaskGroup
from tierlog.broker.gateway.admin import AdminServer
from tierlog.broker.net.core.bounds import THROTTLED_CONNECTIONS_MAX
from tierlog.broker.net.listener import Listener
from tierlog.broker.replication.broker_connection import BrokerConnection
from tierlog.broker.replication.broker_login import BrokerLogin, inter_broker_login
from tierlog.broker.storage.unclean_restart import boot_id
from tierlog.config.node import NodeSettings
from tierlog.metadata.quorum.api import END_PATH
from tierlog.metadata.quorum.node_snapshots import KEEP_ENTRIES, SNAPSHOT_ENTRIES
from tierlog.metadata.quorum.peers import Peers
from tierlog.metadata.quorum.sentinel import Sentinel
from tierlog.metadata.quorum.tls import TlsFiles
from tierlog.tiering.object_store import ObjectStore

if TYPE_CHECKING:
    from tierlog.broker.security.tls_files import NodeTls

CONNECT_TIMEOUT_S = 5.0
_log = structlog.get_logger("tierlog")


class ProcessSentinel(Protocol):
    """Reports the end of this process to the controllers."""

    def update(self, broker_epoch: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    files: Files
    clock: Clock
    rng: random.Random
    network: Network
    """Connections to the listeners of other brokers."""
    peers: Callable[[NodeSettings, str, TaskGroup], Peers | None]
    """(settings, cluster id, tasks) -> connections to other quorum members; None: no other node can join."""
    sentinel: Callable[[NodeSettings, Peers, TaskGroup], ProcessSentinel]
    listener: Callable[..., Listener]
    """The listener for Kafka clients; takes the arguments of Listener."""
    admin_server: Callable[..., AdminServer]
    """Takes the arguments of AdminServer."""
    tls: "NodeTls | None" = None
    """TLS of the listeners that have it."""
    boot_id: str
    """Changes when the machine restarts; empty: unknown."""
    objects: ObjectStore | None = None
    """A store to use instead of object.store.url."""
    snapshot_entries: int = SNAPSHOT_ENTRIES
    """Entries of the metadata log between two snapshots. The simulator has fewer."""
    keep_entries: int = KEEP_ENTRIES
    """Entries before a snapshot that stay in memory, for followers that lag a little."""


def production_platform(settings: NodeSettings) -> Platform:
    """Raises InvalidSetting if the TLS of a listener cannot be used."""
    tls = _listener_tls(settings)
    return Platform(
        files=OsFiles(OpenFiles(_max_open_log_files(settings))),
        clock=SystemClock(),
        rng=random.Random(),
        network=TcpNetwork(
            settings.inter_broker_listener,
            tls.for_brokers if tls and settings.controller_quorum_secret else None,
            inter_broker_login(settings),
        ),
        tls=tls,
        peers=_http_peers,
        sentinel=_start_sentinel,
        listener=Listener,
        admin_server=AdminServer,
        boot_id=boot_id(),
    )


class TcpNetwork:
    """Opens connections to other brokers, for fetchers, log repair and tier starts."""

    def __init__(
        self,
        listener: str,
        tls: Callable[[], ssl.SSLContext] | None = None,
        login: BrokerLogin | None = None,
    ) -> None:
        """`listener`: inter.broker.listener.name of this broker. `tls`: the context of the next connection;
        None: without TLS. `login`: None if the listener wants none."""
        self._listener = listener
        self._tls = tls
        self._login = login

    async def connect(self, peer: Peer, client_id: str) -> BrokerConnection:
        """Connect to the listener that this broker uses between brokers: its TLS and its login are for that
        one.

        In a rolling change of inter.broker.listener.name the peer may still use another one, which is `host`
        and `port` of its registration. Those are used if the peer has no listener of this name, or did not
        register its listeners because the cluster's format version is too low.
        """
        host, port = peer.address_of(self._listener) or (peer.host, peer.port)
        address = host_port(host, port)
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, adapter = await loop.create_connection(
                    lambda: _ProtocolAdapter(BrokerConnection(address, client_id, loop)),
                    host,
                    port,
                    ssl=context,
                    server_hostname=None if context is None else host,
                )
        except (OSError, TimeoutError) as failure:
            raise Unreachable(f"{address}: {str(failure) or 'no response'}") from failure
        if self._login is not None:
            await self._login.log_in(adapter.connection, address)
        return adapter.connection


class _ProtocolAdapter(asyncio.BufferedProtocol):
    """Passes the event loop's calls on to a BrokerConnection, which may be compiled and then cannot inherit
    from a class of asyncio."""

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.buffer_updated(nbytes)


def _listener_tls(settings: NodeSettings) -> "NodeTls | None":
    """TLS of the listeners, if any has it. Raises InvalidSetting."""
    if not any(listener.protocol.has_tls for listener in settings.client_listeners):
        return None
    from tierlog.broker.security.tls_files import NodeTls  # plain listeners need no library for certificates

    return NodeTls(settings)


def quorum_tls(settings: NodeSettings) -> TlsFiles | None:
    if not settings.quorum_files:
        return None
    certificate, key, ca = settings.quorum_files
    return TlsFiles(certificate=certificate, key=key, ca=ca)


def _http_peers(settings: NodeSettings, cluster_id: str, tasks: TaskGroup) -> Peers | None:
    if not settings.controller_quorum_secret:
        return None
    from tierlog.metadata.quorum.transport import HttpPeers  # a standalone node needs no HTTP client

    secret = settings.controller_quorum_secret.encode()
    return HttpPeers(settings.node_id, cluster_id, secret, tasks, quorum_tls(settings))


def _start_sentinel(settings: NodeSettings, peers: Peers, tasks: TaskGroup) -> ProcessSentinel:
    sign = peers.sign_requests
    return Sentinel(settings.node_id, lambda body: sign(END_PATH, body), tasks, quorum_tls(settings))


def _max_open_log_files(settings: NodeSettings) -> int:
    limit = descriptor_limit()
    wanted = settings.log_max_open_files
    connections = settings.max_connections + THROTTLED_CONNECTIONS_MAX
    share = share_of_logs(wanted, connections, limit)
    if share < wanted:
        needed = wanted + connections + OTHER_DESCRIPTORS
        _log.warning(
            "node.files.limited",
            stay_open=share,
            limit=limit,
            needed=needed,
        )
    return share
