"""Transactional offsets: offsets committed in transactions that are still open, by producer (KIP-98).

They count once the transaction's marker is committed, and vanish if it aborts. Until then OffsetFetch with
`require_stable` (KIP-447) must not show an older offset of the same partition as if it were the last.
"""

from collections import Counter

from tierlog.base.types import TopicPartition
from tierlog.broker.groups.core.formats import CommittedOffset

Pending = dict[tuple[str, TopicPartition], CommittedOffset]
"""(group id, partition) -> the offset."""


class TransactionalOffsets:
    def __init__(self) -> None:
        self._open: dict[int, Pending] = {}  # by producer id
        self._counts: Counter[tuple[str, TopicPartition]] = Counter()

    def put(
        self, producer_id: int, group_id: str, partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        pending = self._open.setdefault(producer_id, {})
        key = group_id, partition
        if key not in pending:
            self._counts[key] += 1
        pending[key] = committed

    def end(self, producer_id: int) -> Pending:
        """The offsets of a transaction that ends."""
        pending = self._open.pop(producer_id, {})
        for key in pending:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        return pending

    def holds(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition."""
        return (group_id, partition) in self._counts

    def partitions(self, group_id: str) -> list[TopicPartition]:
        return [partition for group, partition in self._counts if group == group_id]

    def groups(self) -> set[str]:
        return {group_id for group_id, _ in self._counts}
