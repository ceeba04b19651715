"""Topic view: what groups need to know about the cluster's topics, in one image of the metadata.

A view never changes: after a change of the topics the coordinator gets another one, with TopicsChanged.
"""

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID


class TopicView(Protocol):
    def id_of(self, name: str) -> UUID | None:
        """None if there is no such topic."""

    def name_of(self, topic_id: UUID) -> str | None:
        """None if there is no such topic."""

    def partitions_of(self, name: str) -> int:
        """Number of partitions; 0 if there is no such topic."""

    def racks_of(self, name: str) -> Sequence[frozenset[str]]:
        """Racks of the replicas of each partition."""

    def names(self) -> Collection[str]:
        """The names of all topics."""


class NoTopics:
    """The view before the first image."""

    def id_of(self, name: str) -> UUID | None:
        return None

    def name_of(self, topic_id: UUID) -> str | None:
        return None

    def partitions_of(self, name: str) -> int:
        return 0

    def racks_of(self, name: str) -> Sequence[frozenset[str]]:
        return ()

    def names(self) -> Collection[str]:
        return ()
