"""Consumer group states: the states of a consumer group and of its members, with all transitions (KIP-848).

A group's state follows from its members and epochs: `ConsumerGroup.state_now`. Every change must be one of
GROUP_TRANSITIONS. A member's state changes in reconciliation.py alone, by MEMBER_TRANSITIONS. The page
docs/reference/consumer-group-states.md is generated from this file.
"""

from enum import IntEnum, StrEnum

from tierlog.base.types import InvariantViolation


class ConsumerGroupState(StrEnum):
    """Named as ConsumerGroupDescribe and ListGroups report them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """The numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2

    @property
    def title(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


class MemberCause(StrEnum):
    """Why a member changes state. The value is the label in the generated diagram."""

    MUST_REVOKE = "its target lacks partitions that it has"
    MUST_WAIT = "other members still have partitions of its target"
    RECONCILED = "it has its whole target"


_G = ConsumerGroupState
GROUP_TRANSITIONS: dict[tuple[ConsumerGroupState, ConsumerGroupState], str] = {
    (_G.EMPTY, _G.ASSIGNING): "a member joins",
    (_G.EMPTY, _G.RECONCILING): "a member joins whose regular expression is not resolved yet",
    (_G.ASSIGNING, _G.RECONCILING): "the target assignment is computed",
    (_G.ASSIGNING, _G.STABLE): "the target assignment is computed, and all members have it",
    (_G.ASSIGNING, _G.EMPTY): "the last member leaves",
    (_G.RECONCILING, _G.STABLE): "the last member has its target assignment",
    (_G.RECONCILING, _G.ASSIGNING): "members, subscriptions or topics change",
    (_G.RECONCILING, _G.EMPTY): "the last member leaves",
    (_G.STABLE, _G.ASSIGNING): "members, subscriptions or topics change",
    (_G.STABLE, _G.RECONCILING): "a static member is away, or a member joins again",
    (_G.STABLE, _G.EMPTY): "the last member leaves",
    (_G.EMPTY, _G.DEAD): "deleted by an admin, or its last offset expired",
}

GROUP_MEANINGS = {
    _G.EMPTY: "No members. Simple consumers may commit offsets. Offsets expire after their retention.",
    _G.ASSIGNING: "The group's epoch is newer than its target assignment, which is being computed.",
    _G.RECONCILING: "Some members do not have their part of the target assignment yet.",
    _G.STABLE: "Every member has its part of the target assignment.",
    _G.DEAD: "The group is deleted.",
}

_M = MemberState
MEMBER_TRANSITIONS: dict[tuple[MemberState, MemberCause], MemberState] = {
    (state, cause): target
    for state in MemberState
    for cause, target in (
        (MemberCause.MUST_REVOKE, _M.UNREVOKED_PARTITIONS),
        (MemberCause.MUST_WAIT, _M.UNRELEASED_PARTITIONS),
        (MemberCause.RECONCILED, _M.STABLE),
    )
}

MEMBER_MEANINGS = {
    _M.STABLE: "It has its target assignment of its epoch.",
    _M.UNREVOKED_PARTITIONS: (
        "It must give partitions up, and stays in its epoch until a heartbeat shows that it does not own "
        "them. After its rebalance timeout it is removed."
    ),
    _M.UNRELEASED_PARTITIONS: "It is in the epoch of the target, and gets the rest when others release it.",
}


def check_transition(old: ConsumerGroupState, new: ConsumerGroupState) -> None:
    """Raises InvariantViolation for a transition of a group that the table does not have."""
    if old is not new and (old, new) not in GROUP_TRANSITIONS:
        raise InvariantViolation(f"no transition of a consumer group from {old} to {new}")


def next_member_state(state: MemberState, cause: MemberCause) -> MemberState:
    return MEMBER_TRANSITIONS[state, cause]


def reference_page() -> str:
    """docs/reference/consumer-group-states.md."""
    member_arrows = {
        (state, target, cause) for (state, cause), target in MEMBER_TRANSITIONS.items() if state is not target
    }
    return _PAGE.format(
        group_arrows="\n".join(
            f"    {old} --> {new}: {why}" for (old, new), why in GROUP_TRANSITIONS.items()
        ),
        group_rows="\n".join(f"| {state} | {meaning} |" for state, meaning in GROUP_MEANINGS.items()),
        member_arrows="\n".join(
            f"    {state.title} --> {target.title}: {cause}" for state, target, cause in sorted(member_arrows)
        ),
        member_rows="\n".join(f"| {state.title} | {meaning} |" for state, meaning in MEMBER_MEANINGS.items()),
    )


_PAGE = """# States of a consumer group and its members

Generated from `broker/groups/core/consumer/states.py`; a test fails when this page differs. These are the
groups of the consumer protocol (KIP-848). [Classic groups](group-states.md) have other states.

## The group

```mermaid
stateDiagram-v2
    [*] --> Empty: first ConsumerGroupHeartbeat
{group_arrows}
    Dead --> [*]
```

| state | meaning |
| --- | --- |
{group_rows}

## A member

A member changes its state when it sends a heartbeat, never while another member does.

```mermaid
stateDiagram-v2
    [*] --> Stable: joins
{member_arrows}
```

| state | meaning |
| --- | --- |
{member_rows}

After a restart of the coordinator, members keep their ids, epochs, states and partitions, each with a new
session timeout.
"""
