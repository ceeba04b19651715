"""Replication by the leader in one term: what each member has, what to send it, and what a majority has.

The core creates it when the node becomes the leader, and drops it when the node steps down. It reads the log
and sends messages. The core owns terms, roles and the commit index.
"""

from collections.abc import Callable

from tierlog.base.safeguards import safeguard
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.membership import Configuration
from tierlog.metadata.raft.peer_terms import PeerTerms
from tierlog.metadata.raft.progress import Progress, ProgressState
from tierlog.metadata.raft.quorum import committed_index, majority
from tierlog.metadata.raft.reads import Reads
from tierlog.metadata.raft.settings import RaftSettings


class Replication:
    def __init__(
        self,
        node_id: int,
        configuration: Configuration,
        term: int,
        log: RaftLog,
        settings: RaftSettings,
        send: Callable[[m.AnyMessage], None],
        reads: Reads,
        peer_terms: PeerTerms,
    ) -> None:
        self._node_id, self._term, self._peer_terms = node_id, term, peer_terms
        self._log, self._settings, self._send = log, settings, send
        self.reads = reads
        self.progress: dict[int, Progress] = {}
        self.since_heartbeat = 0  # ticks
        self._track(configuration)
        self.on_persisted(log.stable)

    def configure(self, configuration: Configuration) -> None:
        """Adopt a configuration; members that stay keep their progress. A read that waited only for a removed
        voter may now be confirmed."""
        self._track(configuration)
        self._count_reads()
        self._next_round()

    def _track(self, configuration: Configuration) -> None:
        self._voters, self._learners = configuration.voters.keys(), configuration.learners.keys()
        for member in configuration.members:
            if member not in self.progress:
                progress = Progress(self._log.last_index + 1, self._settings.max_inflight_appends)
                progress.round_end = self._log.last_index
                self.progress[member] = progress
        self.progress = {n: self.progress[n] for n in sorted(configuration.members)}

    def on_persisted(self, index: int) -> None:
        """The leader's own log is durable up to `index`. A leader that is being removed does not count
        (thesis 4.2.2)."""
        if own := self.progress.get(self._node_id):
            own.on_accepted(index)

    def majority_index(self) -> int:
        """The highest index that a majority has on disk."""
        return committed_index(
            self._voters, {v: progress.match_index for v, progress in self.progress.items()}
        )

    @safeguard("check-quorum")
    def majority_is_active(self) -> bool:
        """Whether a majority has replied since the last call (check-quorum, 6.2)."""
        active = sum(self.progress[v].recently_active or v == self._node_id for v in self._voters)
        for progress in self.progress.values():
            progress.recently_active = False
        return active >= majority(self._voters)

    def tick(self) -> None:
        self.since_heartbeat += 1
        for learner in self._learners:
            self.progress[learner].on_tick(self._settings.election_ticks)

    def most_up_to_date(self) -> int | None:
        """The other voter with the longest log."""
        others = [voter for voter in self._voters if voter != self._node_id]
        return max(others, key=lambda voter: self.progress[voter].match_index, default=None)

    def transfer_target(self) -> int | None:
        """The other voter with the longest log, among those that respond."""
        others = [voter for voter in self._voters if voter != self._node_id and self.is_replicating(voter)]
        return max(others, key=lambda voter: self.progress[voter].match_index, default=None)

    def is_replicating(self, member: int) -> bool:
        """Whether the member accepts appends, as far as is known."""
        progress = self.progress.get(member)
        return progress is not None and progress.state is ProgressState.REPLICATE

    # --- reads

    def request_read(self) -> int:
        """Returns the number of a new read request, which the next round of heartbeats carries."""
        self.reads.requested += 1
        self._next_round()
        return self.reads.requested

    def _next_round(self) -> None:
        if self.reads.round_is_due:
            self.broadcast_heartbeats()
            self._count_reads()

    def _count_reads(self) -> None:
        confirmed = {voter: self.progress[voter].confirmed_read for voter in self._voters}
        if self._node_id in confirmed:
            confirmed[self._node_id] = self.reads.sent
        self.reads.on_majority_reply(committed_index(self._voters, confirmed))

    def holds_entire_log(self, voter: int) -> bool:
        """Whether the member has every entry of the log."""
        progress = self.progress.get(voter)
        return progress is not None and progress.match_index == self._log.last_index

    def on_peer_unreachable(self, voter: int) -> None:
        progress = self.progress.get(voter)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.probe(progress.match_index + 1)

    # --- replies

    def on_append_reply(self, reply: m.AppendReply) -> bool:
        """Returns whether the member accepted the append."""
        progress = self.progress.get(reply.sender)
        if progress is None:
            return False
        progress.recently_active = True
        if not reply.accepted:
            index, _ = self._log.find_conflict_by_term(reply.hint_index, reply.hint_term)
            if progress.on_refused(reply.refused_index, index):
                self.send_appends(reply.sender)
            return False
        progress.on_accepted(reply.match_index)
        progress.end_round(self._log.last_index, self._settings.election_ticks)
        caught_up = progress.snapshot is None or progress.match_index >= progress.snapshot.index
        if progress.state is not ProgressState.REPLICATE and caught_up:
            progress.replicate()
        return True

    def on_reply(self, reply: m.HeartbeatReply | m.SnapshotReply) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        if isinstance(reply, m.SnapshotReply):
            self._on_snapshot_reply(progress, reply)
            return
        progress.on_heartbeat_reply()
        progress.confirmed_read = max(progress.confirmed_read, reply.read)
        progress.end_round(self._log.last_index, self._settings.election_ticks)
        self._count_reads()
        self._next_round()
        if progress.state is ProgressState.SNAPSHOT and progress.chunk_unacknowledged:
            self._send_chunk(reply.sender, progress)
        elif progress.match_index < self._log.last_index or progress.state is ProgressState.PROBE:
            self._send_append(reply.sender, progress)

    def _on_snapshot_reply(self, progress: Progress, reply: m.SnapshotReply) -> None:
        progress.recently_active = True
        if progress.snapshot is None or progress.snapshot.index != reply.index:
            return
        if reply.next_offset != progress.chunk_offset or progress.chunk_unacknowledged:
            progress.chunk_offset = reply.next_offset
            self._send_chunk(reply.sender, progress)

    # --- sending

    def broadcast_appends(self) -> None:
        for voter, _ in self._followers():
            self.send_appends(voter)

    def broadcast_commit(self) -> None:
        """Send the new commit index to members that are not paused; the others get it with entries."""
        for voter, progress in self._followers():
            if not progress.paused:
                self._send_append(voter, progress)

    def broadcast_heartbeats(self) -> None:
        self.reads.sent = self.reads.requested
        self.since_heartbeat = 0
        for voter, progress in self._followers():
            progress.chunk_unacknowledged = progress.state is ProgressState.SNAPSHOT
            commit = _commit_for(progress, self._log.commit)
            self._send(
                m.Heartbeat(
                    term=self._term,
                    sender=self._node_id,
                    to=voter,
                    commit=commit,
                    read=self.reads.requested,
                    known_term=self._peer_terms.term_of(voter),
                    known_vote=self._peer_terms.vote_of(voter),
                )
            )

    def send_appends(self, voter: int) -> None:
        """Send missing entries up to the window, or at least a commit index that the member does not know."""
        progress = self.progress[voter]
        while not progress.paused and progress.next_index <= self._log.last_index:
            self._send_append(voter, progress)
        if not progress.paused and progress.sent_commit < _commit_for(progress, self._log.commit):
            self._send_append(voter, progress)

    def _followers(self) -> list[tuple[int, Progress]]:
        return [(voter, progress) for voter, progress in self.progress.items() if voter != self._node_id]

    def _send_append(self, voter: int, progress: Progress) -> None:
        """Send one append. An empty one carries the commit index and detects lost appends."""
        if progress.state is ProgressState.SNAPSHOT:
            return
        prev_index = progress.next_index - 1
        prev_term = self._log.term_at(prev_index)
        if prev_term is None or progress.next_index < self._log.first_index:
            progress.send_snapshot(self._log.snapshot, self._log.snapshot_crc32c)
            self._send_chunk(voter, progress)
            return
        entries: tuple[m.Entry, ...] = ()
        if not progress.paused or progress.state is ProgressState.PROBE:
            end, most = self._log.last_index + 1, self._settings.max_append_bytes
            entries = self._log.between(progress.next_index, end, most)
        self._send(
            m.Append(
                term=self._term,
                sender=self._node_id,
                to=voter,
                prev_index=prev_index,
                prev_term=prev_term,
                entries=entries,
                commit=self._log.commit,
            )
        )
        progress.sent_commit = self._log.commit
        progress.on_append_sent(prev_index + len(entries), len(entries))

    def _send_chunk(self, voter: int, progress: Progress) -> None:
        snapshot = progress.snapshot
        if snapshot is None:
            return
        start = progress.chunk_offset
        progress.chunk_unacknowledged = False
        self._send(
            m.SnapshotChunk(
                term=self._term,
                sender=self._node_id,
                to=voter,
                index=snapshot.index,
                snapshot_term=snapshot.term,
                size=len(snapshot.data),
                crc32c=progress.snapshot_crc32c,
                offset=start,
                data=snapshot.data[start : start + self._settings.snapshot_chunk_bytes],
                configuration=snapshot.configuration,
            )
        )


@safeguard("a Raft heartbeat commits only entries that the follower has")
def _commit_for(progress: Progress, commit: int) -> int:
    """The commit index, as far as the member has the entries."""
    return min(commit, progress.match_index)
