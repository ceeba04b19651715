"""Raft log: the entries since the last compaction, and which of them are durable, committed and applied.

Invariants: snapshot.index <= applied <= commit <= last_index; applied <= stable <= last_index; entries are
contiguous. All entries since the compaction are in memory; the node bounds their size by taking snapshots.
"""

from collections.abc import Sequence

from crc32c import crc32c

from tierlog.base.safeguards import safeguard
from tierlog.base.types import InvariantViolation, require
from tierlog.metadata.raft.membership import Configuration, decode_configuration
from tierlog.metadata.raft.messages import CONFIGURATION, Entry, Snapshot


class RaftLog:
    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry], commit: int) -> None:
        """`entries` may begin before the end of the snapshot: a suffix kept for followers that lag a
        little."""
        self.snapshot = snapshot
        self._entries = list(entries)
        self._before = snapshot.index if not entries else entries[0].index - 1
        self._before_term = snapshot.term if self._before == snapshot.index else -1  # -1: not known
        self.stable = self.last_index
        self.commit = min(max(commit, snapshot.index), self.last_index)
        self.applied = snapshot.index
        self._configurations: list[tuple[int, Configuration]] = []  # in the order of their indexes
        self._checksum: tuple[Snapshot, int] | None = None
        self._reload_configurations()
        self.check()

    @property
    def first_index(self) -> int:
        """Index of the oldest entry here; last_index + 1 if there is none."""
        return self._before + 1

    @property
    def last_index(self) -> int:
        return self._before + len(self._entries)

    @property
    def snapshot_crc32c(self) -> int:
        """Checksum of the snapshot's data, which may be large: computed once, when it is first sent."""
        if self._checksum is None or self._checksum[0] is not self.snapshot:
            self._checksum = self.snapshot, crc32c(self.snapshot.data)
        return self._checksum[1]

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self._before_term

    def term_at(self, index: int) -> int | None:
        """None beyond the end of the log, or for an entry that was compacted away."""
        if self._before < index <= self.last_index:
            return self._entries[index - self._before - 1].term
        if index == self.snapshot.index:
            return self.snapshot.term
        return self._before_term if index == self._before and self._before_term >= 0 else None

    @property
    def configuration(self) -> tuple[int, Configuration] | None:
        """The newest configuration of the log or its snapshot, with the index of its entry; None without
        one."""
        return self._configurations[-1] if self._configurations else None

    def configuration_at(self, index: int) -> Configuration | None:
        """The configuration as of an entry, which must not be before the snapshot."""
        held = [configuration for at, configuration in self._configurations if at <= index]
        return held[-1] if held else None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def between(self, start: int, end: int, max_bytes: int | None = None) -> tuple[Entry, ...]:
        """Entries [start, end) up to `max_bytes` of payload, but at least one."""
        chosen = self._entries[start - self._before - 1 : end - self._before - 1]
        if max_bytes is None:
            return tuple(chosen)
        size = 0
        for count, entry in enumerate(chosen):
            size += len(entry.payload)
            if size > max_bytes and count:
                return tuple(chosen[:count])
        return tuple(chosen)

    def append(self, entry: Entry) -> None:
        require(entry.index == self.last_index + 1, f"entry {entry.index} appended after {self.last_index}")
        self._entries.append(entry)
        if entry.kind == CONFIGURATION:
            self._configurations.append((entry.index, decode_configuration(entry.payload)))

    def is_continued_by(self, snapshot: Snapshot | None, entries: Sequence[Entry], after_term: int) -> bool:
        """Whether a snapshot or entries that another node committed can belong to this log.

        Terms never fall along a log, and the entry before the first one must be here with the same term.
        `after_term` is the term of that entry; -1: not known.
        """
        if snapshot is not None and snapshot.index > self.commit:
            return snapshot.term >= (self.term_at(self.commit) or 0)
        if not entries:
            return True
        after = entries[0].index - 1
        here = self.term_at(after)
        return after <= self.commit and (after_term < 0 or here is None or here == after_term)

    @safeguard("an append truncates only conflicting entries")
    def merge(self, entries: Sequence[Entry]) -> None:
        """Append entries whose predecessor matches. Truncate from the first conflicting entry on (thesis
        3.5)."""
        for entry in entries:
            if self.matches(entry.index, entry.term):
                continue
            if entry.index <= self.last_index:
                require(entry.index > self.commit, f"committed entry {entry.index} would be overwritten")
                del self._entries[entry.index - self._before - 1 :]
                self.stable = min(self.stable, entry.index - 1)
                self._configurations = [held for held in self._configurations if held[0] < entry.index]
            self.append(entry)

    def find_conflict_by_term(self, index: int, term: int) -> tuple[int, int]:
        """The last (index, term) at or before `index` with a term of at most `term`: where the logs may
        agree."""
        index = min(index, self.last_index)
        while (found := self.term_at(index)) is not None and found > term:
            index -= 1
        return index, found if found is not None else 0

    @safeguard("a vote is given only to a candidate with an up-to-date log")
    def is_candidate_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log with this last entry is at least as up to date as this one (thesis 3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def check_acknowledged(self, acknowledged: int) -> None:
        """Raise InvariantViolation if the log ends before an entry that this node has acknowledged to its
        leader: it may have forgotten votes as well."""
        if acknowledged > self.last_index:
            raise InvariantViolation(
                f"this voter acknowledged entries up to {acknowledged}, but its log ends at "
                f"{self.last_index}: the metadata directory is an older copy, or its disk lost "
                "synced data. Remove it from the quorum, empty the directory and add it again "
                "(docs/runbooks/replace-node.md)"
            )

    def commit_to(self, index: int) -> bool:
        index = min(index, self.last_index)
        if index <= self.commit:
            return False
        self.commit = index
        return True

    def unstable(self) -> tuple[Entry, ...]:
        return self.between(self.stable + 1, self.last_index + 1)

    def persisted(self, last: Entry) -> None:
        """Everything up to this entry is durable, unless it was truncated during the write."""
        if self.matches(last.index, last.term):
            self.stable = max(self.stable, last.index)

    def unapplied(self) -> tuple[Entry, ...]:
        """Committed entries that are durable on this node and not yet applied."""
        return self.between(self.applied + 1, min(self.commit, self.stable) + 1)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the log by the leader's snapshot."""
        require(snapshot.index > self.commit, f"snapshot {snapshot.index} is older than commit {self.commit}")
        self.snapshot = snapshot
        self._entries = []
        self._before, self._before_term = snapshot.index, snapshot.term
        self.stable = self.commit = self.applied = snapshot.index
        self._reload_configurations()

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """The snapshot is durable: drop the entries that it covers, except the last `keep`."""
        require(
            self.snapshot.index <= snapshot.index <= self.applied,
            f"snapshot {snapshot.index} is out of order",
        )
        self.snapshot = snapshot
        before = snapshot.index - keep
        term = self.term_at(before)
        if before <= self._before or term is None:
            return
        del self._entries[: before - self._before]
        self._before, self._before_term = before, term
        self._reload_configurations()

    def _reload_configurations(self) -> None:
        """Entries that the snapshot covers are skipped: its own configuration is at least as new."""
        first = self.snapshot.configuration
        self._configurations = [] if first is None else [(self.snapshot.index, first)]
        self._configurations += [
            (entry.index, decode_configuration(entry.payload))
            for entry in self._entries
            if entry.kind == CONFIGURATION and entry.index > self.snapshot.index
        ]

    def check(self) -> None:
        require(
            self.snapshot.index <= self.applied <= self.commit <= self.last_index, "log indexes out of order"
        )
        require(self.applied <= self.stable <= self.last_index, "an entry was applied that is not durable")
        require(self._before <= self.snapshot.index, "entries after the snapshot are missing")
        if self._entries:
            require(self._entries[0].index == self._before + 1, "the log does not start where it says")
            require(self._entries[-1].index == self.last_index, "the log has a gap")
