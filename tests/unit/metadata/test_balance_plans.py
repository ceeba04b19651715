"""Plans of balancing: one at a time, with a throttle that ends with its moves. That of an operator stays."""

from typing import Any

import pytest

from tierlog.metadata.balance_plan import BalancePlan, last_plan, own_throttle
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.throttles import FOLLOWER_REPLICAS, LEADER_REPLICAS, is_throttled
from tierlog.metadata.evolve import evolve
from tierlog.metadata.records import ConfigRecord, ConfigScope
from tierlog.protocol.errors import ErrorCode as E

World = Any
HANDOVER, COPY = ("t", 0, (2, 1)), ("t", 1, (1, 3))


@pytest.fixture
def three(world: World) -> World:
    """Three partitions on brokers 1 and 2, and a broker 3."""
    world.brokers(1, 2, 3)
    world.create("t", assignments=((0, (1, 2)), (1, (1, 2)), (2, (1, 2))))
    return world


def begin(world: World, after: int, *changes: Any, by_itself: bool = True) -> list[E]:
    plan = BalancePlan(after=after, by_itself=by_itself)
    reply = world.do(c.Reassign(changes=changes or (HANDOVER, COPY), throttle=1000, plan=plan))
    return [one.error for one in reply.partitions]


def end(world: World) -> dict[tuple[str, int], E]:
    reply = world.do(c.Reassign(changes=(), plan=BalancePlan(after=last_plan(world.image), ends=True)))
    return {(one.topic, one.partition): one.error for one in reply.partitions}


def alter(world: World, scope: ConfigScope, name: str, key: str, value: str) -> None:
    change = c.ConfigChange(key=key, operation=c.ConfigOperation.SET, value=value)
    world.do(c.AlterConfigs(resources=(c.ConfigResource(scope=scope, name=name, changes=(change,)),)))


def test_plan_is_refused_if_another_has_begun_since_its_measurement(three: World) -> None:
    assert begin(three, 0, HANDOVER) == [E.NONE] and own_throttle(three.image) is None
    assert not is_throttled(three.image), "a handover copies nothing"
    assert begin(three, 0, ("t", 2, (2, 1))) == [E.REASSIGNMENT_IN_PROGRESS]
    assert begin(three, 0, ("t", 2, (2, 1)), by_itself=False) == [E.REASSIGNMENT_IN_PROGRESS]
    assert three.partition("t", 2).replicas == (1, 2)
    assert begin(three, 1, ("t", 2, (2, 1)), by_itself=False) == [E.NONE] and last_plan(three.image) == 2


def test_plan_is_refused_while_a_partition_is_being_moved(three: World) -> None:
    three.do(c.Reassign(changes=(("t", 2, (1, 3)),)))
    assert begin(three, 0) == [E.REASSIGNMENT_IN_PROGRESS] * 2
    assert three.partition("t", 0).replicas == (1, 2)
    assert begin(three, 0, by_itself=False) == [E.REASSIGNMENT_IN_PROGRESS] * 2


def test_plan_without_a_possible_move_is_none(three: World) -> None:
    assert begin(three, 0, ("gone", 0, (1, 2))) == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert last_plan(three.image) == 0


def test_throttle_is_removed_when_its_moves_are_complete_and_not_before(three: World) -> None:
    assert begin(three, 0) == [E.NONE, E.NONE]
    throttle = own_throttle(three.image)
    assert throttle is not None and (throttle.rate, throttle.moves) == (1000, (COPY,))
    assert end(three) == {} and is_throttled(three.image)
    three.in_sync(1, 2, 3, number=1)
    assert not three.partition("t", 1).is_reassigned
    assert end(three) == {("t", 1): E.NONE}
    assert not is_throttled(three.image) and own_throttle(three.image) is None
    assert end(three) == {} and last_plan(three.image) == 1


def test_end_says_which_moves_have_failed(three: World) -> None:
    three.create("u", assignments=((0, (1, 2)),))
    begin(three, 0, COPY, ("u", 0, (2, 3)))
    three.do(c.Reassign(changes=(("t", 1, None),)))
    three.do(c.DeleteTopics(topics=(c.TopicRef(name="u"),)))
    assert end(three) == {("t", 1): E.INVALID_REPLICA_ASSIGNMENT, ("u", 0): E.UNKNOWN_TOPIC_OR_PARTITION}
    assert not is_throttled(three.image)


def test_throttle_of_an_operator_holds_a_plan_by_itself_alone(three: World) -> None:
    alter(three, ConfigScope.TOPIC, "t", LEADER_REPLICAS, "2:1")
    assert begin(three, 0) == [E.REASSIGNMENT_IN_PROGRESS] * 2
    assert begin(three, 0, by_itself=False) == [E.NONE] * 2
    assert own_throttle(three.image) is None, "the operator's command removes it"


def test_throttle_that_an_operator_sets_during_the_moves_stays(three: World) -> None:
    begin(three, 0)
    alter(three, ConfigScope.TOPIC, "t", FOLLOWER_REPLICAS, "1:3,2:1")
    alter(three, ConfigScope.BROKER, "3", "leader.replication.throttled.rate", "7")
    three.in_sync(1, 2, 3, number=1)
    assert end(three) == {("t", 1): E.NONE}
    assert dict(three.image.topic_overrides("t")) == {FOLLOWER_REPLICAS: "2:1"}
    rates = {one: dict(three.image.overrides(ConfigScope.BROKER, str(one))) for one in (1, 2, 3)}
    assert rates[3]["leader.replication.throttled.rate"] == "7"
    assert set(rates[1].values()) == {"1000"}, "a replica is still throttled, so the rates stay"


def test_throttle_of_more_replicas_than_a_setting_can_name_ends_too(three: World) -> None:
    three.brokers(4, 5)
    numbers = range(1400)
    three.create("wide", assignments=tuple((number, (1, 2, 3, 4)) for number in numbers))
    begin(three, 0, COPY, *(("wide", number, (1, 2, 3, 5)) for number in numbers))
    assert three.image.topic_overrides("wide")[LEADER_REPLICAS] == "*"
    alter(three, ConfigScope.TOPIC, "t", LEADER_REPLICAS, "*")  # by an operator, during the moves
    three.do(c.Reassign(changes=tuple(("wide", number, None) for number in numbers)))
    three.in_sync(1, 2, 3, number=1)
    assert end(three)["wide", 0] == E.INVALID_REPLICA_ASSIGNMENT
    assert not three.image.topic_overrides("wide")
    assert dict(three.image.topic_overrides("t")) == {LEADER_REPLICAS: "*"}


def test_throttle_of_a_topic_that_refuses_its_removal_is_removed_once_it_accepts(three: World) -> None:
    begin(three, 0, COPY)
    three.in_sync(1, 2, 3, number=1)
    for key, value in (("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")):  # by an earlier build
        record = ConfigRecord(scope=ConfigScope.TOPIC, name="t", key=key, value=value)
        three.image = evolve(three.image, record)
    assert end(three) == {} and is_throttled(three.image) and own_throttle(three.image) is not None
    alter(three, ConfigScope.TOPIC, "t", "min.compaction.lag.ms", "7")
    assert end(three) == {("t", 1): E.NONE}
    assert not is_throttled(three.image) and own_throttle(three.image) is None


def test_rate_that_an_operator_changes_during_the_moves_stays(three: World) -> None:
    begin(three, 0)
    alter(three, ConfigScope.BROKER, "3", "leader.replication.throttled.rate", "7")
    three.in_sync(1, 2, 3, number=1)
    end(three)
    limited = {name for scope, name in three.image.configs if scope is ConfigScope.BROKER}
    assert limited == {"3"} and not three.image.topic_overrides("t")


def test_plan_of_an_operator_leaves_the_mark_of_a_throttle(three: World) -> None:
    begin(three, 0, COPY)
    three.in_sync(1, 2, 3, number=1)
    assert begin(three, 1, ("t", 2, (1, 3)), by_itself=False) == [E.NONE]
    assert end(three) == {("t", 1): E.NONE}
    assert dict(three.image.topic_overrides("t")) == {LEADER_REPLICAS: "2:1,2:2", FOLLOWER_REPLICAS: "2:3"}


def test_state_of_balancing_is_out_of_reach_of_requests(three: World) -> None:
    begin(three, 0)
    before = own_throttle(three.image)
    alter(three, ConfigScope.CLUSTER, "balance", "plan", "9")
    assert last_plan(three.image) == 1 and own_throttle(three.image) == before
