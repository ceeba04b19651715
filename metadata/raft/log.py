"""The core's view of the log: entries since the snapshot, which of them are durable, committed, applied.

Invariants: snapshot.index <= applied <= commit <= last_index; applied <= stable; entries are contiguous. All
entries after the compaction point are held in memory; the node bounds that by taking snapshots.
"""

from collections.abc import Sequence

from crc32c import crc32c

from tierlog.base.types import InvariantViolation, require
from tierlog.metadata.raft.membership import Configuration, decode_configuration
from tierlog.metadata.raft.messages import CONFIGURATION, Entry, Snapshot


class RaftLog:
    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry], commit: int) -> None:
        """`entries` may begin before the snapshot's end: a tail kept for followers that lag a little."""
        self.snapshot = snapshot
        self._entries = list(entries)
        self._before = snapshot.index if not entries else entries[0].index - 1
        self._before_term = snapshot.term if self._before == snapshot.index else -1  # -1: not known
        self.stable = self.last_index
        self.commit = min(max(commit, snapshot.index), self.last_index)
        self.applied = snapshot.index
        self._configurations: list[tuple[int, Configuration]] = []  # of rising index
        self._checksum: tuple[Snapshot, int] | None = None
        self._reload_configurations()
        self.check()

    @property
    def first_index(self) -> int:
        """The oldest entry held; one past last_index if none is."""
        return self._before + 1

    @property
    def last_index(self) -> int:
        return self._before + len(self._entries)

    @property
    def snapshot_crc32c(self) -> int:
        """Of its data, which may be large: computed once, when it is first sent to anybody."""
        if self._checksum is None or self._checksum[0] is not self.snapshot:
            self._checksum = self.snapshot, crc32c(self.snapshot.data)
        return self._checksum[1]

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self._before_term

    def term_at(self, index: int) -> int | None:
        """None: beyond the end, or compacted away."""
        if self._before < index <= self.last_index:
            return self._entries[index - self._before - 1].term
        if index == self.snapshot.index:
            return self.snapshot.term
        return self._before_term if index == self._before and self._before_term >= 0 else None

    @property
    def configuration(self) -> tuple[int, Configuration] | None:
        """The newest in the log or its snapshot, with the index of its entry; None: there never was one."""
        return self._configurations[-1] if self._configurations else None

    def configuration_at(self, index: int) -> Configuration | None:
        """As of an entry that is not before the snapshot."""
        held = [configuration for at, configuration in self._configurations if at <= index]
        return held[-1] if held else None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def between(self, start: int, end: int, max_bytes: int | None = None) -> tuple[Entry, ...]:
        """Entries [start, end), at least one, cut where max_bytes of payload is passed."""
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
        """Whether these, committed elsewhere, may be of this log, as far as can be told: terms never fall
        along a log, and the entry before the first is known here. `after_term`: of that one; -1: not known.
        """
        if snapshot is not None and snapshot.index > self.commit:
            return snapshot.term >= (self.term_at(self.commit) or 0)
        if not entries:
            return True
        after = entries[0].index - 1
        here = self.term_at(after)
        return after <= self.commit and (after_term < 0 or here is None or here == after_term)

    def merge(self, entries: Sequence[Entry]) -> None:
        """Entries from the leader, whose predecessor matches; a conflict cuts what follows it (3.5)."""
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
        """The last (index, term) not after `index` with a term not above `term`: where logs may agree."""
        index = min(index, self.last_index)
        while (found := self.term_at(index)) is not None and found > term:
            index -= 1
        return index, found if found is not None else 0

    def is_candidate_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there is at least as up to date as this one (3.6.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def check_acknowledged(self, acknowledged: int) -> None:
        """This node has told its leader that it holds entries up to that one. Raises InvariantViolation if it
        does not: it may have forgotten votes as well."""
        if acknowledged > self.last_index:
            raise InvariantViolation(
                f"this voter acknowledged entries up to {acknowledged}, but its log ends at "
                f"{self.last_index}: "
                "its metadata directory was put back to an older copy, or its disk lost what was synced. "
                "Remove it from the quorum, empty the directory and add it again "
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
        """Everything up to this entry is durable, unless it was cut while it was being written."""
        if self.matches(last.index, last.term):
            self.stable = max(self.stable, last.index)

    def unapplied(self) -> tuple[Entry, ...]:
        """Committed entries that are durable here and not applied yet."""
        return self.between(self.applied + 1, min(self.commit, self.stable) + 1)

    def restore(self, snapshot: Snapshot) -> None:
        """The leader's snapshot replaces the log."""
        require(snapshot.index > self.commit, f"snapshot {snapshot.index} is older than commit {self.commit}")
        self.snapshot = snapshot
        self._entries = []
        self._before, self._before_term = snapshot.index, snapshot.term
        self.stable = self.commit = self.applied = snapshot.index
        self._reload_configurations()

    def compact(self, snapshot: Snapshot, keep: int) -> None:
        """The snapshot is durable; entries up to `keep` before its end may go."""
        require(
            self.snapshot.index <= snapshot.index <= self.applied,
            f"snapshot {snapshot.index} is out of order",
        )
        self.snapshot = snapshot
        cut = snapshot.index - keep
        term = self.term_at(cut)
        if cut <= self._before or term is None:
            return
        del self._entries[: cut - self._before]
        self._before, self._before_term = cut, term
        self._reload_configurations()

    def _reload_configurations(self) -> None:
        """A configuration before the snapshot is the snapshot's own, or older than it."""
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
        require(self.applied <= self.stable <= self.last_index, "applied what is not durable")
        require(self._before <= self.snapshot.index, "entries after the snapshot are missing")
        if self._entries:
            require(self._entries[0].index == self._before + 1, "the log does not start where it says")
            require(self._entries[-1].index == self.last_index, "the log has a gap")
