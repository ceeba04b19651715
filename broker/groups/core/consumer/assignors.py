"""Server-side assignors (KIP-848), by the names that members and `group.consumer.assignors` use."""

from collections.abc import Mapping

from tierlog.broker.groups.core.consumer.group_spec import (
    Assignment,
    Assignor,
    MemberSpec,
    Partitions,
    TopicSpec,
)

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "MemberSpec", "Partitions", "TopicSpec"]

ASSIGNORS: Mapping[str, Assignor] = {}
