"""Two controllers of one partition, without files and network: its leader, ISR and eligible leader replicas.

One is a minimal model of the rules in KIP-497, KIP-903 and KIP-966; the other is the real one.
"""

import random
import uuid
from collections.abc import Iterable
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from tierlog.base.types import NO_LEADER
from tierlog.broker.replication.core.in_sync import IsrProposal
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode


@dataclass(frozen=True)
class View:
    """The image's state of the partition, and the brokers that may be in sync."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    live: dict[int, int]


@dataclass
class ModelController:
    replicas: tuple[int, ...]
    min_in_sync: int
    view: View = field(init=False)
    epochs: dict[int, int] = field(init=False)  # broker -> epoch of its last registration
    fenced: set[int] = field(default_factory=set)
    last_epoch: int = 100

    def __post_init__(self) -> None:
        self.epochs = dict.fromkeys(self.replicas, self.last_epoch)
        self.view = View(self.replicas[0], 0, 0, self.replicas, (), dict(self.epochs))

    @property
    def members(self) -> set[int]:
        """The brokers that must have every committed record."""
        return {*self.view.in_sync, *self.view.eligible}

    def copied(self) -> "ModelController":
        return deepcopy(self)

    def register(self, broker: int, *, may_have_lost: bool) -> int:
        """A broker process starts and is unfenced at once. Returns its broker epoch."""
        self.last_epoch += 1
        self.epochs[broker] = self.last_epoch
        self.fenced.discard(broker)
        if may_have_lost and self.members - {broker}:
            self._change({*self.view.in_sync} - {broker}, lost=broker)
        self._elect(restarted=broker)
        return self.last_epoch

    def fence(self, broker: int) -> None:
        self.fenced.add(broker)
        if broker in self.view.in_sync and len(self.view.in_sync) > 1:
            self._change({*self.view.in_sync} - {broker})
        self._elect()

    def unfence(self, broker: int) -> None:
        self.fenced.discard(broker)
        self._elect()

    def alter(self, broker: int, epoch: int, proposal: IsrProposal) -> ErrorCode:
        """AlterPartition."""
        if self.epochs[broker] != epoch or broker in self.fenced:
            return ErrorCode.STALE_BROKER_EPOCH
        if self.view.leader != broker or self.view.leader_epoch != proposal.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self.view.partition_epoch != proposal.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for member, reported in proposal.in_sync:
            if member in self.fenced or reported not in (-1, self.epochs[member]):
                return ErrorCode.INELIGIBLE_REPLICA
        self._change(frozenset(member for member, _ in proposal.in_sync))
        return ErrorCode.NONE

    def elect_anyone(self, choice: int) -> None:
        """Move the leadership to a live member of the ISR, as a preferred election or a drain does."""
        candidates = [broker for broker in self.view.in_sync if broker not in self.fenced]
        if candidates:
            self._lead(candidates[choice % len(candidates)])

    def _change(self, in_sync: Iterable[int], lost: int = NO_LEADER) -> None:
        """A replica that leaves an ISR below the minimum stays eligible, since nothing is committed without
        it.
        """
        now = {*in_sync}
        eligible = self.members - now - {lost} if len(now) < self.min_in_sync else set()
        self.view = replace(
            self.view,
            in_sync=tuple(sorted(now)),
            eligible=tuple(sorted(eligible)),
            partition_epoch=self.view.partition_epoch + 1,
        )
        self._tell()

    def _elect(self, restarted: int = NO_LEADER) -> None:
        view = self.view
        if view.leader in view.in_sync and view.leader not in (*self.fenced, restarted):
            return self._tell()
        able = [broker for broker in (*view.in_sync, *view.eligible) if broker not in self.fenced]
        others = [broker for broker in able if broker != restarted] or able
        return self._lead(others[0] if others else NO_LEADER)

    def _lead(self, leader: int) -> None:
        if leader != NO_LEADER and leader not in self.view.in_sync:
            self._change([leader])
        if leader != NO_LEADER or self.view.leader != NO_LEADER:
            self.view = replace(
                self.view,
                leader=leader,
                leader_epoch=self.view.leader_epoch + 1,
                partition_epoch=self.view.partition_epoch + 1,
            )
        self._tell()

    def _tell(self) -> None:
        live = {broker: epoch for broker, epoch in self.epochs.items() if broker not in self.fenced}
        self.view = replace(self.view, live=live)


class RealController:
    """The real `decide` and `evolve`, with one topic `t` of one partition."""

    def __init__(self, replicas: tuple[int, ...], min_in_sync: int) -> None:
        self.image = ClusterImage(cluster_id="c")
        self._rng = random.Random(1)
        self._processes = 0
        for broker in replicas:
            self.register(broker, may_have_lost=False)
        topic = c.NewTopic(
            name="t", assignments=((0, replicas),), configs=(("min.insync.replicas", str(min_in_sync)),)
        )
        self._do(c.CreateTopics(topics=(topic,)))

    @property
    def view(self) -> View:
        topic = self.image.topic("t")
        assert topic is not None
        its = topic.partitions[0]
        live = {broker.broker_id: broker.broker_epoch for broker in self.image.live_brokers()}
        return View(its.leader, its.leader_epoch, its.partition_epoch, its.in_sync, its.eligible, live)

    @property
    def epochs(self) -> dict[int, int]:
        return {number: broker.broker_epoch for number, broker in self.image.brokers.items()}

    @property
    def members(self) -> set[int]:
        """The brokers that must have every committed record."""
        return {*self.view.in_sync, *self.view.eligible}

    def copied(self) -> "RealController":
        return copy(self)  # only its image matters, which is immutable

    def register(self, broker: int, *, may_have_lost: bool) -> int:
        self._processes += 1
        command = c.RegisterBroker(
            broker_id=broker,
            incarnation=uuid.UUID(int=self._processes),
            host="h",
            port=1,
            admin_url="http://h",
            may_have_lost=may_have_lost,
        )
        epoch: int = self._do(command).broker_epoch
        return epoch

    def fence(self, broker: int) -> None:
        self._do(c.FenceBroker(broker_id=broker, broker_epoch=self.epochs[broker], fenced=True))

    def unfence(self, broker: int) -> None:
        self._do(c.FenceBroker(broker_id=broker, broker_epoch=self.epochs[broker], fenced=False))

    def alter(self, broker: int, epoch: int, proposal: IsrProposal) -> ErrorCode:
        change = c.IsrChange(
            topic_id=self.image.topic_ids["t"],
            partition=0,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            in_sync=tuple(c.InSync(member, reported) for member, reported in proposal.in_sync),
        )
        reply = self._do(c.AlterPartitions(broker_id=broker, broker_epoch=epoch, changes=(change,)))
        return reply.error or reply.partitions[0].error

    def elect_anyone(self, choice: int) -> None:
        """Elect the preferred replica, or another while the current leader is fenced for a moment."""
        leader = self.view.leader
        if choice and leader != NO_LEADER:
            self.fence(leader)
            self.unfence(leader)
        else:
            self._do(c.ElectLeaders(partitions=(("t", 0),)))

    def _do(self, command: c.AnyCommand) -> Any:
        decision = decide(self.image, command, 0, self._rng)
        self.image = apply_entry(self.image, self.image.index + 1, decision.records)
        return decision.reply
