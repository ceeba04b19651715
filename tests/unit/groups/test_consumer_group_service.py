"""Consumer groups (KIP-848) through the group service: its computations, settings and handlers."""

import asyncio
import dataclasses
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from group_broker import SETTINGS, OneBroker
from loop_steps import LoopSteps
from manual_clock import ManualClock

from tierlog.base.tasks import TaskGroup
from tierlog.broker.groups import computations
from tierlog.broker.groups.core.consumer.assignors import ASSIGNORS
from tierlog.broker.groups.core.events import ComputeAssignment, RegexesResolved, ResolveRegexes
from tierlog.broker.groups.heartbeat_pace import SHORTEST_MS, HeartbeatPace
from tierlog.metadata.controller.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    CreatePartitions,
    CreateTopics,
    MorePartitions,
    NewTopic,
)
from tierlog.metadata.records import ConfigScope
from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.messages import consumer_group_describe, offset_fetch
from tierlog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

AT_ONCE = dataclasses.replace(SETTINGS, group_consumer_assignment_interval_ms=0)


def joins(member_id: str = "a", **more: object) -> ConsumerGroupHeartbeatRequest:
    fields = {"group_id": "g", "member_id": member_id, "member_epoch": 0, "rebalance_timeout_ms": 1000}
    names = {"subscribed_topic_names": ["t"], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(**{**fields, **names, **more})  # type: ignore[arg-type]


def beats(epoch: int, member_id: str = "a", **more: object) -> ConsumerGroupHeartbeatRequest:
    fields = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
    return ConsumerGroupHeartbeatRequest(**{**fields, "topic_partitions": None, **more})  # type: ignore[arg-type]


def assigned(response: ConsumerGroupHeartbeatResponse) -> list[int]:
    topics = [] if response.assignment is None else response.assignment.topic_partitions
    return [number for topic in topics for number in topic.partitions]


@pytest.fixture
async def broker(tmp_path):
    async with OneBroker(tmp_path, AT_ONCE) as running:
        await running.service.shards.create_topic()
        await running.create("t")
        yield running


@pytest.mark.parametrize("cost", [0, 1 << 30], ids=["in a thread", "at once"])
async def test_member_gets_its_assignment_with_the_first_response(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, cost: int
) -> None:
    monkeypatch.setattr(computations, "ASSIGNMENT_COST_MAX", cost)
    response = await broker.call("ConsumerGroupHeartbeat", 1, joins())
    assert (response.error_code, response.member_id, assigned(response)) == (E.NONE, "a", [0])


@pytest.mark.parametrize("cost", [0, 1 << 30], ids=["in a thread", "at once"])
async def test_topics_of_a_regular_expression_are_assigned(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, cost: int
) -> None:
    monkeypatch.setattr(computations, "MATCHES_MAX", cost)
    joined = joins(subscribed_topic_names=None, subscribed_topic_regex="t.*")
    response = await broker.call("ConsumerGroupHeartbeat", 1, joined)
    while not assigned(response):
        await asyncio.sleep(0)  # the result of the thread gets its turn
        response = await broker.call("ConsumerGroupHeartbeat", 1, beats(response.member_epoch))
    assert assigned(response) == [0]


async def test_many_waiting_members_are_answered_in_several_turns(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computations, "ASSIGNMENT_COST_MAX", 0)
    begun = [broker.begin("ConsumerGroupHeartbeat", 1, joins(f"m{number:03}")) for number in range(90)]
    first, *others = [await each for each in begun]
    assert {response.error_code for response in others} == {E.NONE}
    assert len({response.member_epoch for response in others}) == 1 and first.member_epoch > 0


async def test_result_for_a_discarded_core_is_dropped(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computations, "ASSIGNMENT_COST_MAX", 0)
    waiting = asyncio.ensure_future(broker.call("ConsumerGroupHeartbeat", 1, joins()))
    await asyncio.sleep(0)
    [shard] = [each for each in broker.service.shards if each.core.list_groups()]
    shard._fail()
    assert (await waiting).error_code == E.NOT_COORDINATOR


def test_failed_assignor_is_reported_to_the_core() -> None:
    class Broken:
        name = "uniform"

        def assign(self, members: object, topics: object) -> dict[str, object]:
            raise ZeroDivisionError

    request = ComputeAssignment(group_id="g", epoch=3, assignor=Broken(), members={}, topics={})  # type: ignore[arg-type]
    computed = computations.assign(request)
    assert computed.request is request and computed.assignment is None
    request = ComputeAssignment(group_id="g", epoch=3, assignor=ASSIGNORS["range"], members={}, topics={})
    assert computations.assign(request).assignment == {}


def test_expressions_match_whole_names_and_invalid_ones_match_none() -> None:
    request = ResolveRegexes(
        group_id="g", version=2, patterns=frozenset({"a.*", "b", "["}), names=("ab", "b", "bb")
    )
    found = computations.resolve(request)
    assert found.topics == {"a.*": {"ab"}, "b": {"b"}, "[": frozenset()}


@pytest.mark.parametrize("most", [0, 1 << 30], ids=["in turns", "at once"])
async def test_expressions_match_topics_that_the_member_may_describe(
    broker: OneBroker, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(computations, "MATCHES_MAX", most)
    monkeypatch.setattr(computations, "CHECKS_PER_TURN", 10)
    names = [f"a{number:03}" for number in range(100)]
    checks = 0

    def may_describe(name: str) -> bool:
        nonlocal checks
        checks += 1
        return name.endswith("0")

    tasks = TaskGroup(lambda name, failure: pytest.fail(f"{name}: {failure}"))
    results = asyncio.Queue[computations.Computed]()
    shard: Any = SimpleNamespace(name="s", core=object(), submit=results.put_nowait)
    request = ResolveRegexes(
        group_id="g",
        version=2,
        patterns=frozenset({"a.*", "a00.", "["}),
        names=(*names, "b"),
        may_describe=may_describe,
    )
    with LoopSteps(__file__, functions=["may_describe"]) as steps:
        computations.Computations(tasks).perform(shard, request)
        found = await results.get()
    await tasks.close()
    assert isinstance(found, RegexesResolved) and found.request is request
    tens = {name for name in names if name.endswith("0")}
    assert found.topics == {"a.*": tens, "a00.": {"a000"}, "[": frozenset()}
    assert (checks, steps.most) == ((100, 10) if most == 0 else (101, 101))


async def test_settings_of_a_group_count_with_the_next_heartbeat(broker: OneBroker) -> None:
    async def change(scope: ConfigScope, name: str, key: str, value: str | None) -> None:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        changes = (ConfigChange(key=key, operation=operation, value=value),)
        resource = ConfigResource(scope=scope, name=name, changes=changes)
        await broker.metadata.submit(AlterConfigs(resources=(resource,)))

    joined = await broker.call("ConsumerGroupHeartbeat", 1, joins())
    assert joined.heartbeat_interval_ms == SHORTEST_MS
    key = "consumer.heartbeat.interval.ms"
    for value, expected in (("7000", 7000), ("1", 5000), ("99999", 15_000), (None, SHORTEST_MS)):
        await change(ConfigScope.GROUP, "g", key, value)
        response = await broker.call("ConsumerGroupHeartbeat", 1, beats(joined.member_epoch))
        assert response.heartbeat_interval_ms == expected
    await change(ConfigScope.CLUSTER, "", "group.consumer.assignment.interval.ms", "70")
    settings = broker.service._settings_of.consumer("g")
    assert settings.assignment_interval_ms == 70


@pytest.mark.parametrize(
    ("per_second", "members", "expected"),
    [(40, 1, 1_000), (40, 40, 1_000), (40, 100, 2_500), (40, 1_000, 5_000), (0, 1, 5_000)],
)
def test_few_members_send_heartbeats_more_often(per_second: int, members: int, expected: int) -> None:
    pace = HeartbeatPace(per_second, lambda: members, ManualClock())
    assert pace.interval_ms(5_000) == expected


def test_members_are_counted_once_a_second() -> None:
    counts, clock = iter([100, 160]), ManualClock()
    pace = HeartbeatPace(40, lambda: next(counts), clock)
    found = []
    for step_ms in (0, 999, 1):
        clock.now += step_ms
        found.append(pace.interval_ms(5_000))
    assert found == [2_500, 2_500, 4_000]


async def test_members_of_all_groups_share_the_rate(broker: OneBroker) -> None:
    for member, group in (("a", "g"), ("b", "g"), ("c", "i")):
        await broker.call("ConsumerGroupHeartbeat", 1, joins(member, group_id=group))
    assert broker.service._count_consumers() == 3


LARGE, CALLS_MAX = 3_000, 600
"""Partitions of a large topic, and function calls in one turn of the event loop, which are far fewer."""


@pytest.mark.parametrize("rack", [None, "a"])
async def test_work_in_one_turn_does_not_grow_with_the_partitions_of_a_topic(
    broker: OneBroker, rack: str | None
) -> None:
    large = NewTopic(name="large", partitions=LARGE)
    await broker.metadata.submit(CreateTopics(topics=(large,)))
    with LoopSteps() as steps:
        request = joins(subscribed_topic_names=["large"], rack_id=rack)
        joined = await broker.call("ConsumerGroupHeartbeat", 1, request)
        await broker.call("ConsumerGroupHeartbeat", 1, beats(joined.member_epoch, member_epoch=-1))
    assert len(assigned(joined)) == LARGE
    assert steps.most < CALLS_MAX


async def test_new_partitions_are_assigned(broker: OneBroker) -> None:
    joined = await broker.call("ConsumerGroupHeartbeat", 1, joins())
    growth = MorePartitions(name="t", count=3)
    await broker.metadata.submit(CreatePartitions(topics=(growth,)))
    response = await broker.call("ConsumerGroupHeartbeat", 1, beats(joined.member_epoch))
    assert assigned(response) == [0, 1, 2]


async def test_member_without_an_id_gets_one_in_version_0(broker: OneBroker) -> None:
    response = await broker.call("ConsumerGroupHeartbeat", 0, joins(""))
    assert (response.error_code, len(response.member_id)) == (E.NONE, 22)
    assert (await broker.call("ConsumerGroupHeartbeat", 1, joins(""))).error_code == E.INVALID_REQUEST


async def test_broker_without_the_consumer_protocol_refuses_it(tmp_path) -> None:
    settings = dataclasses.replace(SETTINGS, group_coordinator_rebalance_protocols=("classic",))
    async with OneBroker(tmp_path, settings) as broker:
        response = await broker.call("ConsumerGroupHeartbeat", 1, joins())
        assert response.error_code == E.UNSUPPORTED_VERSION
        request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=["g"])
        response = await broker.call("ConsumerGroupDescribe", 1, request)
        assert response.groups[0].error_code == E.UNSUPPORTED_VERSION


async def test_memory_of_members_is_bounded(tmp_path) -> None:
    settings = dataclasses.replace(AT_ONCE, group_members_max_bytes=100)
    async with OneBroker(tmp_path, settings) as broker:
        await broker.service.shards.create_topic()
        await broker.create("t")
        response = await broker.call("ConsumerGroupHeartbeat", 1, joins())
        assert response.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert broker.service.member_bytes == 0


async def test_large_group_is_described_in_several_turns(broker: OneBroker) -> None:
    count = 600
    for number in range(count):
        await broker.call("ConsumerGroupHeartbeat", 1, joins(str(uuid.UUID(int=number))))
    request = consumer_group_describe.ConsumerGroupDescribeRequest(
        group_ids=["g", "no", "g"], include_authorized_operations=True
    )
    with LoopSteps("broker/handlers") as steps:
        response = await broker.call("ConsumerGroupDescribe", 1, request)
    group, missing = response.groups
    assert len(group.members) == count and group.authorized_operations > 0
    assert (missing.error_code, missing.authorized_operations) == (E.GROUP_ID_NOT_FOUND, -(1 << 31))
    assert steps.most < steps.total / 2


async def test_member_fetches_offsets_only_in_its_epoch(broker: OneBroker) -> None:
    joined = await broker.call("ConsumerGroupHeartbeat", 1, joins())
    for epoch, error in ((joined.member_epoch, E.NONE), (joined.member_epoch - 1, E.STALE_MEMBER_EPOCH)):
        group = offset_fetch.OffsetFetchRequestGroup(group_id="g", member_id="a", member_epoch=epoch)
        request = offset_fetch.OffsetFetchRequest(groups=[group])
        response = await broker.call("OffsetFetch", 9, request)
        assert response.groups[0].error_code == error
