"""Replacements of the safeguards of consumer groups. See `safeguards`."""

from typing import Any

from simulator.switches import Function
from simulator.switches import without as any_without
from tierlog.broker.groups.core.consumer.states import MemberState
from tierlog.broker.groups.core.consumer.writes import flush
from tierlog.protocol.errors import ErrorCode


def without(name: str, breaks: str) -> Any:
    return any_without(name, breaks, of_consumers=True)


@without("a partition is assigned after its revocation", breaks="two members own a partition")
def _(original: Function, *_: Any) -> bool:
    return False


@without("a response waits until its assignment is durable", breaks="two members own a partition")
def _(original: Function, group: Any, turn: Any, respond: Function) -> None:
    flush(group, turn)
    respond(turn, ErrorCode.NONE)


@without("a coordinator replays members and assignments", breaks="two members own a partition")
def _(original: Function, *_: Any) -> list[Any]:
    return []


@without("heartbeats of an old epoch are refused", breaks="a late heartbeat gives partitions up")
def _(original: Function, *_: Any) -> None:
    return


@without("a silent member is removed after its session", breaks="a partition stays with a member that died")
def _(original: Function, *_: Any) -> None:
    return


@without(
    "commits of an old epoch are refused", breaks="an offset goes back after its partition was reassigned"
)
def _(original: Function, *_: Any) -> bool:
    return True


@without(
    "an assignment is repeated until its member confirms it",
    breaks="a partition stays with a member that does not know of it",
)
def _(original: Function, group: Any, heard: Any, moved: Any) -> bool:
    return bool(moved.state is MemberState.UNREVOKED_PARTITIONS)


@without(
    "a removed classic member does not join with its partitions",
    breaks="an offset goes back after its partition was reassigned",
)
def _(original: Function, *_: Any) -> bool:
    return False
