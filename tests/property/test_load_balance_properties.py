"""Plans of the load balancer: they end, keep replicas apart, and stay within their bounds."""

import uuid
from dataclasses import replace as with_fields

from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from tierlog.base.types import TopicPartition
from tierlog.metadata.controller.load_balance import (
    RATE_FLOOR,
    STORED_FLOOR,
    TRIGGER,
    Bounds,
    Disks,
    LoadPlan,
    Loads,
    PartitionLoad,
    faults,
    plan_by_load,
)
from tierlog.metadata.controller.placement import host_of
from tierlog.metadata.image import BrokerImage, ClusterImage, TopicImage
from tierlog.metadata.records import PartitionRecord

TOPIC_ID = uuid.UUID(int=1)
GIB = 1 << 30


def broker(broker_id: int, rack: str) -> BrokerImage:
    return BrokerImage(
        broker_id=broker_id,
        broker_epoch=1,
        incarnation=uuid.UUID(int=broker_id),
        host=f"h{broker_id}",
        port=9092,
        admin_url="",
        rack=rack,
        fenced=False,
    )


def cluster(racks: list[str], assignment: list[tuple[int, ...]]) -> ClusterImage:
    partitions = tuple(
        PartitionRecord(TOPIC_ID, at, replicas, replicas, replicas[0], 0, 0)
        for at, replicas in enumerate(assignment)
    )
    topic = TopicImage(topic_id=TOPIC_ID, name="t", partitions=partitions)
    brokers = {at: broker(at, rack) for at, rack in enumerate(racks, 1)}
    return ClusterImage(
        cluster_id="c", brokers=Map(brokers), topics=Map({TOPIC_ID: topic}), topic_ids=Map({"t": TOPIC_ID})
    )


def loads_of(sizes: list[tuple[int, float]], disks: dict[int, int]) -> Loads:
    return Loads(
        partitions={TopicPartition("t", at): PartitionLoad(*load) for at, load in enumerate(sizes)},
        disks={one: Disks(total, total) for one, total in disks.items()},
    )


def applied(image: ClusterImage, plan: LoadPlan) -> ClusterImage:
    topic = image.topics[TOPIC_ID]
    partitions = list(topic.partitions)
    for one in plan.actions:
        assert partitions[one.partition].replicas == one.before
        partitions[one.partition] = replace(
            partitions[one.partition], replicas=one.after, in_sync=one.after, leader=one.after[0]
        )
    return replace(image, topics=Map({TOPIC_ID: replace(topic, partitions=tuple(partitions))}))


def closest(image: ClusterImage, replicas: tuple[int, ...]) -> tuple[int, int]:
    """How many pairs of replicas share a host, and a zone."""
    found = [image.brokers[one] for one in replicas]
    pairs = [(a, b) for at, a in enumerate(found) for b in found[at + 1 :]]
    return sum(host_of(a) == host_of(b) for a, b in pairs), sum(a.zone == b.zone for a, b in pairs)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[ClusterImage, Loads, Bounds]:
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", "a/1", "a/2"]), min_size=1, max_size=6))
    ids = list(range(1, len(racks) + 1))
    count = draw(st.integers(1, 12))
    factor = draw(st.integers(1, min(3, len(ids))))
    assignment = [tuple(draw(st.permutations(ids)))[:factor] for _ in range(count)]
    load = st.tuples(st.integers(0, 4 * GIB), st.floats(0, 50e6))
    sizes = draw(st.lists(load, min_size=count, max_size=count))
    disks = {one: draw(st.sampled_from([100 * GIB, 200 * GIB])) for one in ids}
    bounds = Bounds(
        max_actions=draw(st.integers(1, 5)),
        max_bytes=draw(st.sampled_from([GIB, 1000 * GIB])),
        moves_leaders=draw(st.booleans()),
        moves_replicas=draw(st.booleans()),
        fills_empty=draw(st.booleans()),
    )
    return cluster(racks, assignment), loads_of(sizes, disks), bounds


@settings(max_examples=40)
@given(clusters())
def test_plans_end_stay_within_bounds_and_keep_replicas_apart(
    given_: tuple[ClusterImage, Loads, Bounds],
) -> None:
    image, loads, bounds = given_
    for _ in range(200):
        plan = plan_by_load(image, loads, bounds)
        assert plan == plan_by_load(image, loads, bounds)
        assert len(plan.actions) <= bounds.max_actions
        assert sum(one.copied_bytes for one in plan.actions) <= bounds.max_bytes
        assert len({one.partition for one in plan.actions}) == len(plan.actions)
        for one in plan.actions:
            assert len(set(one.after)) == len(one.after) == len(one.before)
            assert len(set(one.after) - set(one.before)) <= 1 and one.after != one.before
            hosts_before, zones_before = closest(image, one.before)
            hosts, zones = closest(image, one.after)
            assert (hosts, zones) <= (hosts_before, zones_before)
            is_copied = set(one.after) != set(one.before)
            assert bounds.moves_replicas if is_copied else bounds.moves_leaders and not one.copied_bytes
            assert not set(one.after) & set(plan.left_alone) - set(one.before)
        image = applied(image, plan)
        if not plan.actions:
            return
    raise AssertionError("the plans do not end")


@settings(max_examples=40)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 4 * GIB), st.floats(0, 50e6))
def test_balanced_cluster_gives_no_moves(brokers: int, rounds: int, stored: int, rate: float) -> None:
    ids = list(range(1, brokers + 1))
    assignment = [tuple(ids[(at + step) % brokers] for step in range(2)) for at in range(rounds * brokers)]
    image = cluster([str(one) for one in ids], assignment)
    loads = loads_of([(stored, rate)] * len(assignment), dict.fromkeys(ids, 100 * GIB))
    assert plan_by_load(image, loads, Bounds()).actions == ()


def skewed() -> tuple[ClusterImage, Loads]:
    """Broker 1 leads all twelve partitions, and broker 4 has none."""
    image = cluster(["a", "b", "c", "d"], [(1, 2, 3)] * 12)
    return image, loads_of([(GIB, 1e6)] * 12, dict.fromkeys((1, 2, 3, 4), 1000 * GIB))


def test_leaders_and_replicas_spread_until_all_loads_are_near_the_average() -> None:
    image, loads = skewed()
    for _ in range(20):
        plan = plan_by_load(image, loads, Bounds())
        image = applied(image, plan)
    assert not plan.actions
    for row in plan.before:
        assert row.led_per_s == 3e6, "three leaders each"
        assert (
            abs(row.stored_bytes / (9 * GIB) - 1) <= TRIGGER and abs(row.written_per_s / 9e6 - 1) <= TRIGGER
        )
    first = plan_by_load(*skewed(), Bounds()).actions[0]
    assert "broker 4 0 B, -100%: its replica of 1.0 GiB" in first.reason


def test_empty_broker_stays_empty_if_an_operator_may_have_drained_it() -> None:
    image, loads = skewed()
    plan = plan_by_load(image, loads, Bounds(fills_empty=False))
    assert plan.left_alone == (4,) and plan.actions
    assert all(4 not in one.after and not one.copied_bytes for one in plan.actions)


def test_full_disk_gets_no_replicas() -> None:
    image, loads = skewed()
    disks = {**loads.disks, 4: Disks(1000 * GIB, 150 * GIB)}
    plan = plan_by_load(image, with_fields(loads, disks=disks), Bounds())
    assert all(4 not in one.after for one in plan.actions)


def test_small_loads_are_left_as_they_are() -> None:
    image, _ = skewed()
    small = [(STORED_FLOOR // 12, RATE_FLOOR / 12)] * 12
    loads = loads_of(small, dict.fromkeys((1, 2, 3, 4), GIB))
    assert plan_by_load(image, loads, Bounds()).actions == ()


def test_hot_partition_is_named_though_no_move_divides_it() -> None:
    image = cluster(["a", "b", "c"], [(1, 2), (2, 3), (3, 1)])
    loads = loads_of([(0, 20e6), (0, 1e6), (0, 1e6)], dict.fromkeys((1, 2, 3), GIB))
    assert plan_by_load(image, loads, Bounds()).hot == ((TopicPartition("t", 0), 20e6),)


def test_no_partition_of_an_even_topic_is_hot() -> None:
    """Each has a third of the load, as each broker should have."""
    image = cluster(["a", "b", "c"], [(1, 2), (2, 3), (3, 1)])
    loads = loads_of([(0, 20e6), (0, 21e6), (0, 19e6)], dict.fromkeys((1, 2, 3), GIB))
    assert plan_by_load(image, loads, Bounds()).hot == ()


def test_faults_name_what_must_be_over_before_a_move() -> None:
    image = cluster(["a", "b", "c"], [(1, 2), (2, 3)])
    assert faults(image) == []
    topic = image.topics[TOPIC_ID]
    moving = replace(topic.partitions[0], replicas=(1, 2, 3), adding=(3,))
    leaderless = replace(topic.partitions[1], leader=-1, full=(2,))
    sick = replace(
        image,
        brokers=image.brokers.set(3, replace(image.brokers[3], fenced=True)),
        topics=Map({TOPIC_ID: replace(topic, partitions=(moving, leaderless))}),
    )
    assert [one.text for one in faults(sick)] == [
        "broker 3 is fenced",
        "1 partition without a leader",
        "1 partition being moved",
        "1 partition with a replica out of sync",
        "1 partition with a replica on a failed or full disk",
    ]


def test_many_small_partitions_spread_too() -> None:
    """Each of them changes the load by less than a hundredth."""
    assignment = [(1, 2)] * 200 + [(2, 3)] * 120 + [(3, 1)] * 40
    image = cluster(["a", "b", "c"], assignment)
    loads = loads_of([(GIB, 1e5)] * len(assignment), dict.fromkeys((1, 2, 3), 1000 * GIB))
    plan = plan_by_load(image, loads, Bounds(max_actions=200, max_bytes=1000 * GIB))
    average = sum(row.stored_bytes for row in plan.after) / 3
    assert all(abs(row.stored_bytes / average - 1) <= TRIGGER for row in plan.after)
    assert all(abs(row.led_per_s / 12e6 - 1) <= TRIGGER for row in plan.after)
    assert {bool(one.copied_bytes) for one in plan.actions} == {True, False}, "the loads take turns"
