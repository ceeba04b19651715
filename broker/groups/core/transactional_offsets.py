"""Transactional offsets: offsets committed in transactions that are still open, by producer (KIP-98).

They count once the transaction's marker is committed, and vanish if it aborts. Until then OffsetFetch with
`require_stable` (KIP-447) must not show an older offset of the same partition as if it were the last.
"""

from tierlog.base.types import TopicPartition
from tierlog.broker.groups.core.formats import CommittedOffset

Pending = dict[tuple[str, TopicPartition], CommittedOffset]
"""(group id, partition) -> the offset."""


class TransactionalOffsets:
    def __init__(self) -> None:
        self._open: dict[int, Pending] = {}  # by producer id
        self._producers: dict[str, dict[TopicPartition, set[int]]] = {}  # by group id

    def put(
        self, producer_id: int, group_id: str, partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        self._open.setdefault(producer_id, {})[group_id, partition] = committed
        self._producers.setdefault(group_id, {}).setdefault(partition, set()).add(producer_id)

    def end(self, producer_id: int) -> Pending:
        """The offsets of a transaction that ends."""
        pending = self._open.pop(producer_id, {})
        for group_id, partition in pending:
            self._forget(producer_id, group_id, partition)
        return pending

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """The offset was deleted: no open transaction brings it back."""
        for producer_id in tuple(self._producers.get(group_id, {}).get(partition, ())):
            del self._open[producer_id][group_id, partition]
            self._forget(producer_id, group_id, partition)

    def _forget(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        partitions = self._producers[group_id]
        partitions[partition].discard(producer_id)
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del self._producers[group_id]

    def holds(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition."""
        return partition in self._producers.get(group_id, {})

    def partitions(self, group_id: str) -> list[TopicPartition]:
        return list(self._producers.get(group_id, {}))

    def has(self, group_id: str) -> bool:
        return group_id in self._producers

    def groups(self) -> list[str]:
        return list(self._producers)
