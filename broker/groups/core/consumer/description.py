"""Description of a consumer group, for ConsumerGroupDescribe."""

from collections.abc import Collection, Mapping
from uuid import UUID

from tierlog.broker.groups.core.consumer.group import NO_TARGET, ConsumerGroup
from tierlog.broker.groups.core.consumer.member import ConsumerMember
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe(group: ConsumerGroup, assignors: tuple[str, ...], topics: TopicView) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=str(group.state),
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_name(assignors),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: TopicView) -> Member:
    metadata = member.metadata
    return Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.subscribed_topic_names),
        subscribed_topic_regex=metadata.subscribed_topic_regex or "",
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(group.targets.get(member.member_id, NO_TARGET), topics),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Collection[int]], topics: TopicView) -> Assignment:
    """Without topics that were deleted."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
