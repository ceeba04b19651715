"""Topics of a cluster image, as groups see them. Nothing is copied: the image never changes."""

from collections.abc import Collection, Sequence
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

    def racks_of(self, name: str) -> Sequence[frozenset[str]]:
        topic = self._image.topic(name)
        if topic is None:
            return ()
        racks = _Racks(self._image)
        return [racks[partition.replicas] for partition in topic.partitions]

    def names(self) -> Collection[str]:
        return self._image.topic_ids.keys()


class _Racks(dict[tuple[int, ...], frozenset[str]]):
    """Replicas -> their racks. Few of the replicas of a topic's partitions are different, and those of ten
    thousand partitions would take 10 ms."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def __missing__(self, replicas: tuple[int, ...]) -> frozenset[str]:
        brokers = (self._image.brokers.get(each) for each in replicas)
        racks = self[replicas] = frozenset(
            broker.rack for broker in brokers if broker is not None and broker.rack
        )
        return racks
