"""Computations of consumer groups: performs ComputeAssignment and ResolveRegexes of the group coordinator.

A small one is done at once, so that a member gets its assignment with the response to its first heartbeat. A
large one runs in a thread: the event loop continues meanwhile, and members keep their assignments. The result
is submitted to the shard, unless its core has been discarded since. Owned by `group_service`.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

import structlog

from tierlog.base.patterns import InvalidPattern, compile_pattern
from tierlog.base.tasks import TaskGroup
from tierlog.broker.coordinators.core.effects import Effect
from tierlog.broker.coordinators.shard import Shard
from tierlog.broker.groups.core.consumer.writes import target_record
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.events import (
    AssignmentComputed,
    ComputeAssignment,
    RegexesResolved,
    ResolveRegexes,
)

ASSIGNMENT_COST_MAX = 500
"""Subscriptions and partitions that are assigned at once: at most about 5 ms."""
MATCHES_MAX = 500
"""Topic names that are matched at once, by all expressions of a group: 1 ms, with names of 250 characters and
an expression that is built against the matcher about 10 ms."""
COMPILATION_COST = 100
"""Compiling an expression takes as long as this many matches."""
CHECKS_PER_TURN = 1_000
"""Topics whose access is checked in one turn: about 5 ms."""

_log = structlog.get_logger("tierlog.groups")

Computed = AssignmentComputed | RegexesResolved


class Computations:
    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def perform(self, shard: Shard[Coordinator], effect: Effect) -> None:
        match effect:
            case ComputeAssignment():
                topics = len(effect.topics)
                cost = len(effect.members) * max(topics, 1) + sum(
                    topic.partitions for topic in effect.topics.values()
                )
                self._start(shard, lambda: assign(effect), in_thread=cost > ASSIGNMENT_COST_MAX)
            case ResolveRegexes():
                cost = len(effect.patterns) * (COMPILATION_COST + len(effect.names))
                is_large = cost > MATCHES_MAX
                if is_large and effect.may_describe is not None:
                    self._tasks.spawn(f"computation of {shard.name}", _resolve_in_turns(shard, effect))
                else:
                    self._start(shard, lambda: resolve(effect), in_thread=is_large)

    def _start(self, shard: Shard[Coordinator], compute: Callable[[], Computed], *, in_thread: bool) -> None:
        if in_thread:
            self._tasks.spawn(f"computation of {shard.name}", _compute_in_thread(shard, compute))
        else:
            shard.submit(compute())


async def _compute_in_thread(shard: Shard[Coordinator], compute: Callable[[], Computed]) -> None:
    core = shard.core
    event = await asyncio.to_thread(compute)
    if shard.core is core:
        shard.submit(event)


async def _resolve_in_turns(shard: Shard[Coordinator], request: ResolveRegexes) -> None:
    """Match in a thread, and check the access to what is matched in turns of the event loop."""
    core, may_describe = shard.core, request.may_describe or bool
    matched = await asyncio.to_thread(_match, request, request.names)
    permitted = set[str]()
    for number, name in enumerate(await asyncio.to_thread(_all_topics, matched), 1):
        if may_describe(name):
            permitted.add(name)
        if number % CHECKS_PER_TURN == 0:
            await asyncio.sleep(0)
    event = await asyncio.to_thread(_only, matched, permitted)
    if shard.core is core:
        shard.submit(event)


def assign(request: ComputeAssignment) -> AssignmentComputed:
    try:
        assignment = request.assignor.assign(request.members, request.topics)
    except Exception:
        _log.exception("group.assignor.failed", group=request.group_id)
        return AssignmentComputed(request=request, assignment=None)
    records = {
        member_id: target_record(request.group_id, member_id, target)
        for member_id, target in assignment.items()
        if target != request.members[member_id].current
    }
    return AssignmentComputed(request=request, assignment=assignment, records=records)


def resolve(request: ResolveRegexes) -> RegexesResolved:
    """The topics that each expression matches and the member may describe."""
    names = request.names
    return _match(
        request, names if request.may_describe is None else list(filter(request.may_describe, names))
    )


def _match(request: ResolveRegexes, names: Collection[str]) -> RegexesResolved:
    """An expression that is not valid here matches no topic. A record can have one: Kafka's RE2 accepts
    larger ones."""
    found: dict[str, frozenset[str]] = {}
    for pattern in request.patterns:
        try:
            matches = compile_pattern(pattern)
        except InvalidPattern as error:
            _log.warning("group.regex.invalid", group=request.group_id, error=str(error))
            found[pattern] = frozenset()
        else:
            found[pattern] = frozenset(filter(matches, names))
    return RegexesResolved(request=request, topics=found)


def _all_topics(resolved: RegexesResolved) -> frozenset[str]:
    return frozenset[str]().union(*resolved.topics.values())


def _only(resolved: RegexesResolved, permitted: set[str]) -> RegexesResolved:
    topics = {pattern: names & permitted for pattern, names in resolved.topics.items()}
    return replace(resolved, topics=topics)
