"""Simulated broker: the parts of a node, composed as in app.py, without sockets and servers.

Its disk outlives its processes. A disk error ends the process, as in production.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from simulator.clock import SimClock
from simulator.dialler import SimDialler
from simulator.disk import Disk, DiskFiles
from simulator.loop import Process, SimLoop
from simulator.network import Broken, Network
from simulator.peers import SimPeers, address
from simulator.watched import ReportingLease, ReportingMetadata
from simulator.witness import QuorumWitness, Violation
from tierlog.base.files import FileSlice, Part
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import TopicPartition, random_uuid
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.context import Connection, Pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.errors import error_reply
from tierlog.broker.handlers.fetch_sessions import FetchSessions
from tierlog.broker.handlers.groups import group_handlers
from tierlog.broker.handlers.producer_ids import ProducerIds
from tierlog.broker.handlers.purgatory import Purgatory
from tierlog.broker.handlers.recently_fenced import RecentlyFencedBrokers
from tierlog.broker.handlers.table import build_handlers
from tierlog.broker.lifecycle import BrokerLifecycle
from tierlog.broker.maintenance.log_maintenance import LogMaintenance
from tierlog.broker.maintenance.log_repair import LogRepair
from tierlog.broker.maintenance.scrubber import FoundDamage, Scrubber
from tierlog.broker.net.core.protocol import read_request
from tierlog.broker.net.dispatch import Dispatcher
from tierlog.broker.remote.tiering import RemoteTier, Tiering
from tierlog.broker.replication.alter_partition_manager import AlterPartitionManager
from tierlog.broker.replication.group_commit import GroupCommit
from tierlog.broker.replication.partition_roles import PartitionRoles
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_fetcher import FetcherDependencies, ReplicaFetchers
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.replication.replica_reporter import ReplicaReporter
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.log_dirs import LogDirectories
from tierlog.broker.storage.segment import Damage, Segment
from tierlog.broker.storage.unclean_restart import may_have_lost, previous_broker_epoch, record_boot_id
from tierlog.config.node import NodeSettings
from tierlog.metadata.client import MetadataClient, Publisher
from tierlog.metadata.controller.commands import AllocateProducerIds, RegisterBroker
from tierlog.metadata.controller.sessions import BrokerSessions
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.node import MetadataNode, MetadataUnavailable
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.protocol.errors import ErrorCode
from tierlog.tiering.object_store import ObjectStore

DEATH_NOTICE_S = 0.002
"""Time until others notice a killed process: its host refuses connections, and its sentinel notifies
voters."""

DIRECTORIES = ("data", "more")


class Observer(Protocol):
    """The run: receives every event that it checks."""

    quorum: QuorumWitness

    def failed(self, broker: "SimBroker", failure: BaseException) -> None: ...
    def published(self, image: ClusterImage) -> None: ...
    def serves(self, broker: "SimBroker") -> None: ...
    def log_start_requested(self, broker: "SimBroker", replica: Replica, start: int) -> None: ...
    def found_damage(self, broker: "SimBroker", segment: Segment, cause: str) -> None: ...


class SimBroker:
    def __init__(
        self,
        node_id: int,
        settings: NodeSettings,
        disk: Disk,
        loop: SimLoop,
        network: Network,
        brokers: "dict[int, SimBroker]",
        rng: random.Random,
        observer: Observer,
        objects: ObjectStore | None = None,
    ) -> None:
        """`objects`: the object store of tiered topics, or None."""
        self.node_id, self.name = node_id, address(node_id)
        self.settings, self.disk, self.objects = settings, disk, objects
        self.clock = SimClock(loop)
        self.boot = 0  # boot id of the host: changes when it loses power
        self._loop, self._network, self._brokers, self._rng = loop, network, brokers, rng
        self._observer = observer
        self.process: Process | None = None
        self.dispatcher: Dispatcher | None = None
        self.metadata: MetadataNode | MetadataObserver | None = None
        self.replicas: ReplicaManager | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.tiering: Tiering | None = None
        self.scrubber: Scrubber | None = None
        self._known: dict[TopicPartition, Replica] = {}
        self._durable_ends: dict[TopicPartition, int] = {}
        self._checkpointed: dict[TopicPartition, tuple[Replica, int]] = {}
        """The replicas that still exist and the high watermarks of their last checkpoint."""

    # --- processes

    @property
    def url(self) -> str:
        return f"http://{self.name}:9644"

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.is_up:
            return
        self.process = Process(self._loop, self.name)
        self.files: DiskFiles = self.disk.attach()
        self._network.listen(self.name, self.process)
        self.process.spawn(self._run())

    def kill(self) -> None:
        broker_epoch = self.broker_epoch
        if self._end_process():
            self._network.listen(self.name, None)
            self._notify_others(lambda other: other.peers.report_death, self.node_id)
            self._notify_others(lambda other: other.on_process_end_notice, self.node_id, broker_epoch)

    def reset_connections(self) -> None:
        """A firewall resets connections to the broker for the rest of the run. The process keeps running.

        Its own requests pass. No node that watches it connects to it again.
        """
        self._notify_others(lambda other: other.peers.report_death, self.node_id)

    def on_process_end_notice(self, broker_id: int, broker_epoch: int) -> None:
        """Receive the notice of another process's sentinel, if the network connects."""
        if isinstance(self.metadata, MetadataNode) and self._network.connects(self.name, address(broker_id)):
            with suppress(MetadataUnavailable):  # the broker is not in this node's image yet
                self.metadata.process_ended(broker_id, broker_epoch)

    def _notify_others(self, callback: "Callable[[SimBroker], Callable[..., None]]", *what: int) -> None:
        for other in self._brokers.values():
            if other is not self and other.metadata is not None and other.process is not None:
                self._loop.call_later(DEATH_NOTICE_S, callback(other), *what, context=other.process.context)

    def lose_power(self) -> None:
        """The host is silent until it starts again."""
        self._end_process()
        self._network.lose_power_of(self.name)
        self.boot += 1
        self.disk.lose_power(self._rng)

    def _end_process(self) -> bool:
        """End the process. Returns False if none is running."""
        if self.process is None or not self.process.alive:
            return False
        self.process.kill()
        self._known.update({replica.name: replica for replica in self.replicas or ()})
        self._durable_ends.update({name: self.durable_end(*name) for name in self._known})
        self._known.clear()
        self._checkpointed = {
            name: kept
            for name, kept in self._checkpointed.items()
            if self.replicas is not None and self.replicas.get(*name) is kept[0]
        }
        self.files.die()
        self.directories.release()
        self.dispatcher = self.metadata = self.replicas = self.lifecycle = self.tiering = None
        self.scrubber = None
        return True

    @property
    def broker_epoch(self) -> int:
        """Broker epoch of the running process; -1 if it is not registered."""
        return -1 if self.lifecycle is None else self.lifecycle.broker_epoch

    def replica(self, topic: str, partition: int) -> Replica | None:
        """The running process's replica, also if the process has abandoned it after a disk failure."""
        name = TopicPartition(topic, partition)
        replica = None if self.replicas is None else self.replicas.get(topic, partition)
        if replica is not None:
            self._known[name] = replica
        return self._known.get(name)

    def durable_end(self, topic: str, partition: int) -> int:
        """The highest end offset that the replica ever had, as far as it is as durable as flush.messages
        asks.

        Earlier processes count: a response may still be under way when its broker dies.
        """
        replica = self.replica(topic, partition)
        before = self._durable_ends.get(TopicPartition(topic, partition), 0)
        return before if replica is None else max(before, replica.flushed_offset)

    @property
    def lacks_directories(self) -> bool:
        """A log directory is offline. It stays so until the next process."""
        return self.replicas is not None and bool(self.replicas.directories.offline)

    def lose_directory(self, rng: random.Random) -> None:
        """One log directory fails, and the process continues. The next process has the directory again."""
        chosen = rng.randrange(len(DIRECTORIES))
        if self.process is not None and self.replicas is not None:
            directory = self.replicas.directories.all[chosen]
            self._loop.call_soon(directory.fail, "simulated", context=self.process.context)

    def wipe_directory(self, rng: random.Random) -> None:
        """The process ends, and one directory is replaced by an empty disk."""
        self.kill()
        self.disk.wipe_directory(self.disk.root / rng.choice(DIRECTORIES))
        self._checkpointed.clear()

    def wipe_directories(self) -> None:
        """The process ends, and all directories are replaced by empty disks."""
        self.kill()
        for name in DIRECTORIES:
            self.disk.wipe_directory(self.disk.root / name)
        self._checkpointed.clear()

    def restore(self, copy: Path, *, keeps: str) -> None:
        """The process ends, and all directories are restored from a copy."""
        self.kill()
        for name in DIRECTORIES:
            self.disk.restore(copy, name, keeps)
        self._checkpointed.clear()

    def _report(self, name: str, failure: BaseException) -> None:
        if isinstance(failure, OSError):
            self.kill()
        else:
            self._observer.failed(self, failure)

    async def _run(self) -> None:
        try:
            await self._start()
        except (OSError, MetadataUnavailable):
            self.kill()  # a disk failed, or no quorum was reached: the run starts it again
        except Exception as failure:
            self._observer.failed(self, failure)

    async def _start(self) -> None:
        settings, rng = self.settings, random.Random(self._rng.getrandbits(64))
        self.directories = LogDirectories([self.disk.root / name for name in DIRECTORIES], self.files, rng)
        identity = self.directories.claim(self.node_id, settings.cluster_id, metadata=None)
        tasks = TaskGroup(self._report)
        self.peers = SimPeers(self._network, self.node_id, self._brokers, self._observer.quorum, self.name)
        node = self._metadata_node(tasks, rng, identity.cluster_id)
        node.subscribe(lambda _, image: self._observer.published(image))
        await node.start()
        if isinstance(node, MetadataNode):
            self._observer.quorum.on_start(node.core)
        self.metadata = node
        await self._start_broker(node, tasks, rng)

    def _metadata_node(
        self, tasks: TaskGroup, rng: random.Random, cluster_id: str
    ) -> MetadataNode | MetadataObserver:
        voters = self.settings.voters
        if self.node_id not in voters:
            session_ms = self.settings.broker_session_timeout_ms
            return MetadataObserver(
                self.node_id, voters, self.clock, tasks, cluster_id, peers=self.peers, session_ms=session_ms
            )
        return MetadataNode(
            self.node_id,
            voters,
            self.disk.root / "metadata",
            self.files,
            self.clock,
            rng,
            tasks,
            cluster_id,
            peers=self.peers,
            url=self.url,
            snapshot_entries=200,
            keep_entries=20,
            sessions=BrokerSessions(self.settings.broker_session_timeout_ms),
        )

    async def _start_broker(
        self, node: MetadataNode | MetadataObserver, tasks: TaskGroup, rng: random.Random
    ) -> None:
        settings, metadata = self.settings, MetadataClient(node)
        lifecycle = self._lifecycle(metadata, tasks)

        def broker_epoch() -> int:
            return lifecycle.broker_epoch

        commits, purgatory = GroupCommit(), Purgatory(10_000)
        network = SimDialler(self._network, self.name, self._brokers, rng)
        tier = self._build_tier(metadata, network)
        fetchers = ReplicaFetchers(
            FetcherDependencies(
                settings=settings,
                network=network,
                clock=self.clock,
                tasks=tasks,
                rng=rng,
                broker_epoch=broker_epoch,
                image=lambda: node.image,
                start_from_tier=None if tier is None else tier.state_machine.start,
            )
        )
        replicas = ReplicaManager(
            settings,
            self.directories,
            self.clock,
            tasks,
            rng,
            on_change=purgatory.check_and_complete,
            fatal=self._report,
            flusher=commits.request,
            roles=PartitionRoles(self.node_id, self.clock, fetchers),
        )
        reports = ReplicaReporter(self.node_id, metadata, replicas, tasks, broker_epoch=broker_epoch)
        scrubber, found_damage = self._build_scrubber(metadata, replicas, tasks, reports, network)
        tiering = self._build_tiering(node, tier, replicas, rng, found_damage)
        alter_partition_manager = AlterPartitionManager(
            settings, metadata, replicas, self.clock, tasks, broker_epoch=broker_epoch
        )
        dependencies = Dependencies(
            settings=settings,
            metadata=metadata,
            replicas=replicas,
            purgatory=purgatory,
            sessions=FetchSessions(1000, rng),
            producer_ids=ProducerIds(partial(self._allocate_producer_ids, metadata)),
            clock=self.clock,
            tasks=tasks,
            recently_fenced=RecentlyFencedBrokers(self.clock),
            remote=None if tier is None else tier.log,
            lease=ReportingLease(self, lifecycle, self._observer),
            isr_due=alter_partition_manager.submit,
        )
        maintenance = LogMaintenance(settings, replicas, self.files, self.clock, tasks, commits, node)
        await self._serve_with(
            dependencies, lifecycle, alter_partition_manager, maintenance, tier, tiering, reports, scrubber
        )

    async def _allocate_producer_ids(self, metadata: MetadataClient) -> tuple[ErrorCode, int, int]:
        command = AllocateProducerIds(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        try:
            reply = await metadata.submit(command)
        except MetadataUnavailable:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, 0
        return reply.error, reply.first_id, reply.count

    def _build_scrubber(
        self,
        metadata: MetadataClient,
        replicas: ReplicaManager,
        tasks: TaskGroup,
        reports: ReplicaReporter,
        network: SimDialler,
    ) -> tuple[Scrubber, FoundDamage]:
        lost = reports.report_empty
        repair = LogRepair(self.node_id, lambda: metadata.image, replicas, self.clock, tasks, lost, network)

        def found_damage(replica: Replica, segment: Segment, damage: Sequence[Damage], cause: str) -> None:
            self._observer.found_damage(self, segment, cause)
            repair.found(replica, segment, damage, cause)

        rng = random.Random(self.node_id)  # a generator of its own
        return Scrubber(self.settings, replicas, tasks, rng, found_damage), found_damage

    def _lifecycle(self, metadata: MetadataClient, tasks: TaskGroup) -> BrokerLifecycle:
        return BrokerLifecycle(
            metadata,
            self.clock,
            tasks,
            interval_ms=self.settings.broker_heartbeat_interval_ms,
            session_ms=self.settings.broker_session_timeout_ms,
            standalone=False,
            on_registered=self.directories.record_broker_epoch,
            on_replaced=lambda why: self.kill(),
        )

    def _build_tier(self, metadata: MetadataClient, network: SimDialler) -> RemoteTier | None:
        if self.objects is None:
            return None
        return RemoteTier(
            self.settings,
            metadata,
            self.files,
            self.clock,
            self._report,
            cluster_id=self.settings.cluster_id,
            data_directory=self.directories.online[0].path,
            objects=self.objects,
            network=network,
        )

    def _build_tiering(
        self,
        node: MetadataNode | MetadataObserver,
        tier: RemoteTier | None,
        replicas: ReplicaManager,
        rng: random.Random,
        found_damage: FoundDamage,
    ) -> Tiering | None:
        if tier is None:
            return None
        return Tiering(
            self.settings,
            ReportingMetadata(node, self, replicas, self._observer),
            tier,
            replicas,
            self.files,
            self.clock,
            rng,
            found_damage=found_damage,
        )

    async def _serve_with(
        self,
        deps: Dependencies,
        lifecycle: BrokerLifecycle,
        alter_partition_manager: AlterPartitionManager,
        maintenance: LogMaintenance,
        tier: RemoteTier | None,
        tiering: Tiering | None,
        reports: ReplicaReporter,
        scrubber: Scrubber,
    ) -> None:
        """Join the cluster, open the logs, and serve once the controller has unfenced the broker."""
        settings, metadata, replicas, tasks = deps.settings, deps.metadata, deps.replicas, deps.tasks
        rng = random.Random(self._rng.getrandbits(64))
        groups = GroupService(settings, metadata, replicas, self.clock, rng, tasks, lease=lifecycle)
        handlers = build_handlers(deps, group_handlers(groups))
        paths = [directory.path for directory in self.directories.online]
        self.directories.may_have_lost = may_have_lost(self.files, paths, str(self.boot))
        lifecycle.set_registration(
            RegisterBroker(
                broker_id=self.node_id,
                incarnation=random_uuid(rng),
                host=self.name,
                port=9092,
                admin_url=self.url,
                rack=None,
                may_have_lost=self.directories.may_have_lost,
                directories=tuple(one.directory_id for one in self.directories.online if one.directory_id),
                previous_epoch=previous_broker_epoch(self.files, paths),
                min_in_sync=settings.min_insync_replicas,
                unclean_election=settings.unclean_leader_election_enable,
            )
        )
        await lifecycle.register()
        lifecycle.start()
        image_at_open = metadata.image
        await self._open(replicas, image_at_open, reports)
        if not (self.directories.offline or replicas.offline_count):
            record_boot_id(self.files, paths, str(self.boot))
        publishers = [
            Publisher("replicas", replicas.follow, self._report, image_at_open),
            Publisher("replica reports", reports.follow, self._report),
            Publisher("groups", groups.follow, self._report),
        ]
        listeners = [reports.on_replica_event, scrubber.on_replica_event, groups.on_replica_event]
        if tier is not None and tiering is not None:
            listeners.append(tiering.log_manager.on_replica_event)
            parts = (tier.log, tiering.log_manager, tiering.storage_cleaner)
            publishers.extend(Publisher("tiering", part.follow, self._report) for part in parts)
        replicas.listeners = tuple(listeners)
        metadata.publish_to(publishers)
        groups.start()
        maintenance.start()
        scrubber.start()
        alter_partition_manager.start()
        reports.start()
        if tiering is not None:
            tiering.start()
        self.replicas, self.lifecycle, self.tiering = replicas, lifecycle, tiering
        self.scrubber = scrubber
        self.dispatcher = Dispatcher(handlers, tasks, error_reply, self._report)
        await reports.report_at_start()
        await lifecycle.unfence()

    async def _open(self, replicas: ReplicaManager, image: ClusterImage, reports: ReplicaReporter) -> None:
        """Open all logs. Checks that each replica knows its checkpointed high watermark, up to its log's
        end."""
        write, before = replicas.checkpoints.write, self._checkpointed
        self._checkpointed = {}

        async def written(directory: LogDirectory) -> bool:
            known = {
                replica.name: (replica, min(replica.high_watermark, replica.recovery_point))
                for replica in replicas.replicas_in(directory)
                if replica.followers or not replica.is_leader
            }
            done = await write(directory)
            if done:
                self._checkpointed.update(known)
            return done

        replicas.checkpoints.write = written  # type: ignore[method-assign]
        await replicas.open_all(image, reports.report_empty)
        for replica in replicas:
            kept = before.get(replica.name)
            if kept is None or kept[0].topic_id != replica.topic_id:
                continue
            least = min(kept[1], replica.log_end_offset)
            self._checkpointed[replica.name] = (replica, least)
            if replica.high_watermark < least:
                text = f"{self.name} has forgotten that {least} of {replica.name} was committed"
                self._observer.failed(self, Violation(f"{text}: {replica.high_watermark}"))

    # --- requests

    async def serve(self, frame: bytes) -> bytes:
        """The response to a request frame. Raises Broken where a broker would close the connection."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            raise Broken("it does not serve yet")
        connection = Connection(1, "client", 1, self.name, 9092)
        view = memoryview(bytearray(frame))
        request = read_request(connection, view, 4, len(view))
        reply = dispatcher.start(request)
        if isinstance(reply, Pending):
            await asyncio.wait([reply.work])
            reply = dispatcher.finish(request, reply)
        parts = dispatcher.parts(request, reply)
        if parts is None:
            raise Broken("closed without an answer")
        try:
            return b"".join(map(self._read, parts))
        except OSError:
            raise Broken("a file cannot be read while it is sent") from None

    def _read(self, part: Part) -> bytes:
        if not isinstance(part, FileSlice):
            return bytes(part)
        self.disk.check("read")
        return part.read()
