"""Conversations about consumer groups (KIP-848) that are compared with Apache Kafka's
(test_groups_like_kafka). In a request, `$t` is a topic of two partitions with the id `$id`. The groups assign
at once, because Kafka answers a heartbeat within the assignment interval with the old assignment, and tierlog
waits for the new one.
"""

import struct
from collections.abc import Mapping
from typing import Any

from group_cases import NO_ID, Ask, Step, commit, delete_offsets, describe, join, leave, subscription, sync

GROUP = "$t-c"


def beat(member: str, epoch: int, *, group: str = GROUP, **more: Any) -> dict[str, Any]:
    return {"group_id": group, "member_id": f"$t-{member}" if member else "", "member_epoch": epoch, **more}


def first(member: str, *, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """The heartbeat with which a member joins."""
    names = {"subscribed_topic_names": ["$t"], "rebalance_timeout_ms": 30_000, "topic_partitions": []}
    return beat(member, epoch, **{**names, **more})


def owns(*partitions: int, topic_id: str = "$id") -> dict[str, Any]:
    return {"topic_partitions": [{"topic_id": topic_id, "partitions": list(partitions)}]}


def heart(request: dict[str, Any], version: int = 1, client: int = 1) -> Ask:
    return Ask("ConsumerGroupHeartbeat", version, request, client)


def shown(*groups: str, version: int = 1, **more: Any) -> Ask:
    return Ask("ConsumerGroupDescribe", version, {"group_ids": list(groups or (GROUP,)), **more})


def classic_protocols() -> list[dict[str, Any]]:
    """The protocols of a consumer that subscribes to `$t`."""
    return [{"name": "range", "metadata": lambda names: subscription(names["t"])}]


def both_partitions(names: Mapping[str, str]) -> bytes:
    """ConsumerProtocolAssignment, version 0."""
    topic = names["t"].encode()
    return struct.pack(f">hih{len(topic)}siiii", 0, 1, len(topic), topic, 2, 0, 1, -1)


def classic_member(**more: Any) -> list[Step]:
    """A member of the classic protocol that owns all partitions of `$t`."""
    assigned = [{"member_id": "$m1", "assignment": both_partitions}]
    fields = {"group": GROUP, "protocols": classic_protocols(), **more}
    return [
        Ask("JoinGroup", 5, join(**fields)),
        Ask("JoinGroup", 5, join("$m1", **fields)),
        Ask("SyncGroup", 3, sync("$m1", 1, group=GROUP, assignments=assigned)),
    ]


def classic_beat(generation: int) -> Ask:
    return Ask("Heartbeat", 4, {"group_id": GROUP, "generation_id": generation, "member_id": "$m1"})


STATIC, OTHER = {"instance_id": "i"}, {"instance_id": "j"}

CONSUMER_GROUP_CASES: dict[str, list[Step]] = {
    "consumer heartbeats that cannot be": [
        heart(request, version)
        for version in (0, 1)
        for request in (
            first("a", group_id=""),
            first("a", group_id=" "),
            first("", epoch=1),
            first("a", instance_id=""),
            first("a", rack_id=""),
            first("a", rebalance_timeout_ms=-1),
            first("a", topic_partitions=None),
            first("a", **owns(0)),
            first("a", subscribed_topic_names=None),
            first("a", server_assignor="sticky"),
            beat("a", -3),
            beat("a", -2),
            beat("a", -1),
            beat("a", 1),
            beat("a", 1, group="$t"),
        )
    ]
    + [heart(first("")), shown()],
    "consumer joins": [
        heart(first("a")),
        shown(),
        heart(beat("a", 1)),
        heart(beat("a", 1, **owns(0, 1))),
        shown(version=0),
        heart(beat("a", 2)),
        heart(beat("a", 0)),
        heart(beat("unknown", 1)),
        heart(first("a")),
        heart(beat("a", 1, subscribed_topic_names=[])),
        shown(),
        heart(beat("a", -1)),
        shown(),
        heart(beat("a", 1)),
        heart(beat("a", -1)),
        heart(first("a")),
    ],
    "consumer fields": [
        heart(first("a", rack_id="r", server_assignor="range")),
        shown(include_authorized_operations=True),
        heart(beat("a", 1, **owns(0, 1), rack_id="s")),
        heart(beat("a", 2, **owns(0, 1), rebalance_timeout_ms=7)),
        heart(beat("a", 2, server_assignor="uniform")),
        shown(),
    ],
    "consumer of an unknown topic": [
        heart(first("a", subscribed_topic_names=["$t-no"])),
        shown(),
        heart(beat("a", 1, **owns(0, topic_id=NO_ID))),
    ],
    "consumer regular expressions": [
        heart(first("a", subscribed_topic_names=None, subscribed_topic_regex="[")),
        heart(first("a", subscribed_topic_names=None, subscribed_topic_regex="(?!x)")),
        heart(first("b", subscribed_topic_regex="")),
        shown(),
        heart(beat("b", -1)),
        heart(first("c", subscribed_topic_names=None, subscribed_topic_regex="no-topic-.*")),
        shown(),
    ],
    "static consumers": [
        heart(first("a", **STATIC)),
        heart(first("b", **STATIC), client=2),
        heart(beat("b", 1, **STATIC), client=2),
        heart(beat("b", -2, **STATIC), client=2),
        heart(beat("a", 1, **OTHER)),
        heart(beat("a", 1)),
        heart(beat("a", -2)),
        heart(beat("a", -2, **STATIC)),
        shown(),
        heart(first("b", **STATIC), client=2),
        shown(),
        heart(beat("a", 1, **STATIC)),
        heart(beat("b", -1, **STATIC), client=2),
        heart(beat("b", 1, **STATIC), client=2),
        shown(),
    ],
    "commits of consumers": [
        heart(first("a")),
        *[
            Ask("OffsetCommit", version, commit(member, epoch, GROUP, **more))
            for version in (8, 9)
            for member, epoch, more in (
                ("$t-a", 1, {}),
                ("$t-a", 0, {}),
                ("$t-a", 2, {}),
                ("$t-a", -1, {}),
                ("unknown", 1, {}),
                ("", -1, {}),
                ("", 1, {}),
                ("$t-a", 1, {"group_instance_id": "no"}),
            )
        ],
        *[
            Ask("OffsetFetch", version, {"groups": [{"group_id": GROUP, "topics": topics, **more}]})
            for version in (8, 9)
            for topics in (None, [{"name": "$t", "partition_indexes": [0, 1]}])
            for more in (
                (
                    {"member_id": "$t-a", "member_epoch": 1},
                    {"member_id": "$t-a", "member_epoch": 0},
                    {"member_id": "$t-a", "member_epoch": 9},
                    {"member_id": "unknown", "member_epoch": 1},
                    {"member_id": "$t-a", "member_epoch": -1},
                    {},
                )
                if version == 9
                else ({},)
            )
        ],
        Ask("OffsetDelete", 0, delete_offsets("$t", group=GROUP)),
        Ask("OffsetDelete", 0, delete_offsets("$t-no", group=GROUP)),
        Ask("DeleteGroups", 2, {"groups_names": [GROUP]}),
        heart(beat("a", -1)),
        Ask("OffsetCommit", 9, commit("", -1, GROUP)),
        Ask("OffsetCommit", 9, commit("$t-a", 1, GROUP)),
        Ask("OffsetDelete", 0, delete_offsets("$t", group=GROUP)),
        Ask("DeleteGroups", 2, {"groups_names": [GROUP]}),
        shown(),
    ],
    "consumer groups for older clients": [
        heart(first("a")),
        *[Ask("DescribeGroups", version, describe(GROUP)) for version in (0, 5, 6)],
        *[
            Ask("ListGroups", 5, request)
            for request in (
                {},
                {"types_filter": ["Consumer"]},
                {"types_filter": ["classic"]},
                {"states_filter": ["reconciling", "Stable", "ASSIGNING"]},
                {"states_filter": ["Empty"]},
            )
        ],
        Ask("ListGroups", 4, {}),
        Ask("SyncGroup", 5, sync("$t-a", 1, group=GROUP)),
        Ask("Heartbeat", 4, {"group_id": GROUP, "generation_id": 1, "member_id": "$t-a"}),
        Ask("LeaveGroup", 5, leave({"member_id": "unknown"}, group=GROUP)),
        Ask("LeaveGroup", 5, leave({"member_id": "$t-a"}, group=GROUP)),
        shown("$t", "$t-no", ""),
        shown(GROUP, "$t-no", version=0, include_authorized_operations=True),
    ],
    "consumer joins a classic group": [
        *classic_member(),
        heart(first("a"), client=2),
        shown(),
        classic_beat(1),
        Ask("ListGroups", 5, {}),
        Ask("JoinGroup", 5, join("$m1", GROUP, protocols=classic_protocols())),
        Ask("SyncGroup", 5, sync("$m1", 2, group=GROUP)),
        classic_beat(2),
        heart(beat("a", 2), client=2),
        shown(),
        heart(beat("a", -1), client=2),
        Ask("DescribeGroups", 6, describe(GROUP)),
        shown(),
    ],
    "classic consumer joins a consumer group": [
        heart(first("a"), client=2),
        Ask("JoinGroup", 5, join("", GROUP, protocols=classic_protocols())),
        Ask("JoinGroup", 5, join("$m1", GROUP, protocols=classic_protocols())),
        shown(),
        Ask("OffsetCommit", 9, commit("$m1", 3, GROUP)),
        heart(beat("a", 2), client=2),
        Ask("LeaveGroup", 5, leave({"member_id": "$m1"}, group=GROUP)),
    ],
    "group of another kind stays classic": [
        *classic_member(protocol_type="connect"),
        heart(first("a"), client=2),
        Ask("DescribeGroups", 6, describe(GROUP)),
    ],
}
