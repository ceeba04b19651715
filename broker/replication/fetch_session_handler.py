"""Fetch session handler: the fetching side of an incremental fetch session (KIP-227).

A request names only the partitions whose fetch state changed since the previous one. The state last sent is
kept for each partition, since its response may come later than the next response. Pure; owned by a replica
fetcher.
"""

import uuid
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tierlog.broker.replication.core.follower import FetchPosition
from tierlog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION, INITIAL_EPOCH = 0, 0
LAST_EPOCH = 2**31 - 1

Key = tuple[uuid.UUID, int]
"""Topic id and partition."""


class FetchState(NamedTuple):
    """One partition of a Fetch. `log_start_offset` is the follower's own."""

    position: FetchPosition
    log_start_offset: int


class FetchSessionHandler:
    def __init__(self, partition_bytes: int) -> None:
        """`partition_bytes`: replica.fetch.max.bytes."""
        self.session_partitions: dict[Key, FetchState] = {}
        """The partitions in the session, with the state last sent to the leader."""
        self._partition_bytes = partition_bytes
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def reset(self) -> None:
        """Start a new session: the leader has lost this one, or the connection broke. The next request names
        all partitions, and the old session's id, so that a leader which still has that session drops it."""
        self._epoch = INITIAL_EPOCH
        self.session_partitions = {}

    def fill(self, request: FetchRequest, changed: Mapping[Key, FetchState], gone: Collection[Key]) -> None:
        """Set a request's session, changed partitions and forgotten partitions."""
        request.session_id, request.session_epoch = self._id, self._epoch
        topics: dict[uuid.UUID, list[FetchPartition]] = {}
        for key, state in changed.items():
            if self.session_partitions.get(key) == state:
                continue
            self.session_partitions[key] = state
            topics.setdefault(key[0], []).append(self._partition(key[1], state))
        request.topics = [
            FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()
        ]
        forgotten: dict[uuid.UUID, list[int]] = {}
        for key in gone:
            if self.session_partitions.pop(key, None) is not None and self.is_open:
                forgotten.setdefault(key[0], []).append(key[1])
        request.forgotten_topics_data = [
            ForgottenTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in forgotten.items()
        ]

    def handle_response(self, session_id: int) -> None:
        """Take a response without an error. A leader without space for another session returns no session
        id."""
        self._id = session_id
        if session_id == NO_SESSION:
            self.reset()
        else:
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    @property
    def is_open(self) -> bool:
        return self._epoch != INITIAL_EPOCH

    def _partition(self, number: int, state: FetchState) -> FetchPartition:
        position = state.position
        return FetchPartition(
            partition=number,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=state.log_start_offset,
            partition_max_bytes=self._partition_bytes,
        )
