"""Range assignor: each subscriber of a topic gets a range of adjacent partitions.

Topics with equal subscribers and equally many partitions are co-partitioned: a member gets the same partition
numbers of each. As in Kafka, the order of the members alone decides. The present assignment and the racks are
ignored, since a range that kept a partition would break co-partitioning.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise, starmap
from uuid import UUID

from tierlog.broker.groups.core.consumer.group_spec import Assignment, MemberSpec, TopicSpec, subscribers


class RangeAssignor:
    name = "range"

    def assign(self, members: Mapping[str, MemberSpec], topics: Mapping[UUID, TopicSpec]) -> Assignment:
        assignment: Assignment = {member_id: {} for member_id in members}
        for topic_id, served in subscribers(members).items():
            if topic_id in topics:
                ranges = _ranges(topics[topic_id].partitions, len(served))
                for member_id, partitions in zip(served, ranges, strict=False):
                    assignment[member_id][topic_id] = frozenset(partitions)
        return assignment


def _ranges(partitions: int, members: int) -> Iterator[range]:
    """The ranges of the first members; the others get nothing. If the partitions do not divide evenly, the
    first members get one more."""
    quota, extra = divmod(partitions, members)
    ends = (number * quota + min(number, extra) for number in range(min(members, partitions) + 1))
    return starmap(range, pairwise(ends))
