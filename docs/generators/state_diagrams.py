"""Generates the state diagrams of docs/reference/cluster-states.md from the pure cores.

Each core is put into each state and given each event; the resulting state is the arrow. The diagrams
therefore show what the code does.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from uuid import UUID

from tierlog.base.types import InvariantViolation
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.raft import messages as m
from tierlog.metadata.raft.core import RaftCore, Role
from tierlog.metadata.raft.log import RaftLog
from tierlog.metadata.records import PartitionRecord

Arrows = dict[tuple[str, str], set[str]]  # (from, to) -> causes
Step = tuple[str, ClusterImage]

SUBJECT, OTHERS = 1, (2, 3)
TOPIC = "t"


def page() -> str:
    return _PAGE.format(
        raft=_mermaid(raft_roles()), brokers=_mermaid(broker_states()), replicas=_mermaid(replica_states())
    )


# --- Raft


def raft_roles() -> Arrows:
    """Transitions of one voter in a quorum of three."""
    arrows: Arrows = {}
    for role in Role:
        for name, apply in _RAFT_EVENTS.items():
            core = _core_as(role)
            apply(core)
            core.check()
            if core.role is not role:
                arrows.setdefault((role.value, core.role.value), set()).add(name)
    return arrows


def _core_as(role: Role) -> RaftCore:
    log = RaftLog(m.Snapshot(0, 0, b""), [], 0)
    core = RaftCore(SUBJECT, {SUBJECT, *OTHERS}, log, m.HardState(term=1), random.Random(1))
    if role is not Role.FOLLOWER:
        core.campaign()
    if role in (Role.CANDIDATE, Role.LEADER):
        _vote(core, granted=True)
    if role is Role.LEADER:
        _vote(core, granted=True)
    if core.role is not role:
        raise InvariantViolation(f"a core that should be a {role.value} is a {core.role.value}")
    return core


def _vote(core: RaftCore, *, granted: bool) -> None:
    """One other voter grants its vote, or both refuse: a majority either way."""
    pre_vote = core.role is Role.PRE_CANDIDATE
    term = core.term + pre_vote if granted else core.term
    core.persisted(core.ready())
    for sender in OTHERS[: 1 if granted else 2]:
        core.step(m.VoteReply(term=term, sender=sender, to=SUBJECT, granted=granted, pre_vote=pre_vote))


def _time_out(core: RaftCore) -> None:
    """Tick without messages until the role changes."""
    before = core.role
    for _ in range(100):
        core.tick()
        if core.role is not before:
            return


def _heartbeat(core: RaftCore) -> None:
    if not core.is_leader:  # a term has only one leader
        core.step(m.Heartbeat(term=core.term, sender=2, to=SUBJECT, commit=0))


_RAFT_EVENTS: dict[str, Callable[[RaftCore], None]] = {
    "no messages for an election timeout": _time_out,
    "a majority grants its vote": lambda core: _vote(core, granted=True),
    "a majority refuses its vote": lambda core: _vote(core, granted=False),
    "a message of a newer term": lambda core: core.step(
        m.Heartbeat(term=core.term + 1, sender=2, to=SUBJECT, commit=0)
    ),
    "a heartbeat of this term's leader": _heartbeat,
    "the leader transfers leadership to it": lambda core: core.step(
        m.TimeoutNow(term=core.term, sender=2, to=SUBJECT)
    ),
}


# --- brokers


def broker_states() -> Arrows:
    """Transitions of one broker in the controller's image."""

    def state(image: ClusterImage) -> str:
        broker = image.brokers.get(SUBJECT)
        if broker is None:
            return "unregistered"
        return {
            (True, False): "fenced",
            (False, False): "serving",
            (False, True): "stopping",
            (True, True): "stopped",
        }[broker.fenced, broker.stopping]

    def steps(image: ClusterImage) -> Iterator[Step]:
        yield "its process registers", _done(image, _registration(SUBJECT, image.index))
        broker = image.brokers.get(SUBJECT)
        if broker is not None:
            if not broker.stopping:  # a broker in controlled shutdown is never unfenced
                yield "it has caught up and is unfenced", _done(image, _fencing(image, SUBJECT, False))
            why = (
                "it leads no partition, or its session expires" if broker.stopping else "its session expires"
            )
            yield why, _done(image, _fencing(image, SUBJECT, True))
            yield "controlled shutdown, or decommission", _done(image, _stopping(image, SUBJECT))
            yield "it is unregistered", _done(image, c.UnregisterBroker(broker_id=SUBJECT))

    return _explored(_cluster(2), state, steps, state)


# --- replicas


def replica_states() -> Arrows:
    """Transitions of one of three replicas in the controller's image, with min.insync.replicas=2."""

    def state(image: ClusterImage) -> str:
        partition = _partition(image)
        if partition.leader == SUBJECT:
            return "leader"
        if SUBJECT in partition.in_sync:
            return "in sync"
        return "eligible" if SUBJECT in partition.eligible else "out of sync"

    def key(image: ClusterImage) -> object:
        partition = _partition(image)
        brokers = tuple((b.fenced, b.stopping) for _, b in sorted(image.brokers.items()))
        return brokers, partition.leader, partition.in_sync, partition.eligible

    return _explored(_cluster(1, 2, 3), state, _replica_steps, key)


def _replica_steps(image: ClusterImage) -> Iterator[Step]:
    partition = _partition(image)
    for broker_id in (SUBJECT, *OTHERS):
        own = broker_id == SUBJECT
        broker = image.brokers[broker_id]
        if broker.fenced:
            yield (
                "its broker is unfenced" if own else "another broker is unfenced",
                _done(image, _fencing(image, broker_id, False)),
            )
        else:
            yield (
                "its broker is fenced" if own else "another broker is fenced",
                _done(image, _fencing(image, broker_id, True)),
            )
        for lost in (False, True):
            after = _done(image, _registration(broker_id, image.index, lost=lost))
            what = "restarts and may have lost unsynced records" if lost else "restarts"
            yield f"its broker {what}" if own else "another broker restarts", after
        if partition.leader not in (-1, broker_id) and not broker.fenced:
            joins = broker_id not in partition.in_sync
            verb = "catches up" if joins else "lags"
            yield (
                f"it {verb}" if own else f"another replica {verb}",
                _done(image, _isr(image, broker_id, joins)),
            )
    preferred = c.ElectLeaders(partitions=((TOPIC, 0),), kind=c.ElectionKind.PREFERRED)
    yield "preferred leader election", _done(image, preferred)


def _isr(image: ClusterImage, broker_id: int, joins: bool) -> c.AlterPartitions:
    """The leader's AlterPartition request."""
    partition, topic = _partition(image), image.topic(TOPIC)
    if topic is None:
        raise InvariantViolation("the topic does not exist")
    members = {*partition.in_sync, broker_id} if joins else {*partition.in_sync} - {broker_id}
    change = c.IsrChange(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        in_sync=tuple(c.InSync(one, image.brokers[one].broker_epoch) for one in sorted(members)),
    )
    leader = image.brokers[partition.leader]
    return c.AlterPartitions(broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, changes=(change,))


# --- the controller, explored


def _explored(
    start: ClusterImage,
    state: Callable[[ClusterImage], str],
    steps: Callable[[ClusterImage], Iterator[Step]],
    key: Callable[[ClusterImage], object],
) -> Arrows:
    """Transitions between all reachable images, breadth first. `key` leaves out epochs, which always grow."""
    arrows: Arrows = {}
    seen, due = {key(start)}, deque([start])
    while due:
        image = due.popleft()
        for name, after in steps(image):
            if state(after) != state(image):
                arrows.setdefault((state(image), state(after)), set()).add(name)
            if key(after) not in seen:
                seen.add(key(after))
                due.append(after)
    return arrows


def _cluster(*brokers: int) -> ClusterImage:
    """A cluster of unfenced brokers. If SUBJECT is one of several, it is the one partition's preferred
    leader."""
    image = ClusterImage(cluster_id="c")
    for broker_id in brokers:
        image = _done(image, _registration(broker_id, image.index))
        image = _done(image, _fencing(image, broker_id, False))
    if SUBJECT in brokers:
        topic = c.NewTopic(name=TOPIC, assignments=((0, brokers),), configs=(("min.insync.replicas", "2"),))
        image = _done(image, c.CreateTopics(topics=(topic,)))
    return image


def _done(image: ClusterImage, command: c.AnyCommand) -> ClusterImage:
    decision = decide(image, command, 0, random.Random(1))
    return apply_entry(image, image.index + 1, decision.records)


def _registration(broker_id: int, process: int, *, lost: bool = False) -> c.RegisterBroker:
    return c.RegisterBroker(
        broker_id=broker_id,
        incarnation=UUID(int=process + 1),
        host="h",
        port=1,
        admin_url="",
        start_fenced=True,
        may_have_lost=lost,
    )


def _fencing(image: ClusterImage, broker_id: int, fenced: bool) -> c.FenceBroker:
    epoch = image.brokers[broker_id].broker_epoch
    return c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)


def _stopping(image: ClusterImage, broker_id: int) -> c.StopBroker:
    return c.StopBroker(broker_id=broker_id, broker_epoch=image.brokers[broker_id].broker_epoch)


def _partition(image: ClusterImage) -> PartitionRecord:
    topic = image.topic(TOPIC)
    if topic is None:
        raise InvariantViolation("the topic does not exist")
    return topic.partitions[0]


# --- drawing


def _mermaid(arrows: Arrows) -> str:
    """Arrows as Mermaid text. Names that are not identifiers become labels."""
    states = sorted({one for arrow in arrows for one in arrow})
    lines = [f'    state "{name}" as {_identifier(name)}' for name in states if _identifier(name) != name]
    for (before, after), causes in sorted(arrows.items()):
        lines.append(f"    {_identifier(before)} --> {_identifier(after)}: {'<br/>'.join(sorted(causes))}")
    return "\n".join(lines)


def _identifier(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


_PAGE = """# States of a cluster

Generated by `docs/generators/state_diagrams.py`, which puts the pure cores into each state and gives them
each event. A test fails when this page is out of date.

## A voter of the metadata quorum

See `metadata/raft/core.py`. A pre-candidate only asks whether it could win an election: it persists nothing.

```mermaid
stateDiagram-v2
    [*] --> follower: starts
{raft}
```

## A broker in the controller's image

See `metadata/controller/brokers.py`. Only a serving broker is elected, or joins an in-sync set. A stopping
broker keeps leading a partition if no other replica can lead it.

```mermaid
stateDiagram-v2
    [*] --> unregistered
{brokers}
```

## A replica in the controller's image

See `metadata/controller/partition_change.py`. The diagram shows one of three replicas, with
`min.insync.replicas=2` and without unclean elections. An eligible replica (ELR, KIP-966) left the in-sync set
while it was below the minimum, so it has all committed records.

```mermaid
stateDiagram-v2
    [*] --> leader: preferred leader of a new topic
    [*] --> in_sync: the other replicas
{replicas}
```
"""
