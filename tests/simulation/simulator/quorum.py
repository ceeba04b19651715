"""Quorum run: a simulated metadata quorum under faults, and clients that create and delete topics.

Nodes, Raft cores and storage are the real ones. The witness checks every message: for example, a term has at
most one leader. After each change of a node's image, the run checks that the node's index has not decreased
and that no two nodes applied different entries at the same index. At the end, after recovery, all images are
equal and contain every acknowledged change.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec

from simulator.clock import SimClock
from simulator.disk import Disk, DiskFiles
from simulator.faults import Faults, Victim
from simulator.loop import Process, SimLoop
from simulator.membership import OPERATOR, change_voters, present_voters
from simulator.network import Broken, Network, Refused, Responses
from simulator.peers import SimPeers, address
from simulator.splits import split
from simulator.witness import QuorumWitness, Violation
from tierlog.base.tasks import TaskGroup
from tierlog.base.types import InvariantViolation, random_uuid
from tierlog.metadata.controller import commands as c
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.node import MetadataNode
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.metadata.quorum.publisher import Publisher
from tierlog.metadata.quorum.storage import MetadataStorage, StorageThread, ThreadedStorage
from tierlog.protocol.errors import ErrorCode

CLUSTER_ID = "simulated"
FAULTS_S = 20.0
"""Virtual seconds during which faults are injected."""

FAULTS_A_SECOND = 1.5
"""Mean rate of faults, per virtual second."""

POWER_LOSS_AFTER_VOTE = 0.1
"""Probability that a node loses power just after it has voted, for itself or for another node."""

HEAL_S = 30.0
"""Virtual seconds within which the quorum must recover after the last fault."""

CLIENTS = 3

VOTER_CHANGES = 0.4
"""Probability that an operator adds and removes voters during a run."""

HASTY = 0.5
"""Probability that this operator requests a change before it knows the outcome of the last one."""

SPLIT, SPLITS_A_SECOND = 0.5, 0.7
"""Probability that network splits happen in a run, and then their mean rate per virtual second."""

NODE_POOL = range(1, 6)
"""Ids of all nodes in a run in which voters change. Some of them are not voters at first."""

_BROKER = c.RegisterBroker(
    broker_id=1, incarnation=UUID(int=1), host="node-1", port=9092, admin_url="http://node-1"
)


@dataclass(slots=True)
class Outcome:
    """`acknowledged`: number of commands. `faults`: injected faults by kind. `done`: other counts, such as
    voter changes. `trace`: digest of all changes of images, equal in all runs of a seed.
    """

    seed: int
    acknowledged: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    trace: str = ""


class Node:
    """A node of the quorum. It continues to exist while its process is down."""

    def __init__(self, run: "QuorumRun", node_id: int, directory: Path) -> None:
        self.run, self.node_id, self.name = run, node_id, address(node_id)
        self.disk = Disk(directory)
        self.clock = SimClock(run.loop)
        self.process: Process | None = None
        self.metadata: MetadataNode | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if self.is_up:
            return
        self.process = Process(self.run.loop, self.name)
        self.files: DiskFiles = self.disk.attach()
        self.run.network.listen(self.name, self.process)
        self.process.spawn(self._serve())

    async def _serve(self) -> None:
        try:
            await self._start_node(random.Random(self.run.rng.getrandbits(64)))
        except OSError as failure:
            self._failed(failure)

    async def _start_node(self, rng: random.Random) -> None:
        run, directory = self.run, self.disk.root / "metadata"
        tasks = TaskGroup(lambda name, failure: self._failed(failure))
        files = MetadataStorage(
            self.files,
            directory,
            cluster_id=CLUSTER_ID,
            node_id=self.node_id,
            new_directory_id=random_uuid(rng),
        )
        storage = ThreadedStorage(files, StorageThread(self.clock, None, self.name))
        node = MetadataNode(
            self.node_id,
            {number: address(number) for number in run.voters},
            storage,
            await storage.open(),
            self.clock,
            rng,
            tasks,
            CLUSTER_ID,
            peers=SimPeers(run.network, self.node_id, run.members, run.witness),
            snapshot_entries=run.snapshot_entries,
            keep_entries=run.keep_entries,
        )
        applied = lambda old, new: run.applied(self, node, old, new)  # noqa: E731
        node.publish_to([Publisher("run", applied, since=node.image)])
        await node.start()
        run.witness.on_start(node.core)
        self.metadata = node

    def _failed(self, failure: BaseException) -> None:
        """End the process after a disk error. Any other failure is a bug, and fails the run."""
        if isinstance(failure, OSError):
            self.kill()
        else:
            self.run.violations.append(failure)

    def kill(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.kill()
            self.files.die()
            self.metadata = None
            self.run.network.listen(self.name, None)

    def lose_power(self) -> None:
        """Kill the process and lose unsynced writes. The host does not respond until it starts again."""
        self.kill()
        self.run.network.lose_power_of(self.name)
        self.disk.lose_power(self.run.rng)


class QuorumRun:
    def __init__(self, seed: int, directory: Path, size: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(self.rng.getrandbits(64)))
        self.network = Network(self.loop, random.Random(self.rng.getrandbits(64)))
        self.voters = range(1, (size or self.rng.choice((3, 3, 5))) + 1)
        self.snapshot_entries = self.rng.choice((5, 50, 10_000))
        self.keep_entries = self.rng.choice((0, 2, 1000))
        self._operators = random.Random(f"operators {seed}")
        """Separate from `rng`, so that voter changes do not shift the other random choices of a seed."""
        self._splits = random.Random(f"splits {seed}")
        self._changes_voters = size is None and self._operators.random() < VOTER_CHANGES
        nodes = NODE_POOL if self._changes_voters else self.voters
        self.members = {number: Node(self, number, directory / str(number)) for number in nodes}
        self.outcome = Outcome(seed)
        self.network.responses = Responses(seed, self.outcome.done)
        self.faults = Faults(
            self.rng, self.loop, self.network, self.members, self._power_victims, self.outcome.faults
        )
        self.violations: list[BaseException] = []
        self.witness = QuorumWitness(self.loop.time, self._voters_of, self.violations, self._on_vote)
        self._entries: dict[int, tuple[int, bytes]] = {}
        self._known: dict[str, bool] = {}  # topic -> creation (True) or deletion acknowledged
        self._trace = hashlib.sha256()

    @property
    def nodes(self) -> dict[int, MetadataNode]:
        """The metadata nodes of running processes."""
        all_nodes = {number: member.metadata for number, member in self.members.items()}
        return {number: node for number, node in all_nodes.items() if node is not None}

    def play(self) -> Outcome:
        """Simulate the whole run. Raises the first violation."""
        try:
            self.loop.run_for(self._main())
        finally:
            for member in self.members.values():
                member.kill()
        self.outcome.trace = self._trace.hexdigest()
        return self.outcome

    async def _main(self) -> None:
        for member in self.members.values():
            member.start()
        self.faults.draw_message_faults()
        process = Process(self.loop, "clients")
        self.network.listen("clients", process)
        clients = [process.watch(self._client(number), self.violations) for number in range(CLIENTS)]
        if self._changes_voters:
            self.network.listen(OPERATOR, process)
            hasty = self._operators.random() < HASTY
            operator = change_voters(
                self.members, self.voters, self.network, self._operators, self.outcome.done, hasty=hasty
            )
            clients.append(process.watch(operator, self.violations))
        if self._splits.random() < SPLIT:
            names = [member.name for member in self.members.values()]
            splitting = split(names, self.network, self._splits, SPLITS_A_SECOND, self.outcome.faults)
            clients.append(process.watch(splitting, self.violations))
        await self._faults()
        self.faults.end()
        for client in clients:
            client.cancel()
        await self._await_agreement()

    async def _faults(self) -> None:
        while self.loop.time() < FAULTS_S:
            await asyncio.sleep(self.rng.expovariate(FAULTS_A_SECOND))
            self.faults.inject()
            for member in self.members.values():
                if member.metadata is not None and member.process is not None:
                    self.witness.check(member.metadata.core, paused=member.process.paused)
            self._raise_violation()

    def _raise_violation(self) -> None:
        for failure in self.violations:
            raise failure
        for context in self.loop.unhandled:
            raise InvariantViolation(str(context)) from context.get("exception")

    async def _client(self, number: int) -> None:
        """Create and delete topics, each through a random voter, until cancelled. Clients share no topic."""
        created = 0
        while not await self._is_acknowledged(_BROKER):
            continue
        while True:
            name = f"t-{number}-{created}"
            created += 1
            if await self._is_acknowledged(
                c.CreateTopics(topics=(c.NewTopic(name=name, assignments=((0, (1,)),)),))
            ):
                self._known[name] = True
                await self._check_known(name)
                if self.rng.random() < 0.5:
                    self._known.pop(name)
                    if await self._is_acknowledged(c.DeleteTopics(topics=(c.TopicRef(name=name),))):
                        self._known[name] = False
                        await self._check_known(name)
            await asyncio.sleep(self.rng.expovariate(10.0))

    async def _check_known(self, name: str) -> None:
        """Check that a validate-only request, which writes no log entry, is answered from the latest state:
        the response must reflect the acknowledged change of the topic."""
        exists = self._known[name]
        topic = c.NewTopic(name=name, assignments=((0, (1,)),))
        expected = ErrorCode.TOPIC_ALREADY_EXISTS if exists else ErrorCode.NONE
        reply = await self._submit(c.CreateTopics(topics=(topic,), validate_only=True))
        if isinstance(reply, c.TopicsChanged) and reply.topics[0].error is not expected:
            error = reply.topics[0].error.name
            self.violations.append(
                Violation(f"the response is {error}, but topic {name} was acknowledged as {_state(exists)}")
            )

    async def _is_acknowledged(self, command: c.AnyCommand) -> bool:
        """Submit the command. Returns whether it was acknowledged; if not, its outcome is unknown."""
        reply = await self._submit(command)
        if reply is None or (isinstance(reply, c.TopicsChanged) and reply.topics[0].error):
            return False
        self.outcome.acknowledged += 1
        return True

    async def _submit(self, command: c.AnyCommand) -> c.AnyReply | None:
        """Submit the command to a random voter. Returns None if it failed or timed out."""
        node_id = self.rng.choice(present_voters(self.members, self.voters))

        async def serve() -> c.AnyReply:
            return await self.nodes[node_id].submit(command, timeout_s=4.0)

        try:
            async with asyncio.timeout(6.0):
                return await self.network.call("clients", address(node_id), self.rng.getrandbits(32), serve)
        except (MetadataUnavailable, Broken, Refused, TimeoutError, KeyError):
            await asyncio.sleep(0.1)
            return None

    def _voters_of(self, node_id: int) -> int:
        """Number of voters in the node's configuration."""
        return len(self.nodes[node_id].core.voters) if node_id in self.nodes else len(self.voters)

    def _on_vote(self, node_id: int) -> None:
        """Sometimes cut the voter's power. The vote was sent, so it must be on disk already."""
        if self.loop.time() < FAULTS_S and self.rng.random() < POWER_LOSS_AFTER_VOTE:
            self.outcome.faults["power after a vote"] += 1
            self.faults.power(self.members[node_id])

    def _power_victims(self, victim: Victim) -> Sequence[Victim]:
        """Every acknowledged entry is synced to disk, so any number of nodes may lose power together."""
        return list(self.members.values()) if self.rng.random() < 0.2 else [victim]

    # --- invariants

    def applied(self, member: Node, node: MetadataNode, old: ClusterImage, new: ClusterImage) -> None:
        """Check the node after each change of its image."""
        if new is old:  # the first call, before the node has started
            return
        try:
            self._check_applied(member, node, old, new)
        except (Violation, InvariantViolation) as failure:
            self.violations.append(failure)

    def _check_applied(self, member: Node, node: MetadataNode, old: ClusterImage, new: ClusterImage) -> None:
        core = node.core
        if new.index < old.index:
            raise Violation(f"{member.name} went back from {old.index} to {new.index}")
        for index in range(max(old.index + 1, core.log.first_index), new.index + 1):
            entry = core.log.between(index, index + 1)[0]
            known = self._entries.setdefault(index, (entry.term, entry.payload))
            if known != (entry.term, entry.payload):
                raise Violation(f"{member.name} and another node applied different entries at index {index}")
        core.check()
        self._trace.update(f"{self.loop.time():.9f} {member.name} {new.index} {core.term}\n".encode())

    async def _await_agreement(self) -> None:
        """Wait until all nodes have the same image, then check that it has every acknowledged change."""
        deadline = self.loop.time() + HEAL_S
        while not self._agree():
            if self.loop.time() > deadline:
                statuses = [msgspec.to_builtins(node.status()) for node in self.nodes.values()]
                raise Violation(f"no agreement {HEAL_S} s after everything was healed: {statuses}")
            await asyncio.sleep(0.1)
        self._raise_violation()
        image = next(node.image for node in self.nodes.values() if node.is_leader)
        for name, exists in sorted(self._known.items()):
            if (image.topic(name) is not None) != exists:
                raise Violation(f"topic {name} was acknowledged as {_state(exists)}")

    def _agree(self) -> bool:
        """Whether all nodes run, have the same image, and agree on one leader and its voters. A node that is
        not a voter is an observer."""
        leaders = [node for node in self.nodes.values() if node.is_leader]
        voters = present_voters(self.members, self.voters)
        images = [node.image for node in self.nodes.values()]
        return (
            len(images) == len(self.members)
            and len(leaders) == 1
            and sorted(leaders[0].core.voters) == voters
            and leaders[0].node_id in voters
            and len({image.index for image in images}) == 1
            and leaders[0].image.index == leaders[0].core.log.last_index == images[0].index
            and all(image == images[0] for image in images)
        )


def _state(exists: bool) -> str:
    return "created" if exists else "deleted"
