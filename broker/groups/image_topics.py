"""Topics of a cluster image, as groups see them. Nothing is copied: the image never changes."""

from collections.abc import Collection
from uuid import UUID

from tierlog.metadata.image import ClusterImage


class ImageTopics:
    """A TopicView."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def id_of(self, name: str) -> UUID | None:
        return self._image.topic_ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._image.topics.get(topic_id)
        return None if topic is None else topic.name

    def partitions_of(self, name: str) -> int:
        topic = self._image.topic(name)
        return 0 if topic is None else len(topic.partitions)

    def racks_of(self, name: str, partition: int) -> frozenset[str]:
        topic = self._image.topic(name)
        if topic is None or partition >= len(topic.partitions):
            return frozenset()
        brokers = (self._image.brokers.get(each) for each in topic.partitions[partition].replicas)
        return frozenset(broker.rack for broker in brokers if broker is not None and broker.rack)

    def names(self) -> Collection[str]:
        return self._image.topic_ids.keys()
