"""The leader's side of one term: what each voter holds, what to send it, and what a majority holds.

Made when a node becomes leader and dropped when it is no more. It reads the log and sends; terms, roles and
the commit index are the core's.
"""

from collections.abc import Callable, Collection

from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.raft.progress import Progress, Sending
from tierlog.metadata.raft.quorum import committed_index, majority
from tierlog.metadata.raft.settings import RaftSettings


class Replication:
    def __init__(
        self,
        node_id: int,
        voters: Collection[int],
        term: int,
        log: RaftLog,
        settings: RaftSettings,
        send: Callable[[m.AnyMessage], None],
    ) -> None:
        self._node_id, self._voters, self._term = node_id, voters, term
        self._log, self._settings, self._send = log, settings, send
        self.progress = {voter: Progress(log.last_index + 1, settings.window) for voter in sorted(voters)}
        self.stored(log.stable)

    def stored(self, index: int) -> None:
        """The leader's own log is durable up to there."""
        self.progress[self._node_id].accepted(index)

    def majority_index(self) -> int:
        """The highest index that a majority holds durably."""
        return committed_index(
            self._voters, {v: progress.match_index for v, progress in self.progress.items()}
        )

    def hears_majority(self) -> bool:
        """Whether a majority has answered since this was last asked."""
        active = sum(p.recently_active or v == self._node_id for v, p in self.progress.items())
        for progress in self.progress.values():
            progress.recently_active = False
        return active >= majority(self._voters)

    def is_complete(self, voter: int) -> bool:
        """Whether it holds the whole log."""
        progress = self.progress.get(voter)
        return progress is not None and progress.match_index == self._log.last_index

    def unreachable(self, voter: int) -> None:
        progress = self.progress.get(voter)
        if progress is not None and progress.state is Sending.REPLICATE:
            progress.probe(progress.match_index + 1)

    # --- answers

    def on_append_reply(self, reply: m.AppendReply) -> bool:
        """True if the voter accepted."""
        progress = self.progress.get(reply.sender)
        if progress is None:
            return False
        progress.recently_active = True
        if not reply.accepted:
            index, _ = self._log.last_not_above(reply.hint_index, reply.hint_term)
            if progress.refused(reply.refused_index, index):
                self.send_appends(reply.sender)
            return False
        progress.accepted(reply.match_index)
        caught_up = progress.snapshot is None or progress.match_index >= progress.snapshot.index
        if progress.state is not Sending.REPLICATE and caught_up:
            progress.replicate()
        return True

    def on_reply(self, reply: m.HeartbeatReply | m.SnapshotReply) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        if isinstance(reply, m.SnapshotReply):
            self._on_snapshot_reply(progress, reply)
            return
        progress.heard()
        if progress.state is Sending.SNAPSHOT and progress.chunk_quiet:
            self._send_chunk(reply.sender, progress)
        elif progress.match_index < self._log.last_index:
            self._send_append(reply.sender, progress)

    def _on_snapshot_reply(self, progress: Progress, reply: m.SnapshotReply) -> None:
        progress.recently_active = True
        if progress.snapshot is None or progress.snapshot.index != reply.index:
            return
        if reply.next_offset != progress.chunk_offset or progress.chunk_quiet:
            progress.chunk_offset = reply.next_offset
            self._send_chunk(reply.sender, progress)

    # --- sending

    def broadcast_appends(self) -> None:
        for voter, _ in self._followers():
            self.send_appends(voter)

    def tell_commit(self) -> None:
        """The commit index moved: those who are not busy learn it now, the others with what follows."""
        for voter, progress in self._followers():
            if not progress.paused:
                self._send_append(voter, progress)

    def broadcast_heartbeats(self) -> None:
        for voter, progress in self._followers():
            progress.chunk_quiet = progress.state is Sending.SNAPSHOT
            commit = min(self._log.commit, progress.match_index)
            self._send(m.Heartbeat(term=self._term, sender=self._node_id, to=voter, commit=commit))

    def send_appends(self, voter: int) -> None:
        """As much as is missing and the window allows; at least the commit index, if that is news."""
        progress = self.progress[voter]
        while not progress.paused and progress.next_index <= self._log.last_index:
            self._send_append(voter, progress)
        if not progress.paused and progress.told_commit < min(self._log.commit, progress.match_index):
            self._send_append(voter, progress)

    def _followers(self) -> list[tuple[int, Progress]]:
        return [(voter, progress) for voter, progress in self.progress.items() if voter != self._node_id]

    def _send_append(self, voter: int, progress: Progress) -> None:
        """One message; empty if all was sent, which tells the commit index and finds out about losses."""
        if progress.state is Sending.SNAPSHOT:
            return
        prev_index = progress.next_index - 1
        prev_term = self._log.term_at(prev_index)
        if prev_term is None or progress.next_index < self._log.first_index:
            progress.send_snapshot(self._log.snapshot)
            self._send_chunk(voter, progress)
            return
        entries: tuple[m.Entry, ...] = ()
        if not progress.paused or progress.state is Sending.PROBE:
            end, most = self._log.last_index + 1, self._settings.append_bytes
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
        progress.told_commit = self._log.commit
        progress.sent(prev_index + len(entries), len(entries))

    def _send_chunk(self, voter: int, progress: Progress) -> None:
        snapshot = progress.snapshot
        if snapshot is None:
            return
        start = progress.chunk_offset
        progress.chunk_quiet = False
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
                data=snapshot.data[start : start + self._settings.chunk_bytes],
            )
        )
