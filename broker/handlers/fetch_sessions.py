"""Fetch sessions (KIP-227): remember what a client fetches, so that responses contain only changes.

Epoch 0 opens a session and -1 closes it; each later request carries the next epoch. The cache is bounded. If
all slots are taken, a new session evicts the least recently used session if that is stale. Otherwise it
evicts the least valuable one that is older than `EVICTION_MS`, or a consumer's of any age if the new session
is a follower's: consumers before followers, then smaller before larger. It is refused if that one is worth
more than itself. A session that would exceed PARTITIONS_MAX evicts stale sessions first, then old ones of its
kind that are larger than itself; a follower's also evicts consumers' sessions of any age and size. No clock,
no I/O (`now_ms` is monotonic). Called by the Fetch handler.
"""

import random
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

EVICTION_MS = 120_000
"""A session unused for this long is stale. A session created less than this long ago is evicted only if it is
a consumer's and the new one a follower's."""

PARTITIONS_MAX = 1_000_000
"""Maximum number of partitions in all sessions, about 250 MB. Kafka bounds only the number of sessions, not
their size."""

SESSION_PARTITIONS_MAX = PARTITIONS_MAX // 10
"""Maximum number in one session, so that a few clients cannot use up PARTITIONS_MAX."""

NO_SESSION, INITIAL_EPOCH, FINAL_EPOCH = 0, 0, -1
MAX_EPOCH = 2**31 - 1

SessionKey = tuple[str | uuid.UUID, int]
"""Topic (its id from Fetch v13 on, its name before) and partition."""


class SessionFault(Enum):
    """Why a request does not match its session; `fetch` maps them to error codes."""

    ID_NOT_FOUND = auto()
    INVALID_EPOCH = auto()
    TOPIC_ID_MIX = auto()


class SessionPartition:
    """The last request for a partition, and the last response."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "partition",
        "sent_error",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
    )

    def __init__(
        self,
        topic: str | uuid.UUID,
        partition: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        log_start_offset: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.sent_error = 0

    @property
    def key(self) -> SessionKey:
        return self.topic, self.partition

    def update(self, other: "SessionPartition") -> None:
        """Take over a newer request. After truncation, or in a new leader epoch, the follower needs the high
        watermark again."""
        if other.fetch_offset < self.fetch_offset or other.current_leader_epoch != self.current_leader_epoch:
            self.sent_high_watermark = -1
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset

    def record_response(
        self, *, error: int, high_watermark: int, log_start_offset: int, must_be_sent: bool
    ) -> bool:
        """Whether the response must contain this partition. `must_be_sent`: it has records, a diverging epoch
        or a preferred replica."""
        changed = (
            must_be_sent
            or error != 0  # an error is repeated until it is gone
            or error != self.sent_error
            or high_watermark != self.sent_high_watermark
            or log_start_offset != self.sent_log_start_offset
            # repeated until the follower has it: it raises its log start only up to its high watermark
            or 0 <= self.log_start_offset < log_start_offset
        )
        self.sent_error = error
        self.sent_high_watermark = high_watermark
        self.sent_log_start_offset = log_start_offset
        return changed


@dataclass(slots=True, eq=False)
class FetchSession:
    id: int
    is_follower: bool
    uses_topic_ids: bool
    created_ms: int
    used_ms: int
    partitions: dict[SessionKey, SessionPartition]
    next_epoch: int = 1

    def rotate(self, sent: Iterable[SessionKey]) -> None:
        """Move partitions that got records to the end, so that they do not starve the others."""
        for key in sent:
            if (partition := self.partitions.pop(key, None)) is not None:
                self.partitions[key] = partition


class FetchContext(NamedTuple):
    """The partitions of a request in order, and its session (Kafka's FetchContext). `session` is None for a
    full fetch, which may open one."""

    partitions: list[SessionPartition]
    session: FetchSession | None
    may_open: bool


class FetchSessions:
    """The bounded cache."""

    def __init__(
        self,
        slots: int,
        rng: random.Random,
        partitions_max: int = PARTITIONS_MAX,
        session_partitions_max: int = SESSION_PARTITIONS_MAX,
    ) -> None:
        self.partitions = 0
        """Partitions in all sessions."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._session_partitions_max = session_partitions_max
        self._rng = rng
        self._sessions: dict[int, FetchSession] = {}
        self.evictions = 0
        self.refused = 0
        """Sessions that were not opened, or were closed, for lack of a slot or of space for their partitions.
        """

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        requested: Iterable[SessionPartition],
        forgotten: Iterable[SessionKey],
        *,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext | SessionFault:
        """Find the session of a request and update it."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            return FetchContext(list(requested), None, may_open=epoch == INITIAL_EPOCH)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionFault.ID_NOT_FOUND
        if session.next_epoch != epoch:
            return SessionFault.INVALID_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return SessionFault.TOPIC_ID_MIX
        before = len(session.partitions)
        _update(session, requested, forgotten)
        self.partitions += len(session.partitions) - before
        if not session.partitions:
            self._drop(session_id)
            return FetchContext([], None, may_open=False)
        if self.partitions > self._partitions_max or len(session.partitions) > self._session_partitions_max:
            self._drop(session_id)
            self.refused += 1
            return SessionFault.ID_NOT_FOUND  # the client sends a full request next
        session.used_ms = now_ms
        session.next_epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return FetchContext(list(session.partitions.values()), session, may_open=False)

    def open(
        self, partitions: Iterable[SessionPartition], *, is_follower: bool, uses_topic_ids: bool, now_ms: int
    ) -> int:
        """The id of a new session, or NO_SESSION if the cache has no space for it."""
        held = {partition.key: partition for partition in partitions}
        if not held:
            return NO_SESSION
        if len(held) > self._session_partitions_max or not self._evict_for(is_follower, len(held), now_ms):
            self.refused += 1
            return NO_SESSION
        session_id = self._new_id()
        self._sessions[session_id] = FetchSession(
            session_id, is_follower, uses_topic_ids, now_ms, now_ms, held
        )
        self.partitions += len(held)
        return session_id

    def _evict_for(self, is_follower: bool, size: int, now_ms: int) -> bool:
        """Evict sessions until the new one fits: first for its partitions, which may also free a slot, then
        for a slot."""
        return self._take_partitions(is_follower, size, now_ms) and self._take_slot(is_follower, size, now_ms)

    def _take_partitions(self, is_follower: bool, size: int, now_ms: int) -> bool:
        """Evict only if that frees enough. Among old sessions the largest go first."""
        missing = self.partitions + size - self._partitions_max
        if missing <= 0:
            return True
        stale: list[FetchSession] = []
        others: list[FetchSession] = []
        for session in self._sessions.values():
            if now_ms - session.used_ms > EVICTION_MS:
                stale.append(session)
            elif is_follower > session.is_follower or (
                is_follower == session.is_follower
                and now_ms - session.created_ms > EVICTION_MS
                and len(session.partitions) > size
            ):
                others.append(session)
        stale.sort(key=lambda session: session.used_ms)
        others.sort(key=lambda session: (session.is_follower, -len(session.partitions), session.id))
        evicted: list[FetchSession] = []
        for session in (*stale, *others):
            if missing <= 0:
                break
            missing -= len(session.partitions)
            evicted.append(session)
        if missing > 0:
            return False
        for session in evicted:
            self._evict(session)
        return True

    def _take_slot(self, is_follower: bool, size: int, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False  # no slots at all
        oldest = min(self._sessions.values(), key=lambda session: session.used_ms)
        if now_ms - oldest.used_ms > EVICTION_MS:
            return self._evict(oldest)
        evictable = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (is_follower and not session.is_follower)
        ]
        if not evictable:
            return False
        least = min(evictable, key=_worth)
        if (is_follower, size) < (least.is_follower, len(least.partitions)):
            return False
        return self._evict(least)

    def _evict(self, session: FetchSession) -> bool:
        self._drop(session.id)
        self.evictions += 1
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.partitions)

    def _new_id(self) -> int:
        while True:
            session_id = self._rng.randint(1, MAX_EPOCH)
            if session_id not in self._sessions:
                return session_id


def _worth(session: FetchSession) -> tuple[bool, int, int]:
    return session.is_follower, len(session.partitions), session.id


def _update(
    session: FetchSession, requested: Iterable[SessionPartition], forgotten: Iterable[SessionKey]
) -> None:
    for partition in requested:
        held = session.partitions.get(partition.key)
        if held is None:
            session.partitions[partition.key] = partition
        else:
            held.update(partition)
    for key in forgotten:
        session.partitions.pop(key, None)
