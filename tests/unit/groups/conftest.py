"""An in-memory driver of the coordinator core: performs effects, keeps the log, and writes a transcript."""

import re
import textwrap
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import (
    Appended,
    AppendRecords,
    AppendTimedOut,
    CancelTimer,
    Effect,
    ErrorResponse,
    Reply,
    SetTimer,
    TimerFired,
    Token,
)
from tierlog.broker.coordinators.core.stored import StoredRecord, encode_stored
from tierlog.broker.groups.core.consumer import formats
from tierlog.broker.groups.core.consumer.embedded_protocol import Subscription, decode_assignment
from tierlog.broker.groups.core.consumer.embedded_protocol import TopicPartition as EmbeddedPartition
from tierlog.broker.groups.core.coordinator import Coordinator
from tierlog.broker.groups.core.events import (
    AssignmentComputed,
    Commit,
    ComputeAssignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DeleteGroup,
    Event,
    Heartbeat,
    Join,
    JoinResponse,
    Leave,
    Leaver,
    LeaveResponse,
    OffsetsResponse,
    OffsetToCommit,
    RegexesResolved,
    ResolveRegexes,
    Sync,
    SyncResponse,
    TimerKey,
    TopicsChanged,
)
from tierlog.broker.groups.core.formats import decode_key
from tierlog.broker.groups.core.turn import ConsumerSettings, GroupSettings
from tierlog.protocol.errors import ErrorCode

RANGE = (("range", b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"),)


class Topics:
    """A TopicView of these topics: name -> (id, number of partitions)."""

    def __init__(self, topics: dict[str, tuple[UUID, int]]) -> None:
        self._topics = topics
        self._names = {topic_id: name for name, (topic_id, _) in topics.items()}

    def id_of(self, name: str) -> UUID | None:
        return self._topics[name][0] if name in self._topics else None

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def partitions_of(self, name: str) -> int:
        return self._topics[name][1] if name in self._topics else 0

    def racks_of(self, name: str) -> list[frozenset[str]]:
        return [frozenset()] * self.partitions_of(name)

    def names(self) -> list[str]:
        return list(self._topics)


class Bench:
    """One group `g` by default. `lines` is the transcript; `responses` every reply by token."""

    def __init__(self, *, consumer: ConsumerSettings | None = None, **settings: Any) -> None:
        self.settings = GroupSettings(**{"group_initial_rebalance_delay_ms": 0, **settings})
        self.consumer_settings = consumer or ConsumerSettings(assignment_interval_ms=0)
        self.core = self.new_core()
        self.now_ms = 1_000_000
        self.next_id = count(1)
        self.topics = {name: self.new_id() for name in "stuv"}
        self.partitions = dict.fromkeys(self.topics, 3)
        self.timers: dict[TimerKey, int] = {}
        self.log: list[StoredRecord] = []
        self.lines: list[str] = []
        self.responses: dict[int, Any] = {}
        self.tokens: list[int] = []
        self.hold_appends = False
        self.append_error = ErrorCode.NONE
        self.held: list[AppendRecords] = []
        self.told_late: set[int] = set()
        self.names = 0
        self.inbox: deque[Event] = deque()
        self.is_handling = False
        self.hold_computations = False
        self.computations: deque[ComputeAssignment | ResolveRegexes] = deque()
        self.core.finish_replay(self.now_ms, self.view())

    # ---- what clients do; each returns its token ----

    def join(self, member_id: str = "", *, group: str = "g", instance: str | None = None, **more: Any) -> int:
        self.names += 1
        fields = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            **more,
        }
        return self._ask(
            Join,
            f"join {member_id or '?'}" + (f" instance={instance}" if instance else ""),
            group_id=group,
            member_id=member_id,
            generated_member_id=f"m{self.names}",
            group_instance_id=instance,
            **fields,
        )

    def join_cooperative(self, member_id: str = "", topics: str = "t", owned: str = "", **more: Any) -> int:
        """JoinGroup of a consumer with incremental rebalances."""
        return self.join(member_id, protocols=(("sticky", embedded_subscription(topics, owned)),), **more)

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> int:
        given = tuple((assignments or {}).items())
        more = {"group_id": "g", **more}
        return self._ask(
            Sync,
            f"sync {member_id} {generation}",
            member_id=member_id,
            generation=generation,
            assignments=given,
            **more,
        )

    def beat(self, member_id: str, generation: int, **more: Any) -> int:
        more = {"group_id": "g", **more}
        return self._ask(
            Heartbeat,
            f"heartbeat {member_id} {generation}",
            member_id=member_id,
            generation=generation,
            **more,
        )

    def leave(self, *leavers: str | Leaver, group: str = "g") -> int:
        each = tuple(Leaver(leaver) if isinstance(leaver, str) else leaver for leaver in leavers)
        return self._ask(
            Leave, "leave " + " ".join(leaver.member_id for leaver in each), group_id=group, leavers=each
        )

    def commit(
        self, offset: int, *, topic: str = "t", group: str = "g", metadata: str = "", **more: Any
    ) -> int:
        """A commit to a consumer group has a version with epochs."""
        items = (OffsetToCommit(TopicPartition(topic, 0), offset, 3, metadata, self.topics[topic]),)
        more = {"has_epochs": self.core.describe_consumer(group) is not None, **more}
        return self._ask(Commit, f"commit {offset}", group_id=group, offsets=items, **more)

    def consume(self, member: str, epoch: int = 0, **more: Any) -> int:
        """ConsumerGroupHeartbeat. `topics`: names; `owned`: partitions as in "t0 t1 u0". A member that joins
        sends all fields."""
        owned, topics = more.pop("owned", "" if epoch == 0 else None), more.pop("topics", None)
        fields: dict[str, Any] = {
            "group_id": "g",
            "rebalance_timeout_ms": 30_000 if epoch == 0 else -1,
            **more,
        }
        if epoch == 0 and topics is None and "subscribed_regex" not in more:
            topics = "t"
        said = "".join(f" {name}={value}" for name, value in more.items() if name != "free_bytes")
        said += f" topics={topics}" if topics is not None else ""
        said += f" owned=[{owned}]" if owned is not None and epoch else ""
        return self._ask(
            ConsumerHeartbeat,
            f"consume {member} {epoch}{said}",
            member_id=member,
            member_epoch=epoch,
            subscribed_topics=None if topics is None else tuple(topics),
            owned=None if owned is None else self.partitions_of(owned),
            **fields,
        )

    def partitions_of(self, text: str) -> tuple[tuple[UUID, tuple[int, ...]], ...]:
        """Partitions of "t0 t1 u0"."""
        found: dict[UUID, list[int]] = {}
        for each in text.split():
            found.setdefault(self.topics[each[0]], []).append(int(each[1:]))
        return tuple((topic_id, tuple(numbers)) for topic_id, numbers in found.items())

    def text_of(self, partitions: Any) -> str:
        """ "t0 t1 u0" of partitions by topic id. A topic that is gone is `?`."""
        names = {topic_id: name for name, topic_id in self.topics.items()}
        each = ((names.get(topic_id, "?"), number) for topic_id, all in partitions.items() for number in all)
        return " ".join(f"{name}{number}" for name, number in sorted(each))

    def delete(self, group: str = "g") -> int:
        return self._ask(DeleteGroup, f"delete {group}", group_id=group)

    def ask(self, kind: Callable[..., Event], **fields: Any) -> int:
        return self._ask(kind, kind.__name__, **fields)

    # ---- what the world does ----

    def advance(self, ms: int) -> None:
        """Time passes; timers fire in order."""
        end_ms = self.now_ms + ms
        while due := [key for key, at_ms in self.timers.items() if at_ms <= end_ms]:
            key = min(due, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.lines.append(f"{self.now_ms - 1_000_000} {key.kind} timer {key.member_id}".rstrip())
            self.send(TimerFired(key=key))
        self.now_ms = end_ms

    def view(self) -> Topics:
        return Topics({name: (topic_id, self.partitions[name]) for name, topic_id in self.topics.items()})

    def new_id(self) -> UUID:
        return UUID(int=next(self.next_id))

    def recreate(self, topic: str, *, seen: bool = True) -> None:
        """A topic is deleted and created again; `seen`: the coordinator is notified now."""
        self.topics[topic] = self.new_id()
        if seen:
            self.send_topics(topic)

    def send_topics(self, *deleted: str) -> None:
        self.send(TopicsChanged(topics=self.view(), deleted=frozenset(deleted)))

    def fire_due_timers(self) -> None:
        """Let timers without a delay fire."""
        self.advance(0)

    def compute(self) -> None:
        """The held computations end, oldest first."""
        while self.computations:
            self.send(self._result(self.computations.popleft()))

    def fail_computation(self) -> None:
        effect = self.computations.popleft()
        self.send(AssignmentComputed(request=effect, assignment=None))

    def _result(self, effect: ComputeAssignment | ResolveRegexes) -> Event:
        if isinstance(effect, ResolveRegexes):
            topics = {
                pattern: frozenset(name for name in effect.names if re.fullmatch(pattern, name))
                for pattern in effect.patterns
            }
            return RegexesResolved(request=effect, topics=topics)
        assignment = effect.assignor.assign(effect.members, effect.topics)
        return AssignmentComputed(request=effect, assignment=assignment)

    def new_core(self) -> Coordinator:
        return Coordinator(self.settings, lambda group_id: self.consumer_settings)

    def release(self, error: ErrorCode = ErrorCode.NONE, count: int | None = None) -> None:
        """The held appends become durable, in order, or fail; `count`: the oldest of them."""
        held, self.held = self.held[:count], self.held[len(self.held[:count]) :]
        for effect in held:
            self._appended(effect, error)

    def late(self) -> None:
        """Requests that wait for held appends time out, once."""
        for effect in [effect for effect in self.held if effect.write_id not in self.told_late]:
            self.told_late.add(effect.write_id)
            self.send(AppendTimedOut(write_id=effect.write_id))

    def compact(self) -> None:
        """Only the last record of each key remains in the log."""
        last = {record.key: at for at, record in enumerate(self.log)}
        self.log = [record for at, record in enumerate(self.log) if last[record.key] == at]

    def restart(self) -> None:
        """A new coordinator replays the log. Requests that wait have failed."""
        for token in self.waiting:
            self.responses[token] = ErrorResponse(error=ErrorCode.NOT_COORDINATOR)
        self.core = self.new_core()
        self.timers.clear()
        self.held.clear()
        self.told_late.clear()
        self.computations.clear()
        for key, value in self.log:
            self.core.replay(key, value)
        self._perform(self.core.finish_replay(self.now_ms, self.view()))
        self.core.check()

    def send(self, event: Event) -> None:
        """Events that follow from an event are handled after its effects, as by a shard."""
        self.inbox.append(event)
        if self.is_handling:
            return
        self.is_handling = True
        while self.inbox:
            self._perform(self.core.handle(self.inbox.popleft(), self.now_ms))
            self.core.check()
        self.is_handling = False

    # ---- what came of it ----

    def response(self, token: int) -> Any:
        return self.responses.get(token)

    def error(self, token: int) -> ErrorCode:
        return ErrorCode(self.responses[token].error)

    @property
    def waiting(self) -> list[int]:
        return [token for token in self.tokens if token not in self.responses]

    @property
    def state(self) -> str | None:
        described = self.core.describe("g")
        return described and described.group_state

    @property
    def transcript(self) -> str:
        return "\n".join(self.lines)

    def stable(self, members: int = 1) -> list[str]:
        """Brings a group of `members` dynamic members to Stable; the first is the leader. Returns their
        ids."""
        tokens = [self.join() for _ in range(members)]
        self.advance(self.settings.group_initial_rebalance_delay_ms * 2)
        ids = [self.responses[token].member_id for token in tokens]
        generation = self.responses[tokens[0]].generation
        for member_id in reversed(ids):
            self.sync(member_id, generation, {name: name.encode() for name in ids})
        return ids

    def _ask(self, kind: Callable[..., Event], line: str, **fields: Any) -> int:
        token = len(self.tokens) + 1
        self.tokens.append(token)
        self.lines.append(f"{self.now_ms - 1_000_000} #{token} {line}")
        self.send(kind(token=Token(token), **fields))
        return token

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(key, delay_ms):
                    self.timers[key] = self.now_ms + delay_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(token, response):
                    assert token not in self.responses, f"#{token} is answered twice"
                    self.responses[token] = response
                    self.lines.append(f"    #{token} {describe(response, self)}")
                case ComputeAssignment() | ResolveRegexes() if self.hold_computations:
                    self.computations.append(effect)
                case ComputeAssignment() | ResolveRegexes():
                    self.send(self._result(effect))
                case AppendRecords():
                    records = "append " + ", ".join(map(describe_record, effect.records))
                    self.lines += textwrap.wrap(
                        records, 90, initial_indent=" " * 4, subsequent_indent=" " * 8
                    )
                    if self.hold_appends or self.held:  # the log keeps their order
                        self.held.append(effect)
                    else:
                        self._appended(effect, self.append_error)

    def _appended(self, effect: AppendRecords, error: ErrorCode) -> None:
        if error in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            self.log += effect.records
        self.send(Appended(write_id=effect.write_id, error=error))


def describe(response: Any, bench: Bench) -> str:
    error = getattr(response, "error", ErrorCode.NONE)
    if error != ErrorCode.NONE:
        return error.name + (
            f" {response.member_id}" if isinstance(response, JoinResponse) and response.member_id else ""
        )
    match response:
        case JoinResponse():
            members = ",".join(member[0] for member in response.members)
            skip = " skip" if response.skip_assignment else ""
            joined = f"joined {response.member_id} gen={response.generation} leader={response.leader}"
            return f"{joined} [{members}]{skip}"
        case ConsumerHeartbeatResponse():
            shown = "" if response.assignment is None else f" [{bench.text_of(response.assignment)}]"
            return f"member {response.member_id} epoch={response.member_epoch}{shown}"
        case SyncResponse():
            return f"assigned {assigned_text(response.assignment) or '-'}"
        case LeaveResponse():
            return "left " + " ".join(f"{leaver.member_id}:{code.name}" for leaver, code in response.members)
        case OffsetsResponse():
            return "offsets " + " ".join(f"{place}:{code.name}" for place, code in response.partitions)
    return "ok"


def assigned_text(assignment: bytes) -> str:
    """Text of the tests' own, or a ConsumerProtocolAssignment as "t0 t1 u0"."""
    if not assignment.startswith(b"\0"):
        return assignment.decode()
    partitions = decode_assignment(assignment).assigned_partitions
    return " ".join(f"{each.topic}{number}" for each in partitions for number in each.partitions) or "nothing"


def embedded_subscription(topics: str, owned: str = "", version: int = 3) -> bytes:
    """A ConsumerProtocolSubscription; `owned` as in "t0 t1 u0"."""
    found: dict[str, list[int]] = {}
    for each in owned.split():
        found.setdefault(each[0], []).append(int(each[1:]))
    partitions = [EmbeddedPartition(topic=name, partitions=numbers) for name, numbers in found.items()]
    return encode_stored(Subscription(topics=list(topics), owned_partitions=partitions), version)


def describe_record(record: StoredRecord) -> str:
    sign = "-" if record.value is None else "+"
    key = decode_key(record.key)
    if key is not None:
        return sign + "/".join(map(str, key))
    consumer_key = formats.decode_key(record.key)
    names = [str(getattr(consumer_key, name)) for name in consumer_key.__slots__]
    return f"{sign}{KEY_NAMES[type(consumer_key)]}/{'/'.join(names)}"


KEY_NAMES = {
    formats.ConsumerGroupMetadataKey: "group",
    formats.PartitionMetadataKey: "topics",
    formats.MemberMetadataKey: "member",
    formats.TargetAssignmentMetadataKey: "targets",
    formats.TargetAssignmentMemberKey: "target",
    formats.CurrentMemberAssignmentKey: "current",
    formats.RegularExpressionKey: "regex",
}


@pytest.fixture
def bench() -> Callable[..., Bench]:
    return Bench
