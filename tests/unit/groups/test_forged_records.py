"""Forged records of `__consumer_offsets`, which no coordinator wrote, do not break the coordinator."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierlog.broker.coordinators.core.effects import TimerFired
from tierlog.broker.coordinators.core.stored import FormatError, StoredRecord
from tierlog.broker.groups.core.events import ExpireOffsets, Leaver
from tierlog.broker.groups.core.formats import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    encode_group,
    encode_key,
    encode_offset,
)
from tierlog.protocol.errors import ErrorCode as E

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TIMEOUTS = st.sampled_from((0, 1, 10_000, 2**31 - 1, -1, -(2**31)))
NAMES = st.sampled_from(("", "a", "b", "c", "range", "consumer"))  # never a new member's id, which is random
TOPICS = st.sampled_from(("t", "u", "gone", ""))
GROUPS = st.sampled_from(("g", "h", ""))
SUBSCRIPTIONS = st.one_of(
    st.just(b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"), st.binary(max_size=20)
)
MEMBERS = st.builds(
    StoredMember,
    member_id=NAMES,
    group_instance_id=st.one_of(st.none(), NAMES),
    client_id=NAMES,
    client_host=NAMES,
    rebalance_timeout_ms=TIMEOUTS,
    session_timeout_ms=TIMEOUTS,
    subscription=SUBSCRIPTIONS,
    assignment=st.binary(max_size=8),
)
STORED_GROUPS = st.builds(
    StoredGroup,
    protocol_type=NAMES,
    generation=st.one_of(INT32, st.sampled_from((1, 2**31 - 1))),
    protocol=st.one_of(st.none(), NAMES),
    leader=st.one_of(st.none(), NAMES),
    state_timestamp_ms=INT64,
    members=st.lists(MEMBERS, max_size=4),
)
OFFSETS = st.builds(CommittedOffset, INT64, INT32, NAMES, INT64, INT64, st.uuids())
RECORDS = st.one_of(
    st.tuples(
        st.builds(GroupKey, GROUPS).map(encode_key),
        st.one_of(st.none(), st.binary(max_size=40), STORED_GROUPS.map(encode_group)),
    ),
    st.tuples(
        st.builds(OffsetKey, GROUPS, TOPICS, INT32).map(encode_key),
        st.one_of(st.none(), st.binary(max_size=40), OFFSETS.map(encode_offset)),
    ),
    st.tuples(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=40))),
)


def load(b: SimpleNamespace, records: list[tuple[bytes, bytes | None]]) -> None:
    """Load the records as a coordinator shard does, without those that it cannot decode. Then restart it."""
    for key, value in records:
        try:
            b.core.replay(key, value)
        except FormatError:
            continue
        b.log.append(StoredRecord(key, value))
    b.restart()


@settings(
    max_examples=300,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(records=st.lists(RECORDS, max_size=12))
def test_any_records_and_timers_are_handled(bench, records):
    """After any records, every member that joins and every offset commit gets its response."""
    b = bench(group_max_size=2, offsets_retention_ms=1000)
    load(b, records)
    for group in ("g", "h"):
        b.join(group=group)
        b.commit(5, group=group)
    for _ in range(5):
        fire_all(b)
        b.send(ExpireOffsets())
    assert b.waiting == []
    b.restart()
    fire_all(b)


def fire_all(b: SimpleNamespace) -> None:
    """Fire all pending timers, whether they are due or not."""
    for key in list(b.timers):
        b.timers.pop(key, None)
        b.send(TimerFired(key=key))


def test_silent_static_member_with_a_short_rebalance_timeout_causes_no_busy_loop(bench):
    b = bench()
    for instance in ("i", "j"):
        b.join(instance=instance, rebalance_timeout_ms=1)
    b.fire_due_timers()
    for member_id in ("m2", "m1"):
        b.sync(member_id, 1, {"m1": b"", "m2": b""})
    b.leave(Leaver("m2", "j"))
    b.advance(5_000)
    assert 0 < len([line for line in b.lines if "join timer" in line]) < 10, b.transcript


def test_generation_wraps_after_the_largest_int32(bench):
    b = bench()
    load(
        b,
        [
            (
                encode_key(GroupKey("g")),
                encode_group(StoredGroup(protocol_type="consumer", generation=2**31 - 1)),
            )
        ],
    )
    token = b.join()
    b.fire_due_timers()
    assert b.response(token).generation == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"members": 2},
        {"member_id": ""},
        {"protocol": None},
        {"protocol_type": ""},
        {"generation": -1},
        {"session_timeout_ms": -5},
    ],
)
def test_invalid_group_record_is_refused_and_the_group_does_not_change(bench, fields):
    b = bench()
    [member_id] = b.stable()
    key, value = encode_key(GroupKey("g")), encode_group(stored(**fields))
    with pytest.raises(FormatError):
        b.core.replay(key, value)
    assert b.error(b.beat(member_id, 1)) == E.NONE


def stored(members=1, member_id="m9", session_timeout_ms=10_000, **fields):
    """A stored group, valid by default. `members`: how often it lists its member."""
    member = StoredMember(
        member_id=member_id, rebalance_timeout_ms=30_000, session_timeout_ms=session_timeout_ms
    )
    values = {"protocol_type": "consumer", "generation": 5, "protocol": "range", "leader": "m9", **fields}
    return StoredGroup(**values, state_timestamp_ms=1, members=[member] * members)
