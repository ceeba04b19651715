"""A controller without a quorum: decides and applies each submitted command at once."""

import random
import uuid
from collections.abc import Callable
from typing import Any

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable


class InlineController:
    """A MetadataSource. While `available` is False, no quorum responds."""

    def __init__(self, *brokers: int) -> None:
        self.image = ClusterImage(cluster_id="c")
        self.available = True
        self._rng = random.Random(1)
        for broker_id in brokers:
            self.register(broker_id)

    def subscribe(self, subscriber: Callable[[ClusterImage, ClusterImage], None]) -> Callable[[], None]:
        return lambda: None

    async def submit(self, command: c.AnyCommand, timeout_s: float = 30.0) -> Any:
        if not self.available:
            raise MetadataUnavailable("no quorum of metadata nodes responded in time", applied_unknown=False)
        return self.do(command)

    async def heartbeat(self, heartbeat: c.Heartbeat, timeout_s: float = 2.0) -> c.HeartbeatReply:
        return c.HeartbeatReply()

    def do(self, command: c.AnyCommand) -> Any:
        decision = decide(self.image, command, 1000, self._rng)
        self.image = apply_entry(self.image, self.image.index + 1, decision.records)
        return decision.reply

    def register(self, broker_id: int, *, min_in_sync: int = 1) -> None:
        self.do(
            c.RegisterBroker(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=broker_id),
                host="h",
                port=9092,
                admin_url=f"http://h:{broker_id}",
                min_in_sync=min_in_sync,
            )
        )

    def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        topic = c.NewTopic(name=name, assignments=tuple(enumerate(replicas)), configs=tuple(configs.items()))
        reply = self.do(c.CreateTopics(topics=(topic,)))
        assert reply.topics[0].error == 0, reply

    def fence(self, broker_id: int, *, fenced: bool = True) -> None:
        epoch = self.image.brokers[broker_id].broker_epoch
        self.do(c.FenceBroker(broker_id=broker_id, broker_epoch=epoch, fenced=fenced))
