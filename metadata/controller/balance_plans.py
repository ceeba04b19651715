"""Plans of balancing by load: one at a time, each as a whole, and the end of their throttles (ADR 0056).

Brokers measure the load, and several of them may do so at once. A plan that was measured before another one
began is refused, so the bound on its moves holds for the cluster.
"""

from dataclasses import dataclass

from tierlog.config.topic import ALL_REPLICAS
from tierlog.metadata.balance_plan import (
    BalancePlan,
    Move,
    OwnThrottle,
    last_plan,
    own_throttle,
    plan_records,
)
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import configs
from tierlog.metadata.controller.decision import Decision
from tierlog.metadata.controller.reassignment import reassign, under_way
from tierlog.metadata.controller.throttles import REPLICAS, is_throttled, unthrottle
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigRecord, PartitionRecord
from tierlog.protocol.errors import ErrorCode

_NOTHING = Decision((), c.Reassigned(partitions=()))


@dataclass(frozen=True, slots=True)
class _Moved:
    """State of a partition that a plan moves. `now`: None if it does not exist any more."""

    move: Move
    now: PartitionRecord | None

    @property
    def outcome(self) -> c.NamedOutcome:
        topic, number, target = self.move
        error = ErrorCode.NONE
        if self.now is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif set(self.now.replicas) != set(target):
            error = ErrorCode.INVALID_REPLICA_ASSIGNMENT  # cancelled, or replaced by another one
        return c.NamedOutcome(topic=topic, partition=number, error=error)


def decide_moves(image: ClusterImage, command: c.Reassign) -> Decision[c.Reassigned]:
    """Begin all moves that are possible, or end the throttle of a plan. The reply has an error for each move
    of a plan if another one has begun, a partition is being moved, or, for balancing by itself, a throttle is
    set."""
    plan = command.plan
    if plan is None:
        return reassign(image, command)
    if plan.ends:
        return _end(image, plan)
    if (why := _why_not(image, plan)) is not None:
        outcomes = (
            c.NamedOutcome(topic=name, partition=at, error=ErrorCode.REASSIGNMENT_IN_PROGRESS, message=why)
            for name, at, _ in command.changes
        )
        return Decision((), c.Reassigned(partitions=tuple(outcomes)))
    begun = reassign(image, command)
    if not begun.records:
        return begun
    throttle = _throttle(image, command, begun) if plan.by_itself else own_throttle(image)
    return Decision((*begun.records, *plan_records(plan.after + 1, throttle)), begun.reply)


def are_moving(image: ClusterImage, moves: tuple[Move, ...]) -> bool:
    return any(one.now is not None and one.now.is_reassigned for one in _moved(image, moves))


def _why_not(image: ClusterImage, plan: BalancePlan) -> str | None:
    if last_plan(image) != plan.after:
        return "another plan has begun since the load was measured: measure again"
    if any(under_way(image)):
        return "partitions are being moved: wait until they have moved"
    if plan.by_itself and is_throttled(image):
        return "a replication throttle is set: remove it first"
    return None


def _throttle(image: ClusterImage, command: c.Reassign, begun: Decision[c.Reassigned]) -> OwnThrottle | None:
    """The throttle of the moves that have begun; None if all of them only change leaders."""
    moves = []
    for (topic, number, target), outcome in zip(command.changes, begun.reply.partitions, strict=True):
        found = None if outcome.error else image.topic(topic)
        if found is not None and target and set(target) - set(found.partitions[number].replicas):
            moves.append((topic, number, target))
    if not moves or not command.throttle:
        return None
    settings = (one for one in begun.records if isinstance(one, ConfigRecord))
    whole = {one.name for one in settings if one.key in REPLICAS and one.value == ALL_REPLICAS}
    return OwnThrottle(rate=command.throttle, moves=tuple(moves), whole=tuple(sorted(whole)))


def _end(image: ClusterImage, plan: BalancePlan) -> Decision[c.Reassigned]:
    """Remove the throttle, and nothing that an operator has set since. The reply has an outcome for each
    move, and is empty if it is too early or too late, or if a resource refuses the change, because its other
    settings are invalid: the throttle then stays this plan's, and its end is tried again."""
    throttle = own_throttle(image)
    if throttle is None or last_plan(image) != plan.after or are_moving(image, throttle.moves):
        return _NOTHING
    partitions = {(topic, number) for topic, number, _ in throttle.moves}
    removed = configs.alter(image, unthrottle(image, partitions, str(throttle.rate), throttle.whole))
    if any(one.error for one in removed.reply.resources):
        return Decision(removed.records, _NOTHING.reply)
    outcomes = tuple(one.outcome for one in _moved(image, throttle.moves))
    return Decision((*removed.records, *plan_records(plan.after, None)), c.Reassigned(partitions=outcomes))


def _moved(image: ClusterImage, moves: tuple[Move, ...]) -> list[_Moved]:
    found = []
    for move in moves:
        topic = image.topic(move[0])
        exists = topic is not None and move[1] < len(topic.partitions)
        found.append(_Moved(move, topic.partitions[move[1]] if topic is not None and exists else None))
    return found
