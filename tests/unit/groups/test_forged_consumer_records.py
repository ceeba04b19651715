"""Forged records of consumer groups, which no coordinator wrote, do not break the coordinator."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierlog.broker.coordinators.core.stored import FormatError, StoredRecord
from tierlog.broker.groups.core.consumer import formats as f
from tierlog.broker.groups.core.events import ExpireOffsets

INT32 = st.one_of(st.integers(-2, 8), st.sampled_from((-(2**31), 2**31 - 2, 2**31 - 1)))
INT64 = st.sampled_from((-(2**63), -1, 0, 1_000_000, 2**63 - 1))
NAMES = st.sampled_from(("", "a", "b"))
OPTIONAL_NAMES = st.one_of(st.none(), NAMES)
TOPIC_NAMES = st.lists(st.sampled_from(("t", "u", "gone")), unique=True).map(
    lambda names: tuple(sorted(names))
)
TOPIC_IDS = st.integers(1, 5).map(lambda number: UUID(int=number))  # 2 and later: those of the bench
PATTERNS = st.sampled_from(("", "[tu]", "v"))
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"
CLASSIC = st.builds(
    f.ClassicMemberMetadata,
    session_timeout_ms=INT32,
    supported_protocols=st.lists(
        st.builds(f.ClassicProtocol, name=NAMES, metadata=st.sampled_from((b"", b"\0", SUBSCRIPTION))),
        max_size=2,
    ),
)
EPOCHS = st.dictionaries(TOPIC_IDS, st.dictionaries(INT32, INT32, max_size=3), max_size=2)
VALUES = {
    f.ConsumerGroupMetadataKey: st.builds(f.ConsumerGroupMetadata, epoch=INT32, metadata_hash=INT64),
    f.TargetAssignmentMetadataKey: st.builds(
        f.TargetAssignmentMetadata, assignment_epoch=INT32, assignment_timestamp=INT64
    ),
    f.MemberMetadataKey: st.builds(
        f.MemberMetadata,
        instance_id=st.none(),
        rack_id=OPTIONAL_NAMES,
        client_id=NAMES,
        client_host=NAMES,
        subscribed_topic_names=TOPIC_NAMES,
        subscribed_topic_regex=PATTERNS,
        rebalance_timeout_ms=INT32,
        server_assignor=st.sampled_from((None, "", "range", "mine")),
        classic_member_metadata=st.one_of(st.none(), CLASSIC),
    ),
    f.TargetAssignmentMemberKey: st.builds(
        f.TargetAssignmentMember,
        partitions=st.dictionaries(TOPIC_IDS, st.frozensets(INT32, max_size=3), max_size=2),
    ),
    f.CurrentMemberAssignmentKey: st.builds(
        f.CurrentMemberAssignment,
        member_epoch=INT32,
        previous_member_epoch=INT32,
        state=st.integers(-1, 3),
        assigned_partitions=EPOCHS,
        partitions_pending_revocation=EPOCHS,
    ),
    f.RegularExpressionKey: st.builds(
        f.RegularExpression, topics=TOPIC_NAMES.map(list), version=INT64, timestamp=INT64
    ),
}
KEYS = st.one_of(
    st.builds(f.ConsumerGroupMetadataKey, st.just("g")),
    st.builds(f.TargetAssignmentMetadataKey, st.just("g")),
    st.builds(f.MemberMetadataKey, st.just("g"), NAMES),
    st.builds(f.TargetAssignmentMemberKey, st.just("g"), NAMES),
    st.builds(f.CurrentMemberAssignmentKey, st.just("g"), NAMES),
    st.builds(f.RegularExpressionKey, st.just("g"), PATTERNS),
)


@st.composite
def records(draw) -> StoredRecord:
    key = draw(KEYS)
    value = draw(st.one_of(VALUES[type(key)], VALUES[type(key)], VALUES[type(key)], st.none()))
    return StoredRecord(f.encode_key(key), None if value is None else f.encode_value(value))


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(forged=st.lists(records(), max_size=12), topics=st.sampled_from(("", "t", "tu")))
def test_any_records_of_consumer_groups_are_handled(bench, forged, topics):
    b = bench()
    for record in forged:
        with suppress(FormatError):
            b.core.replay(*record)
    b._perform(b.core.finish_replay(b.now_ms, b.view()))
    b.core.check()
    for member in ("a", "b"):
        b.consume(member, topics=topics, subscribed_regex="[tu]")
        b.consume(member, 2, owned="t0")
        b.commit(1, member_id=member, generation=2)
    b.join_cooperative()
    b.join_cooperative("a")
    b.advance(20_000)
    b.beat("a", 3)
    b.sync("a", 3)
    b.send_topics("t")
    b.consume("c", instance_id="a", topics=topics)
    b.leave("a", "b")
    b.send(ExpireOffsets())
    b.advance(10_000_000)
    assert b.waiting == []
    b.delete()
    b.restart()


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**30 + 1, -1])
def test_epoch_that_no_group_reaches_is_refused(bench, epoch):
    b = bench()
    key = f.encode_key(f.ConsumerGroupMetadataKey("g"))
    with pytest.raises(FormatError):
        b.core.replay(key, f.encode_value(f.ConsumerGroupMetadata(epoch=epoch, metadata_hash=0)))
