"""Safeguards of the retention of tiered topics."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.switches import Patches, safeguard
from tierlog.broker.remote.remote_log_manager import RemoteLogManager
from tierlog.broker.replication.replica import Replica
from tierlog.config.topic import MAX_LONG
from tierlog.tiering import planner


@safeguard("what both tiers hold counts once", "retention deletes more than retention.bytes allows")
def _() -> Patches:
    ranges = planner._ranges

    def without(remote: Any, segments: Any, view: Any) -> Iterator[Any]:
        yield from ranges(remote, (), view)
        for part in segments:
            yield planner._Range(part.end_offset, part.size_bytes, part.max_timestamp, part.rolled)

    yield planner, "_ranges", without


@safeguard("retention deletes what is committed", "a log start lies above the log of the next leader")
def _() -> Patches:
    retained = planner._retained_from

    def without(remote: Any, segments: Any, policy: Any, view: Any, now_ms: int) -> int:
        return retained(remote, segments, policy, replace(view, high_watermark=MAX_LONG), now_ms)

    yield planner, "_retained_from", without


@safeguard(
    "a log start is committed before it is taken over", "records are gone on one replica, and come back"
)
def _() -> Patches:
    move = RemoteLogManager._move_log_start

    async def without(driver: RemoteLogManager, where: Any, state: Any, offset: int) -> None:
        state.replica.raise_log_start(offset)
        await move(driver, where, state, offset)

    yield RemoteLogManager, "_move_log_start", without


@safeguard("a follower takes over the log start", "deleted records are served again by the next leader")
def _() -> Patches:
    append = Replica.append_replicated

    def without(replica: Replica, records: memoryview, **told: Any) -> Any:
        return append(replica, records, **{**told, "log_start_offset": 0})

    yield Replica, "append_replicated", without
