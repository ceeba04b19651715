"""Group states: the states of a classic group and all transitions, in one table.

Only `Group.move(cause, ...)` changes a group's state, by this table. docs/reference/group-states.md is
generated from it; a test compares the page with `reference_page()`. Only group.py calls `next_state`.
"""

from enum import StrEnum

from tierlog.base.types import InvariantViolation


class GroupState(StrEnum):
    """Named as DescribeGroups and ListGroups report them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Cause(StrEnum):
    """Why a group changes state. The value is the label in the generated state diagram."""

    MEMBERSHIP_CHANGED = "a member joins, leaves, expires or changes its protocols"
    JOIN_COMPLETED = "all members joined, or the join phase timed out"
    NO_MEMBER_JOINED = "the join phase ended without members"
    ASSIGNMENT_STORED = "the leader's assignment is stored"
    GROUP_DELETED = "deleted by an admin, or its last offset expired"


TRANSITIONS: dict[tuple[GroupState, Cause], GroupState] = {
    (GroupState.EMPTY, Cause.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
    (GroupState.EMPTY, Cause.GROUP_DELETED): GroupState.DEAD,
    (GroupState.PREPARING_REBALANCE, Cause.JOIN_COMPLETED): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Cause.NO_MEMBER_JOINED): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, Cause.ASSIGNMENT_STORED): GroupState.STABLE,
    (GroupState.COMPLETING_REBALANCE, Cause.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, Cause.MEMBERSHIP_CHANGED): GroupState.PREPARING_REBALANCE,
}

MEANINGS = {
    GroupState.EMPTY: (
        "No members. Simple consumers may commit offsets. Offsets expire after their retention."
    ),
    GroupState.PREPARING_REBALANCE: (
        "The join phase: the coordinator holds JoinGroup responses until every member has joined."
    ),
    GroupState.COMPLETING_REBALANCE: "Members know their generation; the leader computes the assignment.",
    GroupState.STABLE: "Every member has its assignment, or can get it with SyncGroup.",
    GroupState.DEAD: "The group is deleted. DescribeGroups also names a missing group Dead.",
}


def next_state(state: GroupState, cause: Cause) -> GroupState:
    """Raises InvariantViolation for a transition that the table does not have."""
    if (state, cause) not in TRANSITIONS:
        raise InvariantViolation(f"no transition from {state} for {cause.name}")
    return TRANSITIONS[state, cause]


def reference_page() -> str:
    """docs/reference/group-states.md."""
    arrows = "\n".join(f"    {state} --> {target}: {cause}" for (state, cause), target in TRANSITIONS.items())
    rows = "\n".join(f"| {state} | {meaning} |" for state, meaning in MEANINGS.items())
    return _PAGE.format(arrows=arrows, rows=rows)


_PAGE = """# States of a classic consumer group

Generated from `broker/groups/core/classic/states.py`; a test fails when this page differs.

```mermaid
stateDiagram-v2
    [*] --> Empty: first JoinGroup or OffsetCommit
{arrows}
    Dead --> [*]
```

| state | meaning |
| --- | --- |
{rows}

After a restart a group is Stable if its stored metadata has members, and Empty otherwise. The members keep
their ids and assignments, each with a new session timeout, and continue without a rebalance.
"""
