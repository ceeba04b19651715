"""Readable transcripts of Raft cores that exchange messages, checked line by line.

Each block of a file has commands, `----`, and their outcome. Running this file as a program rewrites the
outcomes. Do that only for an intended change of behaviour, and read the difference.
"""

import random
from pathlib import Path

import pytest

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import ChangeRefused, Configuration, Member, decode_configuration
from tierlog.metadata.raft.ready import Ready
from tierlog.metadata.raft.settings import RaftSettings

TRANSCRIPTS = Path(__file__).parent / "raft"
SETTINGS = RaftSettings(
    election_ticks=10, max_append_bytes=20, max_inflight_appends=4, snapshot_chunk_bytes=8
)


class Scene:
    """Cores with perfect disks; messages wait until they are delivered."""

    def __init__(self) -> None:
        self.voters: tuple[int, ...] = ()
        self.cores: dict[int, RaftCore] = {}
        self.disks: dict[int, tuple[m.Snapshot, list[m.Entry], m.HardState]] = {}
        self.network: list[m.AnyMessage] = []
        self.away: set[int] = set()
        self.writing: dict[int, Ready] = {}
        self.answered: dict[int, int] = {}
        self.said: list[str] = []

    def run(self, line: str) -> str:
        command, *arguments = line.split()
        self.said = []
        getattr(self, f"do_{command}")(*arguments)
        return "\n".join(self.said)

    def do_cluster(self, size: str) -> None:
        self.voters = tuple(range(1, int(size) + 1))
        self.disks = {node: (m.Snapshot(), [], m.HardState()) for node in self.voters}
        for node in self.disks:
            self.do_boot(str(node))

    def do_join(self, *nodes: str) -> None:
        """Nodes that are not voters by their settings."""
        for node in nodes:
            self.disks[int(node)] = (m.Snapshot(), [], m.HardState())
            self.do_boot(node)

    def do_learner(self, leader: str, node: str) -> None:
        core = self.cores[int(leader)]
        self.change(core, core.configuration.with_learner(int(node), Member()))

    def do_voter(self, leader: str, node: str) -> None:
        core = self.cores[int(leader)]
        self.change(core, core.configuration.with_voter(int(node), Member()))

    def do_remove(self, leader: str, node: str) -> None:
        core = self.cores[int(leader)]
        self.change(core, core.configuration.without(int(node)))

    def change(self, core: RaftCore, configuration: Configuration) -> None:
        try:
            self.said.append(f"index {core.propose_configuration(configuration)}")
        except ChangeRefused as refused:
            self.said.append(f"refused: {refused}")
        core.check()

    def do_read(self, node: str) -> None:
        self.said.append(f"question {self.cores[int(node)].request_read()}")

    def do_died(self, node: str, *to: str) -> None:
        """Tell these nodes that the node's process is dead."""
        for other in to:
            self.cores[int(other)].on_peer_death(int(node))

    def do_disk(self, node: str, term: str, *entries: str) -> None:
        """Start a node with these entries on its disk, each as index@term:payload."""
        log = []
        for entry in entries:
            index_and_term, _, payload = entry.partition(":")
            index, _, entry_term = index_and_term.partition("@")
            log.append(m.Entry(int(entry_term), int(index), payload.encode()))
        self.disks[int(node)] = (m.Snapshot(), log, m.HardState(int(term)))
        self.do_boot(node)

    def do_boot(self, node: str) -> None:
        """(Re)starts a node from its disk: what it had not written is gone."""
        snapshot, entries, hard = self.disks[int(node)]
        log = RaftLog(snapshot, entries, hard.commit)
        self.cores[int(node)] = RaftCore(
            int(node), self.voters, log, hard, random.Random(int(node)), first_payload=b"-", settings=SETTINGS
        )

    def do_campaign(self, node: str) -> None:
        self.cores[int(node)].campaign()

    def do_tick(self, node: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.cores[int(node)].tick()

    def do_propose(self, node: str, *payloads: str) -> None:
        for payload in payloads:
            self.said.append(f"index {self.cores[int(node)].propose(payload.encode())}")

    def do_transfer(self, node: str, to: str) -> None:
        self.cores[int(node)].transfer_leadership(int(to))

    def do_away(self, *nodes: str) -> None:
        """Their messages are lost, both ways, until `back`."""
        self.away |= {int(node) for node in nodes}

    def do_back(self) -> None:
        self.away.clear()

    def do_compact(self, node: str, keep: str = "0") -> None:
        core = self.cores[int(node)]
        index = core.log.applied
        snapshot = m.Snapshot(index, core.log.term_at(index) or 0, b"state up to %d" % index)
        core.compact(snapshot, int(keep))
        kept = [entry for entry in self.disks[int(node)][1] if entry.index > index]
        self.disks[int(node)] = (snapshot, kept, self.disks[int(node)][2])

    def do_write(self, node: str) -> None:
        """Does the outstanding work of a node once, in the order that Ready prescribes."""
        self.do_take(node)
        self.do_finish(node)

    def do_take(self, node: str) -> None:
        """The first half of `write`: the work is taken and what may leave at once has left."""
        ready = self.writing[int(node)] = self.cores[int(node)].ready()
        self.network += ready.immediate_messages

    def do_finish(self, node: str) -> None:
        core, ready = self.cores[int(node)], self.writing.pop(int(node))
        snapshot, entries, hard = self.disks[int(node)]
        if ready.snapshot:
            snapshot, entries = ready.snapshot, []
            self.said.append(f"{node} installs {ready.snapshot.data.decode()!r}")
        if ready.entries:
            entries = [entry for entry in entries if entry.index < ready.entries[0].index]
            self.said.append(f"{node} writes {texts(ready.entries)}")
        hard = ready.hard_state or hard
        if ready.hard_state:
            self.said.append(f"{node} writes term {hard.term} vote {hard.voted_for} commit {hard.commit}")
        self.disks[int(node)] = (snapshot, [*entries, *ready.entries], hard)
        core.persisted(ready)
        self.network += ready.messages
        if ready.committed:
            self.said.append(f"{node} applies {texts(ready.committed)}")
        if ready.reads > self.answered.get(int(node), 0):
            self.answered[int(node)] = ready.reads
            self.said.append(f"{node} may answer questions up to {ready.reads}")
        core.check()

    def do_deliver(self) -> None:
        """One round: every message that waits now."""
        network, self.network = self.network, []
        for message in network:
            lost = {message.sender, message.to} & self.away
            self.said.append(text(message) + (" LOST" if lost else ""))
            if not lost:
                self.cores[message.to].step(message)
                self.cores[message.to].check()

    def do_stabilize(self) -> None:
        """Writes and delivers until nothing is left to do."""
        while self.network or any(core.has_ready() for core in self.cores.values()):
            for node, core in self.cores.items():
                while core.has_ready():
                    self.do_write(str(node))
            self.do_deliver()

    def do_state(self) -> None:
        for node, core in self.cores.items():
            log = core.log
            held = f"log {log.first_index}..{log.last_index} commit {log.commit} applied {log.applied}"
            leader = "nobody" if core.leader == m.NO_NODE else core.leader
            voters = "" if core.voters == set(self.voters) else f" of {sorted(core.voters)}"
            self.said.append(f"{node} {core.role.value}{voters} term {core.term} follows {leader} {held}")


def texts(entries: tuple[m.Entry, ...]) -> str:
    return " ".join(f"{entry.index}@{entry.term}:{meaning(entry)}" for entry in entries)


def meaning(entry: m.Entry) -> str:
    if entry.kind != m.CONFIGURATION:
        return entry.payload.decode()
    configuration = decode_configuration(entry.payload)
    learners = f" learners {sorted(configuration.learners)}" if configuration.learners else ""
    return f"(voters {sorted(configuration.voters)}{learners})"


def text(message: m.AnyMessage) -> str:
    head = f"{message.sender}>{message.to} {type(message).__name__} term {message.term}"
    match message:
        case m.VoteRequest():
            kind = " pre" * message.pre_vote + " transfer" * message.transfer
            return f"{head}{kind} log {message.last_index}@{message.last_term}"
        case m.VoteReply():
            return f"{head}{' pre' * message.pre_vote} {'yes' if message.granted else 'no'}"
        case m.Append():
            after = f"after {message.prev_index}@{message.prev_term}"
            return f"{head} {after} [{texts(message.entries)}] commit {message.commit}"
        case m.AppendReply(accepted=True):
            return f"{head} match {message.match_index}"
        case m.AppendReply():
            return f"{head} no {message.refused_index}, try {message.hint_index}@{message.hint_term}"
        case m.Heartbeat():
            return f"{head} commit {message.commit}" + f" question {message.read}" * bool(message.read)
        case m.HeartbeatReply():
            return head + f" question {message.read}" * bool(message.read)
        case m.SnapshotChunk():
            return f"{head} {message.index}@{message.snapshot_term} {message.data!r} at {message.offset}"
        case m.SnapshotReply():
            return f"{head} {message.index} has {message.next_offset}"
        case _:
            return head


def played(transcript: str) -> str:
    scene, out = Scene(), []
    for block in transcript.strip().split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        commands = rest[: rest.index("----")] if "----" in rest else rest
        if not commands:
            out.append("\n".join(comments))
            continue
        outcomes = [outcome for command in commands if (outcome := scene.run(command))]
        out.append("\n".join([*comments, *commands, "----", *(outcomes or ["ok"])]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_there_are_transcripts() -> None:
    assert len(list(TRANSCRIPTS.glob("*.txt"))) >= 8


if __name__ == "__main__":
    for path in sorted(TRANSCRIPTS.glob("*.txt")):
        path.write_text(played(path.read_text()))
