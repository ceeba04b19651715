"""Invariants of the members of a consumer group (KIP-848).

A member owns a partition from the answer that assigns it until it confirms its revocation, is fenced, or its
session may have expired. That of a member that died counts too. An answer of a coordinator that is no longer
the leader keeps no session: its successor may not have heard of the member since.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from uuid import UUID

from simulator.groups import OFFSETS_TOPIC
from simulator.witness import Violation
from simulator.workload import TOPIC
from tierlog.metadata.image import ClusterImage

Place = tuple[UUID, int]
"""A partition of a topic."""


@dataclass(slots=True, eq=False)
class Member:
    member_id: str
    instance_id: str | None
    epoch: int = 0
    epochs: list[int] = field(default_factory=list)
    """All epochs in its answers, increasing."""
    assigned: frozenset[Place] = frozenset()
    held: frozenset[Place] = frozenset()
    """Partitions that it must give up and still uses."""
    owned: dict[Place, float] = field(default_factory=dict)
    """Until when it owns each partition if it hears nothing more."""
    heard_s: float = 0.0
    """When it sent the last heartbeat that a coordinator answered."""
    had: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition of the topic -> its epoch and the partition's turn when it last had that."""
    is_alive: bool = True


class ConsumerWitness:
    def __init__(
        self,
        now_s: Callable[[], float],
        session_s: float,
        image: Callable[[], ClusterImage | None],
        done: Counter[str],
    ) -> None:
        self._now_s, self._session_s, self._image, self._done = now_s, session_s, image, done
        self.members: list[Member] = []
        self.committed: dict[int, int] = {}
        self.turns = Counter[int]()
        """Partition of the topic -> how often it got another owner."""
        self._owners: dict[int, Member] = {}
        self.commits = 0

    def leads(self, node: int) -> bool:
        image = self._image()
        topic = None if image is None else image.topic(OFFSETS_TOPIC)
        return topic is not None and topic.partitions[0].leader == node

    def topic_id(self) -> UUID | None:
        image = self._image()
        topic = None if image is None else image.topic(TOPIC)
        return None if topic is None else topic.topic_id

    def partitions(self) -> int:
        image = self._image()
        topic = None if image is None else image.topic(TOPIC)
        return 0 if topic is None else len(topic.partitions)

    # ---- what members do ----

    def sends(self, member: Member, says: Collection[Place]) -> None:
        """It sends a heartbeat which says that it owns these partitions, and no others."""
        member.owned = {place: until for place, until in member.owned.items() if place in says}

    def answered(
        self, member: Member, epoch: int, assigned: frozenset[Place], sent_s: float, node: int
    ) -> None:
        """The coordinator has accepted a heartbeat. `assigned`: what it has assigned, now or before."""
        if epoch < member.epoch:
            raise Violation(f"{member.member_id} went from epoch {member.epoch} to {epoch}")
        if self.leads(node):
            member.heard_s = sent_s
        until, now_s = member.heard_s + self._session_s, self._now_s()
        for other in self.members if until > now_s else ():
            for place in assigned:
                if other is not member and other.owned.get(place, 0.0) > now_s:
                    names = f"{member.member_id} in epoch {epoch} and {other.member_id} in {other.epoch}"
                    raise Violation(f"{names} own partition {place[1]} of {place[0]} at the same time")
        member.owned |= {place: max(until, member.owned.get(place, 0.0)) for place in assigned}
        self._done["consumer partitions assigned"] += len(assigned - member.assigned)
        self._done["consumer partitions revoked"] += len(member.assigned - assigned)
        for topic_id, number in assigned:
            if topic_id == self.topic_id() and self.leads(node):
                self.turns[number] += self._owners.get(number) is not member
                self._owners[number] = member
                member.had[number] = epoch, self.turns[number]
        member.held = (member.held | member.assigned) - assigned
        member.assigned, member.epoch = assigned, epoch
        if not member.epochs or epoch > member.epochs[-1]:
            member.epochs.append(epoch)
        self.members = [
            one for one in self.members if one.is_alive or max(one.owned.values(), default=0.0) > now_s
        ]

    def accepted_late(self, member: Member, epoch: int, node: int) -> None:
        """A heartbeat from before the last two epochs was accepted."""
        if self.leads(node):
            known = f"its answers had {member.epochs}"
            raise Violation(f"a heartbeat of {member.member_id} in epoch {epoch} is accepted, {known}")

    def gave_up(self, member: Member) -> None:
        """It has been fenced, rejoins, or leaves."""
        member.epoch, member.assigned, member.held = 0, frozenset(), frozenset()
        member.owned.clear()

    def died(self, member: Member) -> None:
        member.is_alive = False
        if not member.owned:
            self.members.remove(member)

    def acknowledged(self, member: Member, epoch: int, number: int, offset: int, turn: int) -> None:
        """`turn`: the partition's turn when the commit was sent."""
        self.accepted(member, epoch, number, turn)
        self.committed_at(number, offset)

    def accepted(self, member: Member, epoch: int, number: int, turn: int) -> None:
        """An offset was accepted, which counts once its transaction is committed, if it is in one."""
        if turn != member.had[number][1]:
            raise Violation(
                f"{member.member_id} commits partition {number} in epoch {epoch}, after another member got it"
            )

    def committed_at(self, number: int, offset: int) -> None:
        self.committed[number] = max(offset, self.committed.get(number, -1))
        self.commits += 1
        self._done["consumer commits"] += 1

    def fetched(self, member: Member, number: int, offset: int, before: int) -> None:
        """`before`: the highest offset that was acknowledged when the request was sent."""
        if offset < before:
            went = f"is {offset}, but {before} was committed"
            raise Violation(f"{member.member_id} gets partition {number}, whose offset {went}")

    # ---- the end ----

    def is_balanced(self, members: int) -> bool:
        """So many members live and share all partitions of the topic, with one more or less at most."""
        image = self._image()
        topic = None if image is None else image.topic(TOPIC)
        if topic is None:
            return False
        mine = [
            sum(place[0] == topic.topic_id for place in member.assigned)
            for member in self.members
            if member.is_alive
        ]
        is_complete = len(mine) == members and sum(mine) == len(topic.partitions)
        return is_complete and max(mine) - min(mine) <= 1

    def status(self) -> str:
        return "; ".join(
            f"{one.member_id} in epoch {one.epoch}: {sorted(number for _, number in one.assigned)}"
            for one in self.members
            if one.is_alive
        )
