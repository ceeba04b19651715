"""Commits that name a topic which was deleted and created again: no offset is skipped (promise 25)."""

from tierlog.base.types import TopicPartition
from tierlog.protocol.errors import ErrorCode as E

T0 = TopicPartition("t", 0)


def stable(bench):
    b = bench()
    epoch = b.response(b.consume("m1", topics="t")).member_epoch
    assert partition_error(b, b.commit(7, member_id="m1", generation=epoch, by_name=True)) == E.NONE
    return b, epoch


def partition_error(b, token):
    response = b.response(token)
    return response.error or dict(response.partitions)[T0]


def test_member_that_has_the_deleted_topic_does_not_move_the_offset_of_the_new_one(bench):
    b, epoch = stable(bench)
    b.recreate("t")
    assert partition_error(b, b.commit(8, member_id="m1", generation=epoch, by_name=True)) == (
        E.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert not b.core.offsets("g")
    b.consume("m1", epoch)  # the coordinator asks it to give the deleted topic up
    now = b.response(b.tokens[-1]).member_epoch
    assert partition_error(b, b.commit(8, member_id="m1", generation=now, by_name=True)) == (
        E.UNKNOWN_TOPIC_OR_PARTITION
    )
    b.consume("m1", now, owned="")
    now = b.response(b.tokens[-1]).member_epoch
    assert partition_error(b, b.commit(0, member_id="m1", generation=now, by_name=True)) == E.NONE


def test_coordinator_that_has_not_seen_the_new_topic_yet_refuses_the_commit_too(bench):
    b, epoch = stable(bench)
    b.recreate("t", seen=False)
    assert partition_error(b, b.commit(8, member_id="m1", generation=epoch, by_name=True)) == (
        E.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_commits_with_topic_ids_and_of_unassigned_topics_are_accepted(bench):
    b, epoch = stable(bench)
    b.recreate("t")
    assert partition_error(b, b.commit(0, member_id="m1", generation=epoch)) == E.NONE
    other = b.commit(3, topic="u", member_id="m1", generation=epoch, by_name=True)
    assert dict(b.response(other).partitions) == {TopicPartition("u", 0): E.NONE}
