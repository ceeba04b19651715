"""State of balancing in the metadata: the number of the last plan, and the throttle of its moves.

Kept with the settings, under a name that no request can reach, so that no record is new and older nodes pass
it on. `controller.balance_plans` writes it, and the rebalancer reads it (ADR 0056).
"""

import msgspec

from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigRecord, ConfigScope

NAME = "balance"
LAST_PLAN, THROTTLE = "plan", "throttle"

Move = tuple[str, int, tuple[int, ...]]
"""Topic, partition, and the replicas that it gets."""


class BalancePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a reassignment that balances the load. `after`: number of the last plan before the measurement.

    `by_itself`: no operator has asked for it, so balancing removes its throttle. `ends`: the moves of the
    plan `after` are complete, and its throttle is to be removed.
    """

    after: int
    by_itself: bool = False
    ends: bool = False


class OwnThrottle(msgspec.Struct, frozen=True, kw_only=True):
    """A throttle that balancing has set by itself. `rate`: in bytes a second. `moves`: those it is for.
    `whole`: topics of which all replicas are throttled, because a list of them would be too long."""

    rate: int
    moves: tuple[Move, ...]
    whole: tuple[str, ...] = ()


def last_plan(image: ClusterImage) -> int:
    """Number of the last plan that has begun; 0 if there was none."""
    return int(image.overrides(ConfigScope.CLUSTER, NAME).get(LAST_PLAN, 0))


def own_throttle(image: ClusterImage) -> OwnThrottle | None:
    """The throttle of moves that balancing has begun by itself, until it is removed."""
    text = image.overrides(ConfigScope.CLUSTER, NAME).get(THROTTLE)
    return None if text is None else msgspec.json.decode(text, type=OwnThrottle)


def plan_records(number: int, throttle: OwnThrottle | None) -> tuple[ConfigRecord, ...]:
    text = None if throttle is None else msgspec.json.encode(throttle).decode()
    return (
        ConfigRecord(scope=ConfigScope.CLUSTER, name=NAME, key=LAST_PLAN, value=str(number)),
        ConfigRecord(scope=ConfigScope.CLUSTER, name=NAME, key=THROTTLE, value=text),
    )
