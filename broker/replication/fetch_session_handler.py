"""The fetching side of an incremental fetch session (KIP-227): what the leader is told, and what it knows.

A request names only what changed since the one before. What was last asked of a partition is kept, since an
answer may come in a later response than the request that asked. Pure; owned by a replica fetcher.
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


class Asked(NamedTuple):
    position: FetchPosition
    log_start_offset: int


class FetchingSession:
    def __init__(self, partition_bytes: int) -> None:
        self.asked: dict[Key, Asked] = {}
        """Of every partition in the session, what the leader was last told."""
        self._partition_bytes = partition_bytes
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH

    def reset(self) -> None:
        """The leader has lost the session, or the connection broke: the next request names everything, and
        the old session too, so that the leader, if it has it still, drops it for the new one."""
        self._epoch = INITIAL_EPOCH
        self.asked = {}

    def fill(self, request: FetchRequest, changed: Mapping[Key, Asked], gone: Collection[Key]) -> None:
        """Puts session, changed partitions and those that left into a request."""
        request.session_id, request.session_epoch = self._id, self._epoch
        topics: dict[uuid.UUID, list[FetchPartition]] = {}
        for key, asked in changed.items():
            if self.asked.get(key) == asked:
                continue
            self.asked[key] = asked
            topics.setdefault(key[0], []).append(self._partition(key[1], asked))
        request.topics = [
            FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()
        ]
        forgotten: dict[uuid.UUID, list[int]] = {}
        for key in gone:
            if self.asked.pop(key, None) is not None and self.is_open:
                forgotten.setdefault(key[0], []).append(key[1])
        request.forgotten_topics_data = [
            ForgottenTopic(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in forgotten.items()
        ]

    def answered(self, session_id: int) -> None:
        """A response without an error came; a leader without room for a session answers with none."""
        self._id = session_id
        if session_id == NO_SESSION:
            self.reset()
        else:
            self._epoch = 1 if self._epoch == LAST_EPOCH else self._epoch + 1

    @property
    def is_open(self) -> bool:
        return self._epoch != INITIAL_EPOCH

    def _partition(self, number: int, asked: Asked) -> FetchPartition:
        position = asked.position
        return FetchPartition(
            partition=number,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=asked.log_start_offset,
            partition_max_bytes=self._partition_bytes,
        )
