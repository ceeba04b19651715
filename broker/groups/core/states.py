"""The states of a classic group and every transition between them: one table, from which the reference page
is drawn.

Nothing else in tierlog assigns a group's state: `Group.move(cause, ...)` looks it up here. Called by
group.py, and by the test that keeps docs/reference/group-states.md equal to `reference_page()`.
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
    """Why a group changes state; the text is the arrow's label."""

    MEMBERSHIP_CHANGED = "a member joins, leaves, expires or changes its protocols"
    JOIN_COMPLETED = "all members joined, or the join phase timed out"
    NOBODY_JOINED = "the join phase ended without members"
    ASSIGNMENT_STORED = "the leader's assignment is stored"
    GROUP_DELETED = "deleted by an admin, or its last offset expired"


_STATES = GroupState
TRANSITIONS: dict[tuple[GroupState, Cause], GroupState] = {
    (_STATES.EMPTY, Cause.MEMBERSHIP_CHANGED): _STATES.PREPARING_REBALANCE,
    (_STATES.EMPTY, Cause.GROUP_DELETED): _STATES.DEAD,
    (_STATES.PREPARING_REBALANCE, Cause.JOIN_COMPLETED): _STATES.COMPLETING_REBALANCE,
    (_STATES.PREPARING_REBALANCE, Cause.NOBODY_JOINED): _STATES.EMPTY,
    (_STATES.COMPLETING_REBALANCE, Cause.ASSIGNMENT_STORED): _STATES.STABLE,
    (_STATES.COMPLETING_REBALANCE, Cause.MEMBERSHIP_CHANGED): _STATES.PREPARING_REBALANCE,
    (_STATES.STABLE, Cause.MEMBERSHIP_CHANGED): _STATES.PREPARING_REBALANCE,
}

MEANINGS = {
    _STATES.EMPTY: "No members. Offsets may be committed by simple consumers, and expire in time.",
    _STATES.PREPARING_REBALANCE: "The join phase: JoinGroup requests wait until each member has sent one.",
    _STATES.COMPLETING_REBALANCE: "Members know their generation; the leader is computing the assignment.",
    _STATES.STABLE: "Every member has, or may get by SyncGroup, its part of the assignment.",
    _STATES.DEAD: "The group is gone; whoever still asks must find its coordinator again.",
}


def next_state(state: GroupState, cause: Cause) -> GroupState:
    """Raises InvariantViolation for a transition that the table does not have."""
    if (state, cause) not in TRANSITIONS:
        raise InvariantViolation(f"a group in state {state} cannot move because {cause}")
    return TRANSITIONS[state, cause]


def reference_page() -> str:
    """docs/reference/group-states.md."""
    arrows = "\n".join(f"    {state} --> {target}: {cause}" for (state, cause), target in TRANSITIONS.items())
    rows = "\n".join(f"| {state} | {meaning} |" for state, meaning in MEANINGS.items())
    return _PAGE.format(arrows=arrows, rows=rows)


_PAGE = """# States of a classic consumer group

Generated from `broker/groups/core/states.py`; a test fails when this page differs.

```mermaid
stateDiagram-v2
    [*] --> Empty: first JoinGroup or OffsetCommit
{arrows}
    Dead --> [*]
```

| state | meaning |
| --- | --- |
{rows}

After a restart a group is Stable if its stored metadata names members, and Empty if not: the members come
back as known, each with a new session timeout, and go on without a rebalance.
"""
