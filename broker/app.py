"""The composition root: one node, put together and taken apart in visible order.

`Broker` is a whole node in this process; `broker.process` is the process around it.
"""

import asyncio
import contextlib
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from tierlog.broker.gateway.admin import AdminServer, admin_routes, url_for_others
from tierlog.broker.gateway.node import Node, Serving
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.errors import error_reply
from tierlog.broker.handlers.groups import group_handlers
from tierlog.broker.handlers.stats import RequestStats, measured
from tierlog.broker.handlers.table import build_handlers
from tierlog.broker.net.bounds import TURNED_AWAY_MAX, bounds_of
from tierlog.broker.net.listener import Listener
from tierlog.broker.net.notes import RefusalNotes, note_end
from tierlog.broker.net.throttling import Throttling
from tierlog.broker.partition.follower import StartFromTier
from tierlog.broker.ports import descriptors
from tierlog.broker.ports.clock import Clock, SystemClock
from tierlog.broker.ports.files import Files, OsFiles
from tierlog.broker.ports.network import Network
from tierlog.broker.ports.open_files import OpenFiles
from tierlog.broker.ports.tasks import TaskGroup, done_before
from tierlog.broker.ports.types import TopicPartition, random_uuid
from tierlog.broker.quotas.quotas import ClientQuotas, windows_of
from tierlog.broker.quotas.replication import ReplicationThrottles
from tierlog.broker.runtime.boots import boot_id, forget_boot, may_have_lost, note_boot
from tierlog.broker.runtime.broker_connection import TcpNetwork
from tierlog.broker.runtime.data_directories import DataDirectories
from tierlog.broker.runtime.directory_moves import DirectoryMoves
from tierlog.broker.runtime.examiner import Examiner
from tierlog.broker.runtime.fetch_sessions import FetchSessions
from tierlog.broker.runtime.group_commit import GroupCommit
from tierlog.broker.runtime.group_service import GroupService
from tierlog.broker.runtime.isr_updater import IsrUpdater
from tierlog.broker.runtime.lifecycle import BrokerLifecycle, Registration, RegistrationRefused
from tierlog.broker.runtime.log_cleaner import LogCleaner
from tierlog.broker.runtime.loop_lag import LoopLag
from tierlog.broker.runtime.partition_roles import PartitionRoles
from tierlog.broker.runtime.producer_ids import ProducerIds
from tierlog.broker.runtime.purgatory import Purgatory
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.runtime.replica_fetcher import FollowerDependencies, ReplicaFetchers
from tierlog.broker.runtime.replica_manager import ReplicaManager
from tierlog.broker.runtime.replica_reports import ReplicaReports
from tierlog.broker.runtime.tiering import Tiering
from tierlog.broker.runtime.upkeep import Upkeep
from tierlog.broker.settings.node import CONTROLLER, NodeSettings
from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata.api import quorum_routes, raft_routes
from tierlog.metadata.balancing import BalanceSettings
from tierlog.metadata.client import MetadataClient
from tierlog.metadata.controller.commands import AllocateProducerIds
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.node import TICK_MS, MetadataNode, MetadataUnavailable
from tierlog.metadata.observer import MetadataObserver
from tierlog.metadata.raft.settings import RaftSettings
from tierlog.metadata.tls import TlsFiles
from tierlog.tiering.object_store import ObjectStore

if TYPE_CHECKING:
    from tierlog.metadata.transport import HttpPeers

_log = structlog.get_logger("tierlog")


class NodeFailed(Exception):
    """Something that the node cannot do without has failed; only a restart helps."""


class Broker:
    """One node. `failed` becomes done when it cannot go on. `has_logs`: they are open; it may serve later."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        files: Files | None = None,
        objects: ObjectStore | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        network: Network | None = None,
    ) -> None:
        self.settings = settings
        self.network: Network = network or TcpNetwork()
        self.files: Files = files or OsFiles(OpenFiles(_open_log_files(settings)))
        self.objects = objects
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or random.Random()
        self.stats = RequestStats()
        self.loop_lag = LoopLag()
        self.bootstrap = self.admin_url = ""
        self._parts = contextlib.AsyncExitStack()
        self._stops_clean = True
        self.has_logs = self._serves = False

    async def start(self) -> None:
        """Returns when it serves. Raises OSError (address, directory), DamagedLog, NodeFailed; then, and if
        it is cancelled, nothing of it is left.
        """
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            if not await done_before(self.failed, self._start_parts()) or self.failed.done():
                raise NodeFailed(self.failed.result())
        except BaseException as why:
            await self.stop(clean=self.has_logs and isinstance(why, asyncio.CancelledError))
            raise
        self._serves = True
        _log.info("serving", bootstrap=self.bootstrap, admin=self.admin_url, node=self.settings.node_id)

    async def _start_parts(self) -> None:
        try:
            await self._start_metadata()
            await self._start_log()
            await self._join()
            await self._start_replicas()
            self.has_logs = True
            await self._start_serving()
        except MetadataUnavailable as unavailable:
            raise NodeFailed(f"the metadata quorum did not let it in: {unavailable}") from unavailable

    async def stop(self, *, clean: bool = True) -> None:
        """Takes everything apart in the reverse order. `clean`: the next start needs no recovery."""
        self._stops_clean = clean and not self.failed.done()
        if self._stops_clean and self._serves:
            await self.lifecycle.leave(self.settings.controlled_shutdown_timeout_ms / 1000)
        await self._parts.aclose()

    async def _start_metadata(self) -> None:
        settings = self.settings
        self.loop_lag.start()
        self._parts.callback(self.loop_lag.stop)
        self.directories = DataDirectories([Path(path) for path in settings.log_dirs], self.files, self.rng)
        self.identity = self.directories.claim(
            settings.node_id, settings.cluster_id, metadata=settings.metadata_directory
        )
        self._parts.callback(self.directories.release)

        metadata_tasks = TaskGroup(self._fatal)
        self._parts.push_async_callback(metadata_tasks.close)
        self.metadata_node, raft = self._build_metadata(metadata_tasks)
        self.metadata = MetadataClient(self.metadata_node)
        self.admin_node = Node(settings, self.metadata, self.stats, self.loop_lag)
        routes = [*admin_routes(self.admin_node), *quorum_routes(self.metadata_node), *raft]
        self.admin = AdminServer(routes, _tls(settings))
        self._parts.push_async_callback(self.admin.close)
        self.admin_url = await self.admin.start(*settings.admin)
        if isinstance(self.metadata_node, MetadataNode):
            self.metadata_node.url = settings.voters.get(settings.node_id, self.admin_url)

        self._parts.push_async_callback(self._stop_metadata)
        await self.metadata_node.start()

    def _build_metadata(self, tasks: TaskGroup) -> tuple[MetadataNode | MetadataObserver, list[web.RouteDef]]:
        """A voter and its routes, or for a broker that is no controller one that follows the voters."""
        settings, cluster_id = self.settings, self.identity.cluster_id
        secret = settings.controller_quorum_secret.encode()
        peers = _peers(settings, cluster_id, secret, tasks)
        if CONTROLLER not in settings.process_roles and peers is not None:
            voters = settings.voters
            return MetadataObserver(settings.node_id, voters, tasks, cluster_id, peers=peers), []
        node = MetadataNode(
            settings.node_id,
            settings.voters,
            settings.metadata_directory,
            self.files,
            self.clock,
            self.rng,
            tasks,
            cluster_id,
            reserve_bytes=settings.metadata_reserve_bytes,
            short_of_room=lambda: self.directories.fill_beside(settings.metadata_directory),
            sessions=BrokerSessions(settings.broker_session_timeout_ms) if secret else None,
            balance=_balance(settings),
            peers=peers,
            settings=RaftSettings.of_times(
                tick_ms=TICK_MS,
                election_ms=settings.controller_quorum_election_timeout_ms,
                quorum_ms=settings.controller_quorum_fetch_timeout_ms,
            ),
        )
        return node, raft_routes(node, secret) if secret else []

    async def _start_log(self) -> None:
        settings = self.settings
        self.tasks = TaskGroup(self._report)
        vital = TaskGroup(self._fatal)  # without them the broker would live on and serve nothing
        self._parts.push_async_callback(vital.close)
        self.lifecycle = BrokerLifecycle(
            self.metadata,
            self.clock,
            vital,
            interval_ms=settings.broker_heartbeat_interval_ms,
            alone=self._is_alone,
            replaced=lambda why: self._fatal("registration", NodeFailed(why)),
        )
        self.purgatory = Purgatory(settings.purgatory_max_operations)
        self.sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, self.rng)
        self.commits = GroupCommit()
        self.throttles = ReplicationThrottles(settings)
        self.examiner = Examiner()
        self._parts.callback(self.examiner.close)
        self._build_replicas(vital)
        self._parts.push_async_callback(self._close_replicas)
        self._parts.push_async_callback(self.tasks.close)
        self.groups = GroupService(
            settings,
            self.metadata,
            self.replicas,
            self.clock,
            self.rng,
            self.tasks,
            None if self._is_alone else self.lifecycle,
        )
        self.tiering = Tiering(
            settings,
            self.metadata,
            self.replicas,
            self.files,
            self.clock,
            self.rng,
            self._report,
            cluster_id=self.identity.cluster_id,
            data_directory=settings.data_directory,
            cache_directory=self.directories.online[0].path,
            objects=self.objects,
            network=None if self._is_alone else self.network,
        )
        self._parts.push_async_callback(self.tiering.close)
        self.tiering.driver.listeners.append(self.admin_node.tier_changed)
        self.quotas = ClientQuotas(*windows_of(settings))
        self.listener = self._build_listener()
        self.bootstrap = _address(*await self.listener.bind())
        self._parts.push_async_callback(self.listener.close)

    def _build_replicas(self, vital: TaskGroup) -> None:
        settings = self.settings
        fetchers = None if self._is_alone else self._build_fetchers()
        self.replicas = ReplicaManager(
            settings,
            self.directories,
            self.clock,
            self.tasks,
            self.rng,
            moved=self._moved,
            fatal=self._fatal,
            flusher=self.commits.request,
            roles=PartitionRoles(settings.node_id, self.clock, fetchers),
        )
        self.moves = DirectoryMoves(
            settings, self.replicas, lambda: self.metadata.image, self.clock, self.tasks
        )
        self.isr_updater = IsrUpdater(
            settings,
            self.metadata,
            self.replicas,
            self.clock,
            vital,
            broker_epoch=self._broker_epoch,
        )
        self.reports = ReplicaReports(
            settings.node_id, self.metadata, self.replicas, vital, broker_epoch=self._broker_epoch
        )

    async def _start_replicas(self) -> None:
        settings = self.settings
        opened = self.metadata.image
        await self.replicas.open_all(opened, None if self._is_alone else self.reports.tell_empty)
        if not (self._is_alone or self.directories.offline):
            note_boot(self.files, [one.path for one in self.directories.online], boot_id())
        self._parts.callback(self.metadata.subscribe(self._follow))
        self.replicas.follow(opened, self.metadata.image)  # what changed while logs were opened
        self._parts.callback(self.metadata.subscribe(self.throttling.follow))
        self.throttling.follow(ClusterImage(cluster_id=opened.cluster_id), self.metadata.image)
        self._parts.callback(self.metadata.subscribe(self.throttles.follow))
        self.throttles.follow(ClusterImage(cluster_id=opened.cluster_id), self.metadata.image)

        self._parts.push_async_callback(self.groups.close)
        self.groups.start()
        self.replicas.went_offline += [self.groups.replicas_changed, self.tiering.driver.wake_all]
        self.replicas.came += [self.groups.replicas_changed, self.tiering.driver.wake_all]
        self.upkeep = Upkeep(
            settings, self.replicas, self.files, self.clock, self.tasks, self.commits, self.metadata_node
        )
        self._parts.push_async_callback(self.upkeep.stop)
        self.upkeep.start()
        self.cleaner = LogCleaner(settings, self.replicas, self.clock, self.tasks, self.commits)
        self._parts.push_async_callback(self.cleaner.stop)
        self.cleaner.start()
        self._parts.push_async_callback(self.moves.stop)
        self.moves.resume()
        if not self._is_alone:
            self._parts.push_async_callback(self.isr_updater.stop)
            self.isr_updater.start()
            self._parts.push_async_callback(self.reports.stop)
            self.reports.start()
        await self.tiering.start()

    async def _start_serving(self) -> None:
        self._parts.push_async_callback(self._stop_serving)
        await self.listener.start()
        if not self._is_alone:
            await self.reports.tell_first()
        await self.lifecycle.enter()
        self.admin_node.serve(
            Serving(
                replicas=self.replicas,
                listener=self.listener,
                tiering=self.tiering.driver,
                moves=self.moves,
                cleaner=self.cleaner,
                purgatory=self.purgatory,
                sessions=self.sessions,
                commits=self.commits,
                examiner=self.examiner,
                quotas=self.quotas,
                throttles=self.throttles,
                clock=self.clock,
            )
        )

    def _build_listener(self) -> Listener:
        dependencies = Dependencies(
            settings=self.settings,
            metadata=self.metadata,
            replicas=self.replicas,
            moves=self.moves,
            purgatory=self.purgatory,
            sessions=self.sessions,
            producer_ids=ProducerIds(self._allocate_producer_ids),
            clock=self.clock,
            tasks=self.tasks,
            remote=self.tiering.remote,
            quotas=self.quotas,
            stats=self.stats,
            lease=None if self._is_alone else self.lifecycle,
            throttles=self.throttles,
            isr_due=self.isr_updater.due,
            examiner=self.examiner,
        )
        groups = group_handlers(self.groups)
        handlers = measured(build_handlers(dependencies, groups), self.stats)
        host, port = self.settings.listener
        listener = Listener(
            handlers,
            self.tasks,
            error_reply,
            self._report,
            host=host,
            port=port,
            bounds=bounds_of(self.settings),
            note=note_end,
            note_refusal=RefusalNotes(),
        )
        self.throttling = Throttling(listener, handlers, self.quotas, self.clock)
        return listener

    async def _stop_serving(self) -> None:
        self.admin_node.stop_serving()
        self.listener.stop_accepting()
        # who waits for an fsync is acknowledged, unless its disk hangs
        await self.commits.drain(self.settings.log_dirs_stop_timeout_ms / 1000)
        self.purgatory.close()
        await asyncio.sleep(0)  # what waited is answered before its connection closes
        await self.listener.close()

    async def _stop_metadata(self) -> None:
        node = self.metadata_node
        if self._stops_clean and isinstance(node, MetadataNode) and node.is_leader and len(node.voters) > 1:
            timeout_s = self.settings.controller_quorum_election_timeout_ms / 1000  # it spares others that
            handed_over = await node.hand_over(timeout_s)
            _log.info("handed the metadata over" if handed_over else "no other node took the metadata over")
        await node.stop()

    async def _close_replicas(self) -> None:
        await self.replicas.close(clean=self._stops_clean)

    @property
    def _is_alone(self) -> bool:
        """Without a secret nobody else can join the quorum or the brokers."""
        return not self.settings.controller_quorum_secret

    def _broker_epoch(self) -> int:
        return self.lifecycle.broker_epoch

    def _build_fetchers(self) -> ReplicaFetchers:
        dependencies = FollowerDependencies(
            settings=self.settings,
            network=self.network,
            clock=self.clock,
            tasks=self.tasks,
            rng=self.rng,
            broker_epoch=self._broker_epoch,
            image=lambda: self.metadata.image,
            lower_checkpoint=self._lower_checkpoint,
            throttle=self.throttles.follower,
            from_tier=self._start_from_tier,
        )
        fetchers = ReplicaFetchers(dependencies)
        self._parts.callback(fetchers.close)
        return fetchers

    def _lower_checkpoint(self, replica: Replica) -> None:
        """The replicas are put together after those who fetch."""
        self.replicas.checkpoints.lower(replica)

    async def _start_from_tier(self, replica: Replica, step: StartFromTier) -> bool:
        """The remote tier is put together after those who fetch."""
        return await self.tiering.follower_start.begin(replica, step)

    async def _join(self) -> None:
        """Registers with the controller; it is let in once it serves."""
        host, port = self.settings.advertised or _split(self.bootstrap)
        directories = [directory.path for directory in self.directories.online]
        self.directories.may_have_lost = not self._is_alone and may_have_lost(
            self.files, directories, boot_id()
        )
        self.lifecycle.present(
            Registration(
                broker_id=self.settings.node_id,
                incarnation=random_uuid(self.rng),
                host=host,
                port=port,
                admin_url=url_for_others(self.admin_url, self.settings),
                rack=self.settings.broker_rack or None,
                may_have_lost=self.directories.may_have_lost,
                directories=self.identity.directory_ids,
                min_in_sync=self.settings.min_insync_replicas,
                unclean_election=self.settings.unclean_leader_election_enable,
            )
        )
        self._parts.push_async_callback(self.lifecycle.stop)
        try:
            await self.lifecycle.register()
        except RegistrationRefused as refused:
            raise NodeFailed(str(refused)) from refused
        if not self._is_alone:
            self.replicas.went_offline.append(partial(forget_boot, self.files, directories))
        self.lifecycle.start()

    async def _allocate_producer_ids(self) -> tuple[ErrorCode, int, int]:
        command = AllocateProducerIds(broker_id=self.settings.node_id, broker_epoch=self._broker_epoch())
        try:
            reply = await self.metadata.submit(command)
        except MetadataUnavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, 0
        return reply.error, reply.first_id, reply.count

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        """Roles that were not taken never would be: a broker that followed half an image must not go on."""
        try:
            self.replicas.follow(old, new)
        except Exception as failure:
            self._fatal("following the metadata", failure)

    def _moved(self, partition: TopicPartition) -> None:
        self.purgatory.touch(partition)

    def _report(self, name: str, failure: BaseException) -> None:
        _log.error("failed", what=name, exc_info=failure)

    def _fatal(self, name: str, failure: BaseException) -> None:
        _log.critical("the node cannot go on", what=name, exc_info=failure)
        if not self.failed.done():
            self.failed.set_result(f"{name}: {failure}")


def _open_log_files(settings: NodeSettings) -> int:
    limit = descriptors.limit()
    wanted = settings.log_max_open_files
    connections = settings.max_connections + TURNED_AWAY_MAX
    share = descriptors.share_of_logs(wanted, connections, limit)
    if share < wanted:
        needed = wanted + connections + descriptors.OTHERS
        _log.warning(
            "fewer files of logs stay open than log.max.open.files says: RLIMIT_NOFILE is low",
            stay_open=share,
            limit=limit,
            needed=needed,
        )
    return share


def _peers(settings: NodeSettings, cluster_id: str, secret: bytes, tasks: TaskGroup) -> "HttpPeers | None":
    if not secret:
        return None
    from tierlog.metadata.transport import HttpPeers  # a quorum that stays alone needs no HTTP client

    return HttpPeers(settings.node_id, cluster_id, secret, tasks, _tls(settings))


def _tls(settings: NodeSettings) -> TlsFiles | None:
    if not settings.quorum_files:
        return None
    certificate, key, ca = settings.quorum_files
    return TlsFiles(certificate=certificate, key=key, ca=ca)


def _balance(settings: NodeSettings) -> BalanceSettings | None:
    if not settings.auto_leader_rebalance_enable:
        return None
    return BalanceSettings(
        interval_ms=settings.leader_imbalance_check_interval_seconds * 1000,
        percent=settings.leader_imbalance_per_broker_percentage,
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
