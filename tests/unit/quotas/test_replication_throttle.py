"""Replication throttles, with a manual clock."""

import uuid
from typing import Any

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.quotas.replication import WAIT_MS_MAX, ReplicationThrottles, Throttle
from tierlog.config.background import UNLIMITED_RATE
from tierlog.config.sources import settings_from
from tierlog.metadata import records as r
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigScope

EMPTY = ClusterImage(cluster_id="c")
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
HERE = 2


def partition(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


@pytest.mark.parametrize("piece", [100, 999, 10_000])
def test_throttle_reaches_its_rate_and_exceeds_it_by_at_most_a_second_and_a_piece(piece: int) -> None:
    rate, seconds = 5_000, 60
    throttle = Throttle()
    throttle.configure(rate, {"t": None})
    passed = 0
    for now_ms in range(0, seconds * 1000, 10):
        if throttle.available_bytes(now_ms):
            throttle.record(piece)
            passed += piece
    assert rate * (seconds - 1) <= passed <= rate * (seconds + 1) + piece


def test_bytes_are_allowed_after_the_rest_time() -> None:
    throttle = Throttle()
    throttle.configure(1_000, {"t": None})
    now_ms = 10_000
    assert throttle.available_bytes(now_ms) == 1_000 and throttle.wait_ms() == 0
    throttle.record(1_300)
    assert throttle.available_bytes(now_ms) == 0
    now_ms += throttle.wait_ms()
    assert throttle.available_bytes(now_ms) > 0
    throttle.record(1_000_000)
    assert throttle.wait_ms() == WAIT_MS_MAX  # a rate may be raised at any time


def test_byte_rate_is_that_of_recent_bytes() -> None:
    throttle = Throttle()
    throttle.configure(1_000, {"t": None})
    assert throttle.byte_rate(0) == 0
    for now_ms in range(0, 20_000, 100):
        if throttle.available_bytes(now_ms):
            throttle.record(100)
    assert throttle.byte_rate(20_000) == pytest.approx(1_000, rel=0.1)
    assert throttle.byte_rate(60_000) == 0


def test_rate_of_0_blocks_until_it_is_raised() -> None:
    throttle = Throttle()
    throttle.configure(0, {"t": None})
    assert (
        throttle.is_set,
        throttle.available_bytes(0),
        throttle.available_bytes(100_000),
        throttle.wait_ms(),
    ) == (
        True,
        0,
        0,
        1000,
    )
    throttle.configure(10, {"t": None})
    assert throttle.available_bytes(101_000) == 10


def configured(*changes: tuple[ConfigScope, str, str, str], **settings: str) -> ReplicationThrottles:
    records: list[Any] = [
        r.TopicCreated(topic_id=uuid.UUID(int=n), name=name) for n, name in ((1, "t"), (2, "u"))
    ]
    records += [
        r.ConfigRecord(scope=scope, name=at, key=key, value=value) for scope, at, key, value in changes
    ]
    throttles = ReplicationThrottles(settings_from({"node.id": str(HERE), **settings}))
    throttles.follow(EMPTY, evolve_all(EMPTY, records))
    return throttles


def test_only_listed_replicas_of_this_broker_are_throttled() -> None:
    throttle = configured(
        (ConfigScope.BROKER, "2", LEADER_RATE, "1000"),
        (ConfigScope.TOPIC, "t", LEADER_REPLICAS, "0:1,0:2, 3:2,4:12"),
        (ConfigScope.TOPIC, "u", LEADER_REPLICAS, "*"),
    ).leader
    assert throttle.is_set
    assert [number for number in range(6) if throttle.is_throttled(partition(number))] == [0, 3]
    assert throttle.is_throttled(partition(9, "u")) and not throttle.is_throttled(partition(0, "v"))


def test_throttle_needs_a_rate_and_listed_replicas() -> None:
    named = configured((ConfigScope.TOPIC, "t", LEADER_REPLICAS, "*"))
    rated = configured((ConfigScope.CLUSTER, "", LEADER_RATE, "1"))
    assert not named.leader.is_set and not rated.leader.is_set


def test_broker_rate_overrides_cluster_rate_and_file() -> None:
    names = (ConfigScope.TOPIC, "t", "follower.replication.throttled.replicas", "*")
    of_all = (ConfigScope.CLUSTER, "", FOLLOWER_RATE, "2000")
    own = (ConfigScope.BROKER, "2", FOLLOWER_RATE, "3000")
    others = (ConfigScope.BROKER, "1", FOLLOWER_RATE, "9")
    for changes, rate in (((names,), 1000), ((names, of_all, others), 2000), ((names, of_all, own), 3000)):
        throttle = configured(*changes, **{FOLLOWER_RATE: "1000"}).follower
        assert throttle.available_bytes(60_000) == rate


def test_a_throttle_ends_with_its_settings() -> None:
    throttles = configured(
        (ConfigScope.BROKER, "2", LEADER_RATE, "1000"), (ConfigScope.TOPIC, "t", LEADER_REPLICAS, "*")
    )
    assert throttles.leader.is_set
    throttles.follow(
        ClusterImage(cluster_id="c", configs=EMPTY.configs.set((ConfigScope.CLUSTER, "x"), {})), EMPTY
    )  # type: ignore[arg-type]
    assert not throttles.leader.is_set and throttles.leader.available_bytes(0) <= UNLIMITED_RATE
