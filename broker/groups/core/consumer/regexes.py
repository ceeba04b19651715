"""Regular expressions of a consumer group: when they are matched with the names of the topics.

The driver matches them (ResolveRegexes). That is due when a member brings a new one, when topics were created
or deleted, and every group.consumer.regex.refresh.interval.ms. As in Kafka all expressions of a group are
resolved together, when a member sends a heartbeat, and not within REFRESH_PAUSE_MS of the last time: each
change makes the group assign its partitions again.
"""

from collections.abc import Callable

from tierlog.broker.groups.core.consumer.formats import RegularExpression
from tierlog.broker.groups.core.consumer.group import ConsumerGroup
from tierlog.broker.groups.core.consumer.member import NAME_OVERHEAD_BYTES
from tierlog.broker.groups.core.consumer.targets import refresh_epoch, request_target
from tierlog.broker.groups.core.events import RegexesResolved, ResolveRegexes
from tierlog.broker.groups.core.topic_view import TopicView
from tierlog.broker.groups.core.turn import Turn

REFRESH_PAUSE_MS = 10_000


def refresh_regexes(
    group: ConsumerGroup, turn: Turn, may_describe: Callable[[str], bool] | None = None
) -> None:
    """Have the regular expressions resolved if that is due.

    `may_describe`: access of the member that sent the heartbeat. The expressions of all members match only
    topics that this member may describe, as in Kafka. None: all topics.
    """
    if not group.regex_subscribers or group.resolving is not None or not _is_due(group, turn):
        return
    group.regex_version += 1
    group.names_changed = False
    group.resolving = ResolveRegexes(
        group_id=group.group_id,
        version=group.regex_version,
        patterns=frozenset(group.regex_subscribers),
        names=turn.topics.names(),
        may_describe=may_describe,
    )
    turn.effects.append(group.resolving)


def _is_due(group: ConsumerGroup, turn: Turn) -> bool:
    last_ms = max((each.timestamp for each in group.regexes.values()), default=None)
    if last_ms is None:
        return True
    since_ms = turn.now_ms - last_ms
    is_recent = 0 <= since_ms < REFRESH_PAUSE_MS
    is_old = not 0 <= since_ms <= turn.settings.group_consumer_regex_refresh_interval_ms
    is_unresolved = group.regexes.keys() != group.regex_subscribers.keys()
    return not is_recent and (is_unresolved or group.names_changed or is_old)


def most_bytes_of_next_regex(group: ConsumerGroup, topics: TopicView) -> int:
    """The memory that one more regular expression may take: that of all names. Others that are not resolved
    yet are counted with it, because the group's memory does not have them."""
    names = topics.names()
    unresolved = len(group.regex_subscribers) - len(group.regexes) + 1
    return unresolved * (NAME_OVERHEAD_BYTES * len(names) + sum(map(len, names)))


def regexes_resolved(group: ConsumerGroup, event: RegexesResolved, turn: Turn) -> None:
    if event.request is not group.resolving:
        return  # it was started by a coordinator before, or for a deleted group
    group.resolving = None
    is_changed = False
    for pattern, names in sorted(event.topics.items()):
        if not group.regex_subscribers[pattern]:
            continue  # its last member has left
        old = group.regexes.get(pattern)
        is_changed = is_changed or names != set(() if old is None else old.topics)
        version = event.request.version
        resolved = RegularExpression(topics=sorted(names), version=version, timestamp=turn.now_ms)
        group.set_regex(pattern, resolved)
    refresh_epoch(group, turn, bump=is_changed)
    request_target(group, turn)
