"""Subscriptions of a consumer group: the hash by which it notices that its topics changed."""

from collections.abc import Iterable
from hashlib import blake2b

from tierlog.broker.groups.core.topic_view import TopicView


def topics_hash(names: Iterable[str], topics: TopicView) -> int:
    """A hash of the topics' ids and partition counts; 0 without topics."""
    found = [(name, topics.id_of(name), topics.partitions_of(name)) for name in sorted(names)]
    known = [each for each in found if each[1] is not None]
    if not known:
        return 0
    return int.from_bytes(blake2b(repr(known).encode(), digest_size=8).digest(), signed=True)
