"""A controller without a quorum: decides and applies each submitted command at once."""

import random
import uuid
from typing import Any

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.quorum.client import MetadataClient
from tierlog.metadata.quorum.peers import MetadataUnavailable, Peers
from tierlog.protocol.errors import ErrorCode


class InlineController(MetadataClient):
    """While `available` is False, commands fail as they do without a quorum."""

    def __init__(self, *brokers: int) -> None:
        super().__init__(1, "c", Peers())
        self.available = True
        self._rng = random.Random(1)
        for broker_id in brokers:
            self.register(broker_id)

    dead_brokers = frozenset()
    started = True

    def status(self) -> Any:
        raise NotImplementedError

    def _request_target(self, forward: bool) -> int:
        return self.node_id

    async def _wait_for_leader(self, at_most_s: float | None) -> None:
        """Return at once: this node is the leader."""

    def _on_unavailable(self, leader: int, unavailable: MetadataUnavailable) -> None:
        raise unavailable

    async def _submit_to(self, leader: int, command: c.Command[Any]) -> Any:
        if not self.available:
            raise MetadataUnavailable("no quorum of metadata nodes responded in time", applied_unknown=False)
        return self.do(command)

    async def _heartbeat_to(self, leader: int, heartbeat: c.Heartbeat, timeout_s: float) -> c.HeartbeatReply:
        return c.HeartbeatReply()

    def do(self, command: c.AnyCommand) -> Any:
        decision = decide(self.image, command, 1000, self._rng)
        image = apply_entry(self.image, self.image.index + 1, decision.records)
        self._publisher.publish(image, self._publisher.term)
        return decision.reply

    def register(self, broker_id: int, *, min_in_sync: int = 1, admin_url: str | None = None) -> None:
        self.do(
            c.RegisterBroker(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=broker_id),
                host="h",
                port=9092,
                admin_url=f"http://h:{broker_id}" if admin_url is None else admin_url,
                min_in_sync=min_in_sync,
            )
        )

    def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        topic = c.NewTopic(name=name, assignments=tuple(enumerate(replicas)), configs=tuple(configs.items()))
        reply = self.do(c.CreateTopics(topics=(topic,)))
        assert reply.topics[0].error == ErrorCode.NONE, reply

    def fence(self, broker_id: int, *, fenced: bool = True) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.do(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))
