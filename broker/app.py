"""Composition root: builds, starts and stops the parts of a node in visible order.

`Broker` is a complete node in this process; a `ControllerNode` has fewer parts. `run` is the process around
them: signals, logging, garbage collector. Called by the command line.
"""

import asyncio
import gc
import signal
from collections.abc import Callable

import structlog

from tierlog.base.addresses import host_port
from tierlog.base.network import Network
from tierlog.base.process_limits import (
    LEAST_DESCRIPTORS,
    keep_malloc_small,
    raise_descriptor_limit,
    tune_interpreter,
)
from tierlog.base.tasks import TaskGroup, done_before
from tierlog.base.types import random_uuid
from tierlog.broker.coordinators.shards import Host, Lease
from tierlog.broker.gateway.admin import url_for_others
from tierlog.broker.gateway.node import Serving
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.audit_topic import start_audit_topic
from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.coordinators import coordinator_handlers
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.logins import Logins
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.handlers.table import build_handlers
from tierlog.broker.handlers.txn_markers import MarkerWriter
from tierlog.broker.lifecycle import BrokerLifecycle, RegistrationRefused
from tierlog.broker.log_output import configure_logging
from tierlog.broker.maintenance.directory_moves import DirectoryMoves
from tierlog.broker.maintenance.disk_pressure import DiskPressure
from tierlog.broker.maintenance.log_cleaner import LogCleaner
from tierlog.broker.maintenance.log_maintenance import LogMaintenance
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.maintenance.rebalancer import start_rebalancer
from tierlog.broker.maintenance.scrubber import Scrubber
from tierlog.broker.net.core.bounds import bounds_of
from tierlog.broker.net.listener import addresses_of
from tierlog.broker.net.throttling import Throttling
from tierlog.broker.node_base import NodeBase, NodeFailed
from tierlog.broker.platform import ProcessSentinel
from tierlog.broker.quotas.quotas import ClientQuotas, windows_of
from tierlog.broker.quotas.replication import ReplicationThrottles
from tierlog.broker.remote.tiering import RemoteTier, Tiering
from tierlog.broker.replication.alter_partition_manager import AlterPartitionManager
from tierlog.broker.replication.dynamic_settings import DynamicSettings
from tierlog.broker.replication.fetcher_partitions import FetcherDependencies
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.partition_roles import PartitionRoles
from tierlog.broker.replication.replica_events import DirectoryFailed, ReplicaEvent
from tierlog.broker.replication.replica_fetcher import ReplicaFetchers
from tierlog.broker.replication.replica_manager import ReplicaManager, ReportEmpty
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.security.authorizer import authorizer_of
from tierlog.broker.security.delegation_tokens import delegation_tokens_of
from tierlog.broker.security.first_users import forget_first_users, read_first_users
from tierlog.broker.storage.unclean_restart import data_loss_reason, record_boot_id
from tierlog.broker.transactions.marker_sender import LocalResponse
from tierlog.broker.transactions.producer_ids import ProducerIds
from tierlog.broker.transactions.transaction_service import TransactionService
from tierlog.config.node import BROKER, NodeSettings
from tierlog.metadata.controller.commands import AllocateProducerIds, RegisterBroker
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.records import Endpoint
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

OnReady = Callable[[str, str], None]
"""Called when the node serves, with "host:port" of the Kafka listener (empty if there is none) and the URL of
the admin server."""

RESERVE_CHECK_S = 1.0
QUORUM_RETRY_S = 1.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = structlog.get_logger("tierlog")


class Broker(NodeBase):
    """A node that serves Kafka clients, whether it votes in the metadata quorum or not."""

    async def _start_parts(self) -> None:
        try:
            await self._start_metadata()
            await self._build_parts()
            await self._join()
            await self._start_replicas()
            self.logs_are_open = True
            await self._start_serving()
        except MetadataUnavailable as unavailable:
            raise NodeFailed(f"the metadata quorum cannot be reached: {unavailable}") from unavailable

    async def _leave(self) -> None:
        await self.lifecycle.controlled_shutdown(self.settings.controlled_shutdown_timeout_ms / 1000)

    # --- build: each part is built after those that it uses. The listener binds its address here; only the
    # lifecycle and the sentinel run before `_start_replicas`.

    async def _build_parts(self) -> None:
        settings, self.tls = self.settings, self.platform.tls
        self.tasks = TaskGroup(self._report)
        vital = TaskGroup(self._fatal)  # the broker cannot serve without them
        self._parts.push_async_callback(vital.close)
        self.sentinel: ProcessSentinel | None = None
        if self.peers is not None:
            self.sentinel = self.platform.sentinel(settings, self.peers, self.tasks)
            self._parts.callback(self.sentinel.close)  # after the lease has ended: it fences the broker
        self.lifecycle = BrokerLifecycle(
            self.metadata,
            self.clock,
            vital,
            interval_ms=settings.broker_heartbeat_interval_ms,
            session_ms=settings.broker_session_timeout_ms,
            standalone=self._is_standalone,
            on_replaced=lambda why: self._fatal("registration", NodeFailed(why)),
            on_registered=self._registered,
        )
        self.running = DynamicSettings(settings)
        self.purgatory = Purgatory(settings.purgatory_max_operations)
        self.sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, self.rng)
        self.commits = GroupCommit()
        self.quotas = ClientQuotas(*windows_of(settings))
        self.throttles = ReplicationThrottles(settings)
        self.recently_fenced = RecentlyFencedBrokers(self.clock)
        self.validator = BatchValidator()
        self._parts.callback(self.validator.close)
        self._build_tier()
        self._build_replicas(vital)
        self._build_maintenance()
        self._parts.push_async_callback(self._close_replicas)
        self._parts.push_async_callback(self.tasks.close)
        self._parts.push_async_callback(self.repair.stop)  # after all parts that report damage
        self._parts.push_async_callback(self.tier.close)
        self._build_coordinators()
        self._build_listener()
        self.bound = await self.listener.bind()
        self.bootstrap = host_port(*self.bound[self.settings.client_listeners[0].name])
        self._parts.push_async_callback(self.listener.close)
        self._connect()

    def _build_coordinators(self) -> None:
        parts = self.metadata, self.replicas, self.clock, self.tasks, self._lease()
        must_verify = lambda: self.running.now.transaction_partition_verification_enable  # noqa: E731
        settings, others = self.settings, self._others
        host = Host(settings.node_id, *parts, must_verify)
        self.groups = GroupService(settings, host, self.rng, others)
        ids = ProducerIds(self._allocate_producer_ids)
        self.transactions = TransactionService(settings, host, ids, others, self._write_markers)

    def _build_tier(self) -> None:
        self.tier = RemoteTier(
            self.settings,
            self.metadata,
            self.files,
            self.clock,
            self._report,
            cluster_id=self.identity.cluster_id,
            data_directory=self.settings.data_directory,
            cache_directory=self.directories.online[0].path,
            objects=self.platform.objects,
            network=self._others,
        )

    def _build_replicas(self, vital: TaskGroup) -> None:
        settings, node_id = self.settings, self.settings.node_id
        self.fetchers = ReplicaFetchers(
            FetcherDependencies(
                settings=settings,
                network=self.platform.network,
                clock=self.clock,
                tasks=self.tasks,
                rng=self.rng,
                broker_epoch=self._broker_epoch,
                image=self._image,
                throttle=self.throttles.follower,
                start_from_tier=self.tier.state_machine.start,
            )
        )
        self._parts.callback(self.fetchers.close)
        self.replicas = ReplicaManager(
            settings,
            self.directories,
            self.clock,
            self.tasks,
            self.rng,
            on_change=self.purgatory.check_and_complete,
            fatal=self._fatal,
            flusher=self.commits.request,
            roles=PartitionRoles(node_id, self.clock, None if self._is_standalone else self.fetchers),
        )
        self.alter_partition_manager = AlterPartitionManager(
            settings, self.metadata, self.replicas, self.clock, vital, broker_epoch=self._broker_epoch
        )
        self.reporter = ReplicaReporter(
            node_id, self.metadata, self.replicas, vital, broker_epoch=self._broker_epoch
        )

    def _build_maintenance(self) -> None:
        settings, replicas, clock, tasks = self.settings, self.replicas, self.clock, self.tasks
        self.moves = DirectoryMoves(settings, replicas, self._image, clock, tasks)
        self.repair = LogRepair(
            settings.node_id, self._image, replicas, clock, tasks, self._report_empty, self._others
        )
        self.log_maintenance = LogMaintenance(
            settings,
            replicas,
            self.files,
            clock,
            tasks,
            self.commits,
            self.metadata,
            None if self._is_standalone else self.reporter.report_late,
        )
        self.cleaner = LogCleaner(settings, replicas, clock, tasks, self.commits)
        self.scrubber = Scrubber(settings, replicas, tasks, self.rng)
        self.tiering = Tiering(
            settings,
            self.metadata,
            self.tier,
            replicas,
            self.files,
            clock,
            self.rng,
            self.repair,
        )
        self.disk_pressure = DiskPressure(
            settings, replicas, self.files, clock, tasks, self.tiering.log_manager.droppable_end
        )

    def _build_listener(self) -> None:
        self.dependencies = dependencies = Dependencies(
            settings=self.settings,
            dynamic_settings=self.running,
            metadata=self.metadata,
            replicas=self.replicas,
            moves=self.moves,
            purgatory=self.purgatory,
            fetch_sessions=self.sessions,
            clock=self.clock,
            tasks=self.tasks,
            recently_fenced=self.recently_fenced,
            remote=self.tier.log,
            quotas=self.quotas,
            stats=self.stats,
            authorizer=authorizer_of(self.settings, self.metadata),
            delegation_tokens=delegation_tokens_of(self.settings, self.metadata, self.clock),
            audit=self.audit,
            lease=self._lease(),
            throttles=self.throttles,
            submit_isr_change=self.alter_partition_manager.submit,
            batch_validator=self.validator,
            verifier=self.transactions.verifier,
            tracer=self.traces,
        )
        self.markers = MarkerWriter(dependencies, self.groups)
        self.logins = Logins(dependencies, self.identity.cluster_id)
        self.listener = self.platform.listener(
            build_handlers(dependencies, coordinator_handlers(self.groups, self.transactions, self.markers)),
            self.tasks,
            self._report,
            addresses=addresses_of(self.settings),
            bounds=bounds_of(self.settings),
            stats=self.stats,
            tls={} if self.tls is None else self.tls.by_name,
            begin=self.logins.begin,
        )
        if self.tls is not None:
            self.tasks.repeat("certificates of listeners", self.tls.reload_replaced)
        if self.audit is not None:
            self.listener.tls_gate.on_refused = self.audit.deny_certificate
        self.throttling = Throttling(self.listener, self.quotas, self.clock)

    def _connect(self) -> None:
        """Connect the parts that react to events of replicas, to uploads, and to changed settings."""
        self.replicas.listeners = (
            self._on_replica_event,
            self.moves.on_replica_event,
            self.reporter.on_replica_event,
            self.scrubber.on_replica_event,
            self.repair.on_replica_event,
            self.groups.shards.on_replica_event,
            self.transactions.shards.on_replica_event,
            self.tiering.log_manager.on_replica_event,
            self.tiering.diverged_segments.on_replica_event,
            self.tiering.manifest_recovery.on_replica_event,
        )
        self.tiering.log_manager.listeners.append(self.admin_node.tier_changed)
        self.running.listeners += (
            self.fetchers.configure,
            self.log_maintenance.configure,
            self.disk_pressure.configure,
            self.cleaner.configure,
            self.scrubber.configure,
            self.tier.configure,
            self.tiering.scrubber.configure,
            self.tiering.merger.configure,
            lambda settings: self.listener.configure(bounds_of(settings)),
        )

    def _publishers(self, opened: ClusterImage) -> tuple[Publisher, ...]:
        """The parts that follow the image, in the order in which they see each one: settings before the parts
        that read them, replicas before the parts that use their roles. `opened`: the image by which the logs
        were opened."""
        report = self._report
        return (
            Publisher("settings", self.running.follow, report),
            Publisher("client quotas", self.throttling.follow, report),
            Publisher("replication throttles", self.throttles.follow, report),
            Publisher("replicas", self.replicas.follow, self._fatal, opened),
            Publisher("replica reports", self.reporter.follow, report),
            Publisher("groups", self.groups.follow, report),
            Publisher("transactions", self.transactions.follow, report),
            Publisher("remote log", self.tier.log.follow, report),
            Publisher("tiering", self.tiering.log_manager.follow, report),
            Publisher("bulk loads", self.tiering.loads.follow, report),
            Publisher("storage cleaner", self.tiering.storage_cleaner.follow, report),
            Publisher("recently fenced brokers", self.recently_fenced.follow, report),
            Publisher("event streams", self.admin_node.image_changed, report),
        )

    # --- start and stop

    async def _start_replicas(self) -> None:
        opened = self.metadata.image
        await self._open_logs(opened)
        self._parts.push_async_callback(self.groups.close)
        self._parts.push_async_callback(self.transactions.close)
        self._parts.callback(self.metadata.publish_to(self._publishers(opened)))
        self.groups.start()
        self.transactions.start()
        self._parts.push_async_callback(self.log_maintenance.stop)
        self.log_maintenance.start()
        self.disk_pressure.start()
        self._parts.push_async_callback(self.cleaner.stop)
        self.cleaner.start()
        self._parts.push_async_callback(self.scrubber.stop)
        self.scrubber.start()
        self._parts.push_async_callback(self.moves.stop)
        self.moves.resume()
        if not self._is_standalone:
            self._parts.push_async_callback(self.alter_partition_manager.stop)
            self.alter_partition_manager.start()
            self._parts.push_async_callback(self.reporter.stop)
            self.reporter.start()
        self.tiering.start()

    async def _open_logs(self, image: ClusterImage) -> None:
        await self.replicas.open_all(image, self._report_empty)
        if self.sentinel is not None:
            self.directories.record_broker_epoch(self.lifecycle.broker_epoch)
        if not (self.directories.offline or self.replicas.offline_count):
            record_boot_id(self.files, [one.path for one in self.directories.online], self.platform.boot_id)

    async def _start_serving(self) -> None:
        self._parts.push_async_callback(self._stop_serving)
        self.logins.start(self.tasks)
        start_audit_topic(self.dependencies, self._others, self._parts)
        parts = self.running, self.metadata, self.clock, self.tasks, self._others, self._parts
        await self.listener.start()
        if not self._is_standalone:
            await self.reporter.report_at_start()
        await self.lifecycle.unfence()
        self.admin_node.serve(
            Serving(
                replicas=self.replicas,
                listener=self.listener,
                logins=self.logins.counts,
                tiering=self.tiering.log_manager,
                storage_cleaner=self.tiering.storage_cleaner,
                bucket_scrubber=self.tiering.scrubber,
                manifest_check=self.tiering.manifest_check,
                merger=self.tiering.merger,
                replacements=self.tiering.replacements,
                loads=self.tiering.loads,
                rebalancer=start_rebalancer(*parts),
                manifest_recovery=self.tiering.manifest_recovery,
                remote_repair=self.tiering.remote_repair,
                snapshots=self.tiering.snapshots,
                remote=self.tier,
                disk_pressure=self.disk_pressure,
                moves=self.moves,
                alter_partition_manager=self.alter_partition_manager,
                cleaner=self.cleaner,
                scrubber=self.scrubber,
                repair=self.repair,
                groups=self.groups,
                purgatory=self.purgatory,
                sessions=self.sessions,
                commits=self.commits,
                validator=self.validator,
                quotas=self.quotas,
                throttles=self.throttles,
                clock=self.clock,
                tls=self.tls,
            )
        )

    async def _stop_serving(self) -> None:
        self.admin_node.stop_serving()
        self.listener.stop_accepting()
        # requests that wait for an fsync are acknowledged, unless the disk hangs
        await self.commits.drain(self.settings.log_dirs_stop_timeout_ms / 1000)
        self.purgatory.close()
        await asyncio.sleep(0)  # delayed requests are answered before their connections close
        await self.listener.close()

    async def _close_replicas(self) -> None:
        timeout_s = self.settings.log_dirs_stop_timeout_ms / 1000
        closing = self.replicas.close(clean=self._stops_clean)
        await asyncio.gather(closing, self.directories.boot_is_forgotten(timeout_s))
        await asyncio.sleep(0)  # a directory that failed now is handled
        await self.directories.boot_is_forgotten(timeout_s)

    @property
    def _is_standalone(self) -> bool:
        """Without a secret no other node can join the cluster."""
        return not self.settings.controller_quorum_secret

    def _registered(self, broker_epoch: int) -> None:
        if self.sentinel is not None:
            self.directories.record_broker_epoch(broker_epoch)
            self.sentinel.update(broker_epoch)

    def _write_markers(self, request: WriteTxnMarkersRequest) -> LocalResponse:
        return self.markers.write_locally(request)

    def _broker_epoch(self) -> int:
        return self.lifecycle.broker_epoch

    def _image(self) -> ClusterImage:
        return self.metadata.image

    def _lease(self) -> Lease | None:
        """None for a standalone broker: no other broker could take over its partitions."""
        return None if self._is_standalone else self.lifecycle

    @property
    def _others(self) -> Network | None:
        """The network to other brokers, if there can be any."""
        return None if self._is_standalone else self.platform.network

    @property
    def _report_empty(self) -> ReportEmpty | None:
        return None if self._is_standalone else self.reporter.report_empty

    def _on_replica_event(self, event: ReplicaEvent) -> None:
        if isinstance(event, DirectoryFailed):
            self.directories.forget_boot()

    async def _join(self) -> None:
        """Register with the controller. The broker stays fenced until it serves."""
        endpoints = {
            one.name: Endpoint(name=one.name, host=host, port=port, protocol=one.protocol)
            for one in self.settings.client_listeners
            for host, port in [one.advertised or self.bound[one.name]]
        }
        own = endpoints[self.settings.inter_broker_listener]
        directories = [directory.path for directory in self.directories.online]
        why = data_loss_reason(self.files, directories, self.platform.boot_id)
        self.directories.same_boot = why is None
        self.directories.may_have_lost = why is not None and not self._is_standalone
        if self.directories.may_have_lost:
            _log.warning("broker.unclean_start", why=why)
        registration = RegisterBroker(
            broker_id=self.settings.node_id,
            incarnation=random_uuid(self.rng),
            host=own.host,
            port=own.port,
            admin_url=url_for_others(self.admin_url, self.settings),
            rack=self.settings.broker_rack or None,
            may_have_lost=self.directories.may_have_lost,
            directories=self.identity.directory_ids,
            previous_epoch=None if self._is_standalone else self.directories.read_broker_epochs(),
            min_in_sync=self.settings.min_insync_replicas,
            unclean_election=self.settings.unclean_leader_election_enable,
            formats=SUPPORTED_FORMATS,
            endpoints=tuple(endpoints.values()),
            first_users=read_first_users(self.files, self.settings.data_directory),
        )
        self._parts.push_async_callback(self.lifecycle.stop)
        try:
            await self.lifecycle.register(registration)
        except RegistrationRefused as refused:
            raise NodeFailed(str(refused)) from refused
        known = self.metadata.image.scram_users
        forget_first_users(self.files, self.settings.data_directory, registration.first_users, known)
        self.lifecycle.start(registration)

    async def _allocate_producer_ids(self) -> tuple[ErrorCode, int, int]:
        command = AllocateProducerIds(broker_id=self.settings.node_id, broker_epoch=self._broker_epoch())
        try:
            reply = await self.metadata.submit(command)
        except MetadataUnavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, 0
        return reply.error, reply.first_id, reply.count


class ControllerNode(NodeBase):
    """Votes in the metadata quorum and is no broker (`process.roles=controller`).

    It holds no partitions and has no listener for Kafka clients.
    """

    async def _start_parts(self) -> None:
        await self._start_metadata()
        self.logs_are_open = True  # there are none besides the metadata log, which is open
        tasks = TaskGroup(self._report)
        self._parts.push_async_callback(tasks.close)
        tasks.repeat("metadata reserve", self._keep_reserve)
        await self._await_quorum()
        events = Publisher("event streams", self.admin_node.image_changed, self._report)
        self._parts.callback(self.metadata.publish_to([events]))
        self._parts.callback(self.admin_node.stop_serving)
        self.admin_node.serve()

    async def _leave(self) -> None:
        """Nothing to do: `_stop_metadata` hands over the quorum's leadership."""

    async def _await_quorum(self) -> None:
        """Wait without a limit, unlike a broker: the other nodes wait for this one."""
        while True:
            try:
                await self.metadata.current()
            except MetadataUnavailable as unavailable:
                _log.info("quorum.waiting", node=self.settings.node_id, why=str(unavailable))
                await asyncio.sleep(QUORUM_RETRY_S)  # `current` may fail at once
            else:
                return

    async def _keep_reserve(self) -> None:
        """Check the disk of the metadata log, and restore its reserve once a full disk has space again."""
        await asyncio.sleep(RESERVE_CHECK_S)
        try:
            await self.metadata.ensure_reserve()
        except OSError as failure:
            _log.error("metadata.reserve.failed", error=str(failure))


def run(settings: NodeSettings, on_ready: OnReady | None = None) -> None:
    """Run a node until SIGTERM or SIGINT, and stop it cleanly, even during its start. Raises what
    `Broker.start` raises.
    """
    configure_logging(settings.logger_format)
    keep_malloc_small()
    descriptor_limit = raise_descriptor_limit()
    if 0 <= descriptor_limit < LEAST_DESCRIPTORS:
        raise NodeFailed(
            f"RLIMIT_NOFILE is {descriptor_limit}: a node needs at least {LEAST_DESCRIPTORS} descriptors"
        )
    tune_interpreter()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: NodeSettings, on_ready: OnReady | None) -> None:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    node: NodeBase = Broker(settings) if BROKER in settings.process_roles else ControllerNode(settings)
    if not await done_before(stopped, node.start()):
        _log.info("node.start.stopped", node=settings.node_id)
        return
    gc.collect()
    gc.freeze()  # objects from startup are permanent: no collection visits them again
    if on_ready is not None:
        on_ready(node.bootstrap, node.admin_url)
    node.failed.add_done_callback(lambda _: stop())
    await stopped
    await node.stop()
    if node.failed.done():
        raise NodeFailed(node.failed.result())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
