"""Conversations about groups whose responses are compared with Apache Kafka's (test_groups_like_kafka).

A conversation is a list of steps, over up to three connections. In a request, `$t` is a topic of two
partitions (and the name of its group, which committed an offset), `$id` is its id, and `$m1` the member id
that the last JoinGroup of connection 1 returned. A JoinGroup or SyncGroup that must wait for other members is
posted, and its response taken later.
"""

import struct
from typing import Any, NamedTuple

SESSION_MS = 30_000
NO_ID = "00000000-0000-0000-0000-000000000007"
ZERO_ID = "00000000-0000-0000-0000-000000000000"


class Ask(NamedTuple):
    """Sends a request and takes the response."""

    api: str
    version: int
    request: dict[str, Any]
    client: int = 1


class Post(NamedTuple):
    """Sends a request whose response is taken later."""

    api: str
    version: int
    request: dict[str, Any]
    client: int = 1


class Take(NamedTuple):
    """Takes the response of a posted request."""

    api: str
    version: int
    client: int = 1


class Until(NamedTuple):
    """Waits until the group is in a state: a posted request has taken effect."""

    state: str
    group: str = "$t-g"


Step = Ask | Post | Take | Until


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription, version 0. Kafka answers no JoinGroup with other bytes as metadata of a
    consumer."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def join(member: str = "", group: str = "$t-g", *protocols: str, **more: Any) -> dict[str, Any]:
    offered = [{"name": name, "metadata": subscription(name)} for name in protocols or ("range",)]
    timeouts = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS}
    fields = {"group_id": group, "member_id": member, "protocol_type": "consumer", "protocols": offered}
    return {**fields, **timeouts, **more}


def sync(member: str, generation: int, *assigned: str, group: str = "$t-g", **more: Any) -> dict[str, Any]:
    assignments = [{"member_id": name, "assignment": b"for a member"} for name in assigned]
    fields = {"group_id": group, "generation_id": generation, "member_id": member}
    kinds = {"protocol_type": "consumer", "protocol_name": "range"}
    return {**fields, **kinds, "assignments": assignments, **more}


def beat(member: str, generation: int, group: str = "$t-g", **more: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id": generation, "member_id": member, **more}


def leave(*members: dict[str, Any], group: str = "$t-g") -> dict[str, Any]:
    return {"group_id": group, "members": list(members)}


def commit(member: str = "", generation: int = -1, group: str = "$t-g", **more: Any) -> dict[str, Any]:
    requested = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "x"}
    fields = {"group_id": group, "member_id": member, "generation_id_or_member_epoch": generation}
    return {**fields, "topics": [{"name": "$t", "partitions": [requested]}], **more}


def describe(*groups: str, **more: Any) -> dict[str, Any]:
    return {"groups": list(groups), **more}


def delete_offsets(*topics: str, group: str = "$t-g", partition: int = 0) -> dict[str, Any]:
    partitions = [{"partition_index": partition}]
    return {"group_id": group, "topics": [{"name": name, "partitions": partitions} for name in topics]}


def member_joins(version: int = 5, group: str = "$t-g", client: int = 1, **more: Any) -> list[Step]:
    """A member alone in its group, which has its assignment. Its generation is 1 in a new group."""
    steps: list[Step] = [Ask("JoinGroup", version, join(group=group, **more), client)]
    mine = f"$m{client}"
    if version >= 4 and not more.get("group_instance_id"):
        steps.append(Ask("JoinGroup", version, join(mine, group, **more), client))
    kinds = {"protocol_type": more.get("protocol_type", "consumer")}
    steps.append(Ask("SyncGroup", min(version, 5), sync(mine, 1, mine, group=group, **kinds), client))
    return steps


STATIC = {"group_instance_id": "i"}
SECOND = {"group_instance_id": "j"}

GROUP_CASES: dict[str, list[Step]] = {
    **{f"member, JoinGroup v{version}": [*member_joins(version)] for version in range(10)},
    "joins that cannot be": [
        Ask("JoinGroup", version, request)
        for version in (3, 9)
        for request in (
            join(session_timeout_ms=1),
            join(session_timeout_ms=1_800_001),
            join(session_timeout_ms=-1),
            join(rebalance_timeout_ms=-5, member_id="unknown"),
            join("unknown"),
            join(group=""),
            join(protocols=[]),
            join(protocol_type=""),
            join("unknown", "$t"),
            join("unknown", **STATIC),
        )
    ],
    "joins that do not fit the group": [
        *member_joins(),
        Ask("JoinGroup", 5, join("", "$t-g", "roundrobin"), 2),
        Ask("JoinGroup", 3, join(protocol_type="connect"), 2),
        Ask("JoinGroup", 5, join("$m1", "$t-g", "range", session_timeout_ms=1), 2),
        Ask("JoinGroup", 5, join("$m1-"), 2),
    ],
    "pending member": [  # not described: Kafka shows its group only after a later write to that log
        Ask("JoinGroup", 5, join()),
        Ask("Heartbeat", 4, beat("$m1", 0)),
        Ask("SyncGroup", 5, sync("$m1", 0)),
        Ask("OffsetCommit", 8, commit("$m1", 0)),
        Ask("LeaveGroup", 5, leave({"member_id": "$m1"})),
        Ask("JoinGroup", 5, join("$m1")),
    ],
    "syncs": [
        *member_joins(),
        Ask("SyncGroup", 5, sync("$m1", 1)),
        *[
            Ask("SyncGroup", version, request)
            for version in (0, 3, 5)
            for request in (
                sync("$m1", 1, "$m1"),
                sync("$m1", 2),
                sync("$m1", 0),
                sync("unknown", 1),
                sync("unknown", 1, group="$t-no"),
                sync("unknown", 1, group=""),
                sync("$m1", 1, protocol_type="connect"),
                sync("$m1", 1, protocol_name="roundrobin"),
                sync("$m1", 1, group_instance_id="no"),
            )
        ],
        Ask("SyncGroup", 5, sync("$m1", 1, protocol_type=None)),
        Ask("SyncGroup", 5, sync("$m1", 1, protocol_name=None)),
    ],
    "heartbeats": [
        *member_joins(),
        *[
            Ask("Heartbeat", version, request)
            for version in range(5)
            for request in (
                beat("$m1", 1),
                beat("$m1", 2),
                beat("$m1", -1),
                beat("unknown", 1),
                beat("", 1),
                beat("unknown", 1, "$t-no"),
                beat("unknown", 1, ""),
                beat("unknown", 1, "$t"),
                beat("$m1", 1, group_instance_id="no"),
            )
        ],
    ],
    "leaves": [
        *[
            step
            for version in range(3)
            for step in (
                *member_joins(group=f"$t-{version}"),
                Ask("LeaveGroup", version, {"group_id": f"$t-{version}", "member_id": "unknown"}),
                Ask("LeaveGroup", version, {"group_id": f"$t-{version}", "member_id": ""}),
                Ask("LeaveGroup", version, {"group_id": f"$t-{version}", "member_id": "$m1"}),
                Ask("LeaveGroup", version, {"group_id": "$t-no", "member_id": "unknown"}),
                Ask("LeaveGroup", version, {"group_id": "", "member_id": "unknown"}),
                Ask("DescribeGroups", 6, describe(f"$t-{version}")),
            )
        ],
    ],
    "leaves of several": [
        *member_joins(**STATIC),
        *[
            Ask("LeaveGroup", version, leave(*members))
            for version in (3, 5)
            for members in (
                (),
                ({"member_id": "unknown"}, {"member_id": ""}),
                ({"member_id": "unknown", **STATIC},),
                ({"member_id": "", **SECOND},),
                ({"member_id": "$m1", **SECOND},),
            )
        ],
        Ask("LeaveGroup", 5, leave({"member_id": "", **STATIC}, {"member_id": "", **STATIC})),
        Ask("DescribeGroups", 6, describe("$t-g")),
        Ask("LeaveGroup", 5, leave({"member_id": "unknown"}, group="$t-no")),
        Ask("LeaveGroup", 5, leave({"member_id": "unknown"}, group="")),
    ],
    **{
        f"static member, JoinGroup v{version}": [
            *member_joins(version, **STATIC),
            Ask("JoinGroup", version, join("unknown", **STATIC), 2),
            Ask("JoinGroup", version, join(**STATIC), 2),
            Ask("Heartbeat", 4, beat("$m1", 1, **STATIC)),
            Ask("Heartbeat", 4, beat("$m1", 1)),
            Ask("SyncGroup", 5, sync("$m1", 1, **STATIC)),
            Ask("OffsetCommit", 8, commit("$m1", 1, **STATIC)),
            Ask("JoinGroup", version, join("$m1", **STATIC)),
            Ask("LeaveGroup", 5, leave({"member_id": "$m1", **STATIC})),
            Ask("Heartbeat", 4, beat("$m2", 1, **STATIC), 2),
            Ask("SyncGroup", 5, sync("$m2", 1, "$m2", **STATIC), 2),
            Ask("DescribeGroups", 6, describe("$t-g")),
        ]
        for version in (5, 8, 9)
    },
    "two members": [
        *member_joins(3),
        Post("JoinGroup", 3, join(), 2),
        Until("PreparingRebalance"),
        Ask("Heartbeat", 4, beat("$m1", 1)),
        Ask("SyncGroup", 5, sync("$m1", 1)),
        Ask("OffsetCommit", 8, commit("$m1", 1)),
        Ask("DeleteGroups", 2, {"groups_names": ["$t-g"]}),
        Ask("JoinGroup", 3, join("$m1")),
        Take("JoinGroup", 3, 2),
        Ask("Heartbeat", 4, beat("$m2", 2), 2),
        Ask("OffsetCommit", 8, commit("$m1", 2)),
        Ask("OffsetCommit", 8, commit("$m1", 1)),
        Ask("DescribeGroups", 6, describe("$t-g")),
        Post("SyncGroup", 5, sync("$m2", 2), 2),
        Ask("SyncGroup", 5, sync("$m1", 2, "$m1")),
        Take("SyncGroup", 5, 2),
        Ask("DescribeGroups", 6, describe("$t-g", include_authorized_operations=True)),
        Ask("LeaveGroup", 5, leave({"member_id": "$m2"}), 2),
        Ask("Heartbeat", 4, beat("$m1", 2)),
        Ask("Heartbeat", 4, beat("$m2", 2)),
    ],
    "commits": [
        *member_joins(),
        *[
            Ask("OffsetCommit", version, request)
            for version in (2, 5, 8, 9)
            for request in (
                commit("$m1", 1),
                commit("$m1", 2),
                commit("$m1", 0),
                commit("$m1", -1),
                commit("unknown", 1),
                commit("", 1),
                commit(),
                commit("unknown", 1, "$t"),
                commit("", 1, "$t"),
                commit("unknown", -1, "$t"),
                commit("unknown", 1, "$t-no"),
                commit("", 1, "$t-no"),
                commit(group=""),
                commit("$m1", 1, topics=[]),
                commit("$m1", 1, group_instance_id="no"),
            )
        ],
        Ask("OffsetFetch", 8, {"groups": [{"group_id": "$t-no", "topics": None}]}),
    ],
    "commits of odd offsets": [
        Ask("OffsetCommit", version, commit(group="$t", topics=[{"name": name, "partitions": [requested]}]))
        for version in (2, 9)
        for name, requested in (
            ("$t", {"partition_index": 0, "committed_offset": -1}),
            ("$t", {"partition_index": 0, "committed_offset": -5}),
            ("$t", {"partition_index": 0, "committed_offset": 1 << 40, "committed_leader_epoch": 9}),
            ("$t", {"partition_index": 1, "committed_offset": 3, "committed_metadata": None}),
            ("$t", {"partition_index": -1, "committed_offset": 3}),
            ("$t", {"partition_index": 2, "committed_offset": 3}),
            ("$t", {"partition_index": 0, "committed_offset": 3, "committed_metadata": "x" * 4097}),
            ("$t", {"partition_index": 0, "committed_offset": 3, "committed_metadata": "x" * 4096}),
            ("$t-no", {"partition_index": 0, "committed_offset": 3}),
            ("", {"partition_index": 0, "committed_offset": 3}),
        )
    ]
    + [Ask("OffsetFetch", 8, {"groups": [{"group_id": "$t", "topics": None}]})],
    "commits of several partitions": [
        Ask(
            "OffsetCommit",
            9,
            commit(
                group="$t",
                topics=[
                    {
                        "name": "$t",
                        "partitions": [{"partition_index": n, "committed_offset": n} for n in order],
                    },
                    {"name": "$t-no", "partitions": [{"partition_index": 0, "committed_offset": 1}]},
                ],
            ),
        )
        for order in ((0, 1), (1, 7, 0), (0, 0), ())
    ],
    "fetches of offsets": [
        *member_joins(),
        Ask("OffsetCommit", 8, commit("$m1", 1)),
        *[
            Ask("OffsetFetch", version, {"group_id": group, "topics": topics})
            for version in (1, 2, 5, 7)
            for group in ("$t", "$t-g", "$t-no", "")
            for topics in (
                [
                    {"name": "$t", "partition_indexes": [1, 0, 7]},
                    {"name": "$t-no", "partition_indexes": [0]},
                ],
                [],
                *([None] if version >= 2 and group else []),
            )
        ],
        *[
            Ask("OffsetFetch", version, {"groups": [{"group_id": group, "topics": topics, **more}]})
            for version in (8, 9)
            for group in ("$t", "$t-g", "$t-no", "")
            for topics in ([{"name": "$t", "partition_indexes": [1, 0, 7]}], [], *([None] if group else []))
            for more in (
                ({}, {"member_id": "$m1", "member_epoch": 1}, {"member_id": "unknown", "member_epoch": 5})
                if version == 9
                else ({},)
            )
        ],
        Ask("OffsetFetch", 8, {"groups": []}),
        Ask("OffsetFetch", 8, {"groups": [{"group_id": name} for name in ("$t-no", "$t", "$t-g")]}),
    ],
    "offsets of topics by id": [
        *member_joins(),
        *[
            Ask("OffsetCommit", 10, commit(member, generation, group, topics=[topic]))
            for member, generation, group in (
                ("", -1, "$t"),
                ("$m1", 1, "$t-g"),
                ("$m1", 2, "$t-g"),
                ("unknown", 1, "$t-no"),
            )
            for topic in (
                {"topic_id": "$id", "partitions": [{"partition_index": 1, "committed_offset": 7}]},
                {"topic_id": "$id", "partitions": [{"partition_index": 9, "committed_offset": 7}]},
                {"topic_id": NO_ID, "partitions": [{"partition_index": 1, "committed_offset": 7}]},
                {"topic_id": ZERO_ID, "partitions": [{"partition_index": 1, "committed_offset": 7}]},
            )
        ],
        *[
            Ask("OffsetFetch", 10, {"groups": [{"group_id": group, "topics": topics}]})
            for group in ("$t", "$t-g", "$t-no")
            for topics in (
                [{"topic_id": "$id", "partition_indexes": [0, 1, 9]}],
                [{"topic_id": NO_ID, "partition_indexes": [0, 1]}],
                [{"topic_id": ZERO_ID, "partition_indexes": [0]}],
                [],
                None,
            )
        ],
    ],
    "deletions of offsets": [
        *member_joins(protocols=[{"name": "range", "metadata": subscription("no-topic")}]),
        Ask("OffsetCommit", 8, commit("$m1", 1)),
        Ask("OffsetDelete", 0, delete_offsets("$t")),
        Ask("OffsetDelete", 0, delete_offsets("no-topic", "$t")),
        Ask("OffsetDelete", 0, delete_offsets("$t", partition=7)),
        Ask("OffsetDelete", 0, delete_offsets("$t", group="$t-no")),
        Ask("OffsetDelete", 0, delete_offsets("$t", group="")),
        Ask("OffsetDelete", 0, delete_offsets("$t", group="$t")),
        Ask("OffsetDelete", 0, delete_offsets("$t", group="$t", partition=1)),
        Ask("OffsetDelete", 0, delete_offsets()),
        *member_joins(group="$t-h", protocol_type="connect"),
        Ask("OffsetDelete", 0, delete_offsets("$t", group="$t-h")),
    ],
    "descriptions": [
        *member_joins(),
        Ask("JoinGroup", 5, join(group="$t-h"), 2),
        *[
            Ask("DescribeGroups", version, request)
            for version in range(7)
            for request in (
                describe("$t-g", "$t", "$t-no"),
                describe("$t", include_authorized_operations=True),
                describe(""),
                describe("$t-h"),
                describe(),
            )
        ],
    ],
    "lists": [
        *member_joins(),
        *[Ask("ListGroups", version, {}) for version in range(6)],
        *[
            Ask("ListGroups", version, request)
            for version in (4, 5)
            for request in (
                {"states_filter": ["Stable"]},
                {"states_filter": ["stable", "EMPTY"]},
                {"states_filter": ["Empty", "Empty"]},
                {"states_filter": ["Assigning"]},
                {"states_filter": ["Dead"]},
                {"states_filter": ["no"]},
                {"states_filter": [""]},
            )
        ],
        *[
            Ask("ListGroups", 5, request)
            for request in (
                {"types_filter": ["classic"]},
                {"types_filter": ["Classic"]},
                {"types_filter": ["consumer"]},
                {"types_filter": ["share"]},
                {"types_filter": ["no"]},
                {"types_filter": [""]},
                {"types_filter": ["no", "classic"]},
                {"types_filter": ["classic"], "states_filter": ["Empty"]},
                {"types_filter": ["consumer"], "states_filter": ["Empty"]},
            )
        ],
    ],
    "deletions of groups": [
        *member_joins(),
        *[
            Ask("DeleteGroups", version, {"groups_names": list(names)})
            for version in range(3)
            for names in (("$t-g",), ("$t-no", ""), ("$t-g", "$t-no", "$t-g"), ())
        ],
        Ask("LeaveGroup", 5, leave({"member_id": "$m1"})),
        Ask("DeleteGroups", 2, {"groups_names": ["$t-g", "$t", "$t"]}),
        Ask("DescribeGroups", 6, describe("$t-g", "$t")),
        Ask("Heartbeat", 4, beat("$m1", 1)),
        Ask("JoinGroup", 5, join("$m1")),
    ],
    "coordinators": [
        *[
            Ask("FindCoordinator", version, {"key": key, "key_type": kind})
            for version in range(4)
            for kind in (0, 1, 2, 5, -1)
            for key in ("$t", "")
            if version > 0 or kind == 0
        ],
        *[
            Ask("FindCoordinator", version, {"coordinator_keys": keys, "key_type": kind})
            for version in (4, 5, 6)
            for kind in (0, 5, -1)
            for keys in (["$t"], [], [""], ["$t", "$t", "$t-no"])
        ],
    ],
}
