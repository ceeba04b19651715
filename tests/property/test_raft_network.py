"""Raft cores on a bad network, by seed: loss, duplicates, reordering, partitions, and crashes at any step.

Voters and learners are added and removed, and any node may read what another has applied. After every
event: one leader per term, logs match, a leader has every committed entry, applied entries are the same
everywhere, and a leader that answers a read has every entry that was committed when the read arrived. After
healing: progress. The test's name has the failing seed.
"""

import random
from collections import deque
from typing import NamedTuple

import msgspec
import pytest

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import NotLeader, RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, Member
from tierlog.metadata.raft.ready import Ready
from tierlog.metadata.raft.settings import RaftSettings

SPARE = 2  # nodes that are no voters at first
PAGES_MAX = 20  # maximum pages in flight
SETTINGS = RaftSettings(
    election_ticks=6, quorum_ticks=40, max_append_bytes=40, max_inflight_appends=3, snapshot_chunk_bytes=64
)


class Page(NamedTuple):
    """Entries that a node has applied after an index, as another node reads them."""

    reader: int
    after: int
    snapshot: m.Snapshot | None
    entries: tuple[m.Entry, ...]
    leader: int
    term: int
    after_term: int


class Disk:
    """State that survives a crash."""

    def __init__(self) -> None:
        self.hard_state = m.HardState()
        self.snapshot = m.Snapshot()
        self.entries: list[m.Entry] = []

    def save(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.entries:
            self.entries = [e for e in self.entries if e.index < ready.entries[0].index]
            self.entries += ready.entries
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state


class Node:
    def __init__(self, node_id: int, voters: range, seed: int, disk: Disk) -> None:
        self.disk = disk
        self.core = RaftCore(
            node_id,
            voters,
            RaftLog(
                disk.snapshot,
                [e for e in disk.entries if e.index > disk.snapshot.index],
                disk.hard_state.commit,
            ),
            disk.hard_state,
            random.Random(seed),
            first_payload=b"first",
            settings=SETTINGS,
        )
        self.state: list[str] = msgspec.json.decode(disk.snapshot.data) if disk.snapshot.index else []
        self.writing: Ready | None = None
        self.reads: list[tuple[int, int, int, int]] = []  # term, number, commit index, what was committed


class Cluster:
    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.voters = range(1, size + 1)
        self.nodes = range(1, size + SPARE + 1)
        self.disks = {n: Disk() for n in self.nodes}
        self.members: dict[int, Node] = {n: self._boot(n) for n in self.nodes}
        self.network: deque[m.AnyMessage] = deque()
        self.cut: set[tuple[int, int]] = set()
        self.loss = self.rng.choice([0.0, 0.05, 0.2])
        self.committed: dict[int, m.Entry] = {}
        self.leaders: dict[int, int] = {}
        self.proposed = 0
        self.snapshots_installed = 0
        self.reads_answered = 0
        self.observed = self.observed_late = 0
        self.pages: deque[Page] = deque(maxlen=PAGES_MAX)
        self.configurations: set[frozenset[int]] = set()

    def _boot(self, node: int) -> Node:
        return Node(node, self.voters, self.rng.getrandbits(32), self.disks[node])

    def send(self, messages: tuple[m.AnyMessage, ...]) -> None:
        for message in messages:
            if (message.sender, message.to) in self.cut or self.rng.random() < self.loss:
                continue
            self.network.append(message)
            if self.rng.random() < self.loss / 2:
                self.network.append(message)

    def start_write(self, member: Node) -> None:
        if member.writing is None and member.core.has_ready():
            ready = member.core.ready()
            self.send(ready.immediate_messages)
            member.writing = ready

    def end_write(self, member: Node) -> None:
        ready, member.writing = member.writing, None
        if ready is None:
            return
        member.disk.save(ready)
        member.core.persisted(ready)
        self.send(ready.messages)
        if ready.snapshot is not None:
            member.state = msgspec.json.decode(ready.snapshot.data)
            self.snapshots_installed += 1
        for entry in ready.committed:
            assert self.committed.setdefault(entry.index, entry) == entry, "state machine safety"
            member.state.append(f"{entry.index}:{entry.term}:{entry.payload!r}")
            assert len(member.state) == entry.index
        self.answer_reads(member, ready.reads)

    def answer_reads(self, member: Node, confirmed: int) -> None:
        core = member.core
        mine = [read for read in member.reads if read[0] == core.term and core.is_leader]
        for _, _, commit, known in [read for read in mine if read[1] <= confirmed]:
            assert commit >= known, "a read that misses what was committed before it"
            self.reads_answered += 1
        member.reads = [read for read in mine if read[1] > confirmed]

    def stabilize(self, member: Node) -> None:
        while member.writing is not None or member.core.has_ready():
            self.start_write(member)
            self.end_write(member)

    def deliver(self, reorder: bool = True) -> None:
        if self.network:
            if reorder:
                self.network.rotate(-self.rng.randrange(min(len(self.network), 8)))
            message = self.network.popleft()
            self.members[message.to].core.step(message)

    def observe(self, member: Node) -> None:
        """Read another node's log as an observer does. It must be safe even if a page arrives late or
        twice."""
        if self.rng.random() < 0.7:
            self.pages.append(self.page(member.core, self.members[self.rng.choice(self.nodes)]))
        for _ in range(self.rng.choice([0, 1, 3])):
            if self.pages:
                self.take(self.pages[self.rng.randrange(len(self.pages))])

    def page(self, core: RaftCore, other: Node) -> Page:
        log, after, applied = other.core.log, core.log.commit, len(other.state)
        snapshot, entries = None, ()
        if after + 1 < log.first_index:
            snapshot = log.snapshot
        elif after < applied:
            entries = log.between(after + 1, applied + 1, self.rng.choice([1, 1000]))
        before = log.term_at(after)
        leader = other.core.leader if other.core.knows_leader_first_hand else m.NO_NODE
        after_term = -1 if before is None else before
        return Page(core.node_id, after, snapshot, entries, leader, other.core.term, after_term)

    def take(self, page: Page) -> None:
        core = self.members[page.reader].core
        late = page.after < core.log.commit
        taken = core.accept_committed(page.snapshot, page.entries, page.leader, page.term, page.after_term)
        assert taken or page.after > core.log.commit, "it is one log"  # the reader has restarted
        if (page.snapshot or page.entries) and not core.is_leader:
            self.observed += 1
            self.observed_late += late

    def propose(self) -> None:
        for member in self.members.values():
            if member.core.is_leader:
                try:
                    member.core.propose(f"p{self.proposed}".encode())
                    self.proposed += 1
                except NotLeader:
                    pass

    def snapshot(self, member: Node) -> None:
        log = member.core.log
        if member.writing is None and len(member.state) > log.snapshot.index:
            index = len(member.state)
            term = log.term_at(index)
            assert term is not None
            made = m.Snapshot(
                index, term, msgspec.json.encode(member.state), member.core.log.configuration_at(index)
            )
            member.disk.snapshot = made
            member.core.compact(made, keep=self.rng.choice([0, 3]))
            member.disk.entries = [e for e in member.disk.entries if e.index > index]

    def crash(self, node: int) -> None:
        self.members[node] = self._boot(node)

    def die(self, node: int) -> None:
        """A crash that some nodes detect at once, or a false detection: both must be safe."""
        if self.rng.random() < 0.7:
            self.crash(node)
        for other in self.nodes:
            if other != node and self.rng.random() < 0.8:
                self.members[other].core.on_peer_death(node)

    def read(self) -> None:
        known = max(self.committed, default=0)
        for member in self.members.values():
            if member.core.has_committed_in_term:
                number = member.core.request_read()
                member.reads.append((member.core.term, number, member.core.log.commit, known))

    def change(self) -> None:
        """Propose a random change of the voters at a node that considers itself leader."""
        for member in self.members.values():
            core = member.core
            if not core.is_leader:
                continue
            old = core.configuration
            outside = [n for n in self.nodes if n not in old.voters]
            grow = outside and self.rng.random() < 0.7  # it takes two steps, and removal one
            new = self.changed(old, self.rng.choice(outside if grow else sorted(old.voters)))
            try:
                core.propose_configuration(new)
                self.configurations.add(frozenset(new.voters))
            except (NotLeader, ChangeRefused):
                pass

    def changed(self, old: Configuration, node: int) -> Configuration:
        if node in old.voters:
            return old.without(node)
        if node in old.learners and self.rng.random() < 0.8:
            return old.with_voter(node, Member())
        return old.without(node) if node in old.learners else old.with_learner(node, Member())

    def partition(self) -> None:
        side = {n for n in self.nodes if self.rng.random() < 0.5}
        self.cut = {(a, b) for a in self.nodes for b in self.nodes if (a in side) != (b in side)}
        if self.rng.random() < 0.3:  # one way only
            self.cut = {(a, b) for a, b in self.cut if a in side}

    def step(self) -> None:
        member = self.members[self.rng.choice(self.nodes)]
        action = self.rng.choices(
            [
                "deliver",
                "tick",
                "start",
                "end",
                "propose",
                "snapshot",
                "crash",
                "partition",
                "heal",
                "transfer",
                "change",
                "read",
                "die",
                "hurry",
                "observe",
            ],
            [60, 25, 30, 30, 6, 1, 0.3, 0.4, 0.2, 0.3, 1.5, 6, 0.2, 6, 3],
        )[0]
        match action:
            case "deliver":
                self.deliver()
            case "tick":
                member.core.tick()
            case "start":
                self.start_write(member)
            case "hurry":
                self.send(member.core.take_immediate_messages())
            case "end":
                self.end_write(member)
            case "observe":
                self.observe(member)
            case "propose":
                self.propose()
            case "snapshot":
                self.snapshot(member)
            case "crash":
                self.crash(member.core.node_id)
            case "partition":
                self.partition()
            case "heal":
                self.cut = set()
            case "transfer":
                member.core.transfer_leadership(self.rng.choice(self.nodes))
            case "change":
                self.change()
            case "read":
                self.read()
            case "die":
                self.die(member.core.node_id)

    def check(self) -> None:
        for member in self.members.values():
            core = member.core
            core.check()
            if core.is_leader:
                assert self.leaders.setdefault(core.term, core.node_id) == core.node_id, "election safety"
                first = core.log.first_index
                for index, entry in self.committed.items():
                    if core.term > entry.term and index >= first:
                        assert core.log.term_at(index) == entry.term, "leader completeness"

    def check_logs_match(self) -> None:
        logs = [member.core.log for member in self.members.values()]
        for one in logs:
            for other in logs:
                low = max(one.first_index, other.first_index)
                agreed = min(one.last_index, other.last_index)
                while agreed >= low and one.term_at(agreed) != other.term_at(agreed):
                    agreed -= 1
                if agreed >= low:
                    assert one.between(low, agreed + 1) == other.between(low, agreed + 1), "log matching"

    def heal_and_finish(self) -> None:
        self.cut, self.loss = set(), 0.0
        goal = None
        for _ in range(400):
            for member in self.members.values():
                member.core.tick()
                self.stabilize(member)
            while self.network:
                self.deliver(reorder=False)
                for member in self.members.values():
                    self.stabilize(member)
            self.check()
            leader = next((x for x in self.members.values() if x.core.is_leader), None)
            if leader is None:
                continue
            if goal is None and leader.core.transfer_target == m.NO_NODE:
                goal = leader.core.propose(b"goal")
            members = leader.core.configuration.members
            if goal is not None and all(len(self.members[n].state) >= goal for n in members):
                return
        raise AssertionError("no progress after healing")


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(25))
def test_safe_on_a_bad_network_and_live_after_it(seed: int, size: int) -> None:
    cluster = Cluster(seed * 10 + size, size)
    for turn in range(2500):
        cluster.step()
        cluster.check()
        if turn % 50 == 0:
            cluster.check_logs_match()
    cluster.heal_and_finish()
    cluster.check_logs_match()
    states = {tuple(member.state) for member in cluster.members.values()}
    longest = max(states, key=len)
    assert all(longest[: len(state)] == state for state in states)


def test_random_network_reaches_elections_snapshots_and_changes() -> None:
    """Elections, commits, snapshots from the leader, reads, changes of voters and observers do happen."""
    elections = commits = installs = reads = observed = late = 0
    sizes: set[int] = set()
    for seed in range(10):
        cluster = Cluster(seed, 3)
        for _ in range(2500):
            cluster.step()
            cluster.check()
        cluster.heal_and_finish()
        elections += len(cluster.leaders)
        commits += len(cluster.committed)
        installs += cluster.snapshots_installed
        reads += cluster.reads_answered
        observed += cluster.observed
        late += cluster.observed_late
        sizes |= {len(voters) for voters in cluster.configurations}
    assert elections > 16
    assert commits > 200
    assert installs > 0
    assert reads > 50
    assert observed > 20
    assert late > 20
    assert {2, 3, 4} <= sizes
