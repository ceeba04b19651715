"""Safeguards of retention in tiered topics."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.switches import Patches, safeguard
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.replication.follower_role import FollowerRole
from tierlog.config.topic import MAX_LONG
from tierlog.tiering import planner


@safeguard(
    "retention.bytes counts a record in both tiers once", "retention deletes more than retention.bytes allows"
)
def _() -> Patches:
    ranges = planner._ranges

    def without(remote: Any, segments: Any, view: Any) -> Iterator[Any]:
        yield from ranges(remote, (), view)
        for part in segments:
            yield planner._Range(part.end_offset, part.size_bytes, part.max_timestamp, part.rolled)

    yield planner, "_ranges", without


@safeguard("retention deletes only committed records", "the log start offset is above the next leader's log")
def _() -> Patches:
    retained = planner._retained_from

    def without(remote: Any, segments: Any, policy: Any, view: Any, now_ms: int) -> int:
        return retained(remote, segments, policy, replace(view, high_watermark=MAX_LONG), now_ms)

    yield planner, "_retained_from", without


@safeguard(
    "replicas move the log start offset after the quorum commits it",
    "records disappear on one replica and come back later",
)
def _() -> Patches:
    move = RemoteLogManager._move_log_start

    async def without(driver: RemoteLogManager, where: Any, state: Any, offset: int) -> None:
        state.replica.raise_log_start(offset)
        await move(driver, where, state, offset)

    yield RemoteLogManager, "_move_log_start", without


@safeguard("a follower adopts the leader's log start offset", "the next leader serves deleted records again")
def _() -> Patches:
    append = FollowerRole.append_replicated

    def without(role: FollowerRole, records: memoryview, **options: Any) -> Any:
        return append(role, records, **{**options, "log_start_offset": 0})

    yield FollowerRole, "append_replicated", without
