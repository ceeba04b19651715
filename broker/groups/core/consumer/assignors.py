"""Server-side assignors (KIP-848), by the names that members and `group.consumer.assignors` use."""

from collections.abc import Mapping

from tierlog.broker.groups.core.consumer.group_spec import (
    Assignment,
    Assignor,
    MemberSpec,
    Partitions,
    TopicSpec,
)
from tierlog.broker.groups.core.consumer.range_assignor import RangeAssignor
from tierlog.broker.groups.core.consumer.uniform_assignor import UniformAssignor

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "MemberSpec", "Partitions", "TopicSpec"]

ASSIGNORS: Mapping[str, Assignor] = {each.name: each for each in (UniformAssignor(), RangeAssignor())}
"""The first one is the default, as in Kafka."""
