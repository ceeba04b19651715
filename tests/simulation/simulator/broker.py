"""Simulated broker: the lives of a node's processes, which run the product's Broker on simulated ports.

Its disk outlives its processes. A disk error ends the process, as in production.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from simulator.clock import SimClock
from simulator.dialler import GUEST, SimDialler
from simulator.disk import Disk, DiskFiles
from simulator.epoch_witness import EpochWitness
from simulator.loop import Process, SimLoop
from simulator.network import Broken, Network
from simulator.node import MemoryListener, NoAdminServer, SimNode, SimSentinel
from simulator.peers import SimPeers, address
from simulator.witness import QuorumWitness, Violation
from tierlog.base.files import FileSlice, Part
from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.context import Connection, Pending
from tierlog.broker.lifecycle import BrokerLifecycle, RegistrationRefused
from tierlog.broker.maintenance.scrubber import Scrubber
from tierlog.broker.net.core.protocol import read_request
from tierlog.broker.net.dispatch import Dispatcher
from tierlog.broker.node_base import NodeFailed
from tierlog.broker.platform import Platform
from tierlog.broker.remote.tiering import Tiering
from tierlog.broker.replication.replica import Replica
from tierlog.broker.replication.replica_manager import ReplicaManager
from tierlog.broker.storage.log_dir import LogDirectory
from tierlog.broker.storage.segment import Segment
from tierlog.config.node import NodeSettings
from tierlog.metadata.controller.commands import DropRemoteLog, MoveLogStart, StartCopy
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.observer import MetadataObserver
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.tiering.object_store import ObjectStore

DEATH_NOTICE_S = 0.002
"""Time until others notice a killed process: its host refuses connections, and its sentinel notifies
voters."""

DIRECTORIES = ("data", "more")


class Observer(Protocol):
    """The run: receives every event that it checks."""

    quorum: QuorumWitness

    def on_failure(self, broker: "SimBroker", failure: BaseException) -> None: ...
    def on_published(self, image: ClusterImage) -> None: ...
    def on_serving(self, broker: "SimBroker") -> None: ...
    def on_remote_request(
        self, broker: "SimBroker", replica: Replica, command: MoveLogStart | DropRemoteLog | StartCopy
    ) -> None: ...
    def on_damage_found(self, broker: "SimBroker", segment: Segment, cause: str) -> None: ...


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
        self.observer = observer
        self.process: Process | None = None
        self.node: SimNode | None = None
        """The node of the latest process."""
        self.dispatcher: Dispatcher | None = None
        self.metadata: MetadataNode | MetadataObserver | None = None
        self.replicas: ReplicaManager | None = None
        self.lifecycle: BrokerLifecycle | None = None
        self.tiering: Tiering | None = None
        self.scrubber: Scrubber | None = None
        self.epochs = EpochWitness(self.name)
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
            self._notify_of_end(broker_epoch)

    def _notify_of_end(self, broker_epoch: int) -> None:
        self._notify_others(lambda other: other.on_process_end_notice, self.node_id, broker_epoch)

    def stop(self) -> bool:
        """Stop the process as by SIGTERM. Returns False if none serves."""
        process = self.process
        if process is None or not process.runs or not self._serves:
            return False
        process.spawn(self._stop())
        return True

    @property
    def _serves(self) -> bool:
        return self.dispatcher is not None and self.node is not None and self.node.admin_node.serves

    async def _stop(self) -> None:
        self._known.update({replica.name: replica for replica in self.replicas or ()})
        try:
            await self.node.stop()
        except Exception as failure:
            self.on_fatal(failure)
        self.kill()

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
        self._end_process(loses_power=True)
        self._network.lose_power_of(self.name)
        self.boot += 1
        self.disk.lose_power(self._rng)

    def _end_process(self, *, loses_power: bool = False) -> bool:
        """End the process. Returns False if none is running."""
        if self.process is None or not self.process.alive:
            return False
        self.process.kill()
        self._known.update({replica.name: replica for replica in self.replicas or ()})
        self._durable_ends.update({name: self.durable_end(*name) for name in self._known})
        self._known.clear()
        self.epochs.on_end(self.replicas or (), loses_power=loses_power)
        self._checkpointed = {
            name: kept
            for name, kept in self._checkpointed.items()
            if self.replicas is not None and self.replicas.get(*name) is kept[0]
        }
        self.files.die()
        if (directories := getattr(self.node, "directories", None)) is not None:
            directories.release()
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
        self._forget_disk()

    def wipe_directories(self) -> None:
        """The process ends, and all directories are replaced by empty disks."""
        self.kill()
        for name in DIRECTORIES:
            self.disk.wipe_directory(self.disk.root / name)
        self._forget_disk()

    def restore(self, copy: Path, *, keeps: str) -> None:
        """The process ends, and all directories are restored from a copy."""
        self.kill()
        for name in DIRECTORIES:
            self.disk.restore(copy, name, keeps)
        self._forget_disk()

    def _forget_disk(self) -> None:
        self._checkpointed.clear()
        self.epochs.forget()

    def on_failure(self, failure: BaseException) -> None:
        """A background task failed. A failed disk ends the process: the run starts it again."""
        if isinstance(failure, OSError):
            self.kill()
        else:
            self.observer.on_failure(self, failure)

    def on_fatal(self, failure: BaseException) -> None:
        """A failed disk or quorum, or a successor, ends the process: the run starts it again."""
        if isinstance(failure, NodeFailed | MetadataUnavailable):
            self.kill()
        else:
            self.on_failure(failure)

    async def _run(self) -> None:
        rng = random.Random(self._rng.getrandbits(64))
        settings = replace(
            self.settings,
            log_dirs=tuple(str(self.disk.root / name) for name in DIRECTORIES),
            metadata_log_dir=str(self.disk.root / "metadata"),
        )
        self.node = SimNode(self, settings, self._platform(rng))
        try:
            await self.node.start()
        except Exception as failure:
            refused = isinstance(failure.__cause__, RegistrationRefused)
            self.on_fatal(failure.__cause__ if refused else failure)

    def _platform(self, rng: random.Random) -> Platform:
        self.peers = SimPeers(self._network, self.node_id, self._brokers, self.observer.quorum, self.name)
        return Platform(
            files=self.files,
            clock=self.clock,
            rng=rng,
            network=SimDialler(self._network, self.name, self._brokers, rng),
            peers=lambda *_: self.peers,
            sentinel=lambda *_: SimSentinel(self._notify_of_end),
            listener=partial(MemoryListener, self),
            admin_server=lambda *_: NoAdminServer(self.url),
            boot_id=str(self.boot),
            objects=self.objects,
            snapshot_entries=200,
            keep_entries=20,
        )

    def on_logs_open(self, node: SimNode) -> None:
        self.replicas, self.lifecycle, self.scrubber = node.replicas, node.lifecycle, node.scrubber
        self.tiering = None if self.objects is None else node.tiering

    async def open_logs(self, node: SimNode, open_all: Callable[[], Awaitable[None]]) -> None:
        """Open all logs. Checks that each replica knows its checkpointed high watermark, up to its log's
        end, and its leader epochs."""
        replicas = node.replicas
        write, before = replicas.checkpoints.write, self._checkpointed
        self._checkpointed = {}

        async def written(directory: LogDirectory) -> bool:
            known = {
                replica.name: (replica, min(replica.high_watermark, replica.log.recovery_point))
                for replica in replicas.replicas_in(directory)
                if replica.followers or not replica.is_leader
            }
            done = await write(directory)
            if done:
                self._checkpointed.update(known)
            return done

        replicas.checkpoints.write = written  # type: ignore[method-assign]
        await open_all()
        for violation in self.epochs.on_start(replicas):
            self.observer.on_failure(self, violation)
        for replica in replicas:
            kept = before.get(replica.name)
            if kept is None or kept[0].topic_id != replica.topic_id:
                continue
            least = min(kept[1], replica.log_end_offset)
            self._checkpointed[replica.name] = (replica, least)
            if replica.high_watermark < least:
                text = f"{self.name} has forgotten that {least} of {replica.name} was committed"
                self.observer.on_failure(self, Violation(f"{text}: {replica.high_watermark}"))

    # --- requests

    async def serve(self, frame: bytes, connection: Connection | None = None) -> bytes:
        """The response to a request frame. Raises Broken where a broker would close the connection. Without
        `connection` the request has one of its own."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            raise Broken("it does not serve yet")
        connection = connection or Connection(1, "client", 1)
        view = memoryview(bytearray(frame))
        request = read_request(connection, view, 4, len(view))
        if (request.context.client_id or "").startswith(GUEST):
            connection.principal = f"User:{request.context.client_id}"
        reply = dispatcher.start(request)
        if isinstance(reply, Pending):
            try:
                await asyncio.wait([reply.work])
            finally:
                if not reply.outlives_connection:  # as a connection that closes
                    reply.work.cancel()
            reply = dispatcher.chain.finish(request.context, request.message, reply)
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
        self.disk.fail_if_due("read")
        return part.read()
