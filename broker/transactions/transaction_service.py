"""Transaction service: the transaction coordinator of this broker, with a shard for each
`__transaction_state` partition it leads. Called by handlers/transactions.py; built by app.py.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tierlog.base.network import Network
from tierlog.broker.coordinators.core.effects import Effect, Token
from tierlog.broker.coordinators.shard import Shard
from tierlog.broker.coordinators.shards import CoordinatorTopic, Host, Shards
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.coordinator import Coordinator, TransactionSettings
from tierlog.broker.transactions.core.events import (
    ExpireIds,
    MarkersWritten,
    Request,
    Response,
    WriteMarkers,
)
from tierlog.broker.transactions.core.transaction import Transaction
from tierlog.broker.transactions.marker_sender import Job, MarkerSender, WriteLocally
from tierlog.broker.transactions.producer_ids import ProducerIds
from tierlog.broker.transactions.verifier import TransactionVerifier
from tierlog.config.node import NodeSettings
from tierlog.config.topic import TRANSACTIONS_TOPIC
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.errors import ErrorCode

R = TypeVar("R")


class TransactionService:
    def __init__(
        self,
        settings: NodeSettings,
        host: Host,
        producer_ids: ProducerIds,
        network: Network | None,
        write_locally: WriteLocally,
    ) -> None:
        """`network`: None if there are no other brokers. `write_locally`: carries out a WriteTxnMarkers."""
        core_settings = transaction_settings(settings)
        self.shards = Shards(
            host,
            transactions_topic(settings),
            lambda: Coordinator(core_settings),
            settings.offsets_commit_timeout_ms,
            self._perform,
        )
        self.producer_ids = producer_ids
        image = lambda: self.shards.image  # noqa: E731
        self.verifier = TransactionVerifier(host.node_id, self.shards, image, network, host.tasks)
        self._markers = MarkerSender(host.node_id, image, write_locally, network, host.tasks)
        self._settings = settings
        self._clock = host.clock

    # ---- start and stop ----

    def start(self) -> None:
        """Start the timers. `follow` has loaded the shards of this broker."""
        interval_ms = self._settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self.shards.start(interval_ms, ExpireIds())

    async def close(self) -> None:
        self.shards.close()
        self._markers.close()
        self.verifier.close()

    def follow(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics is not new.topics:
            self.shards.follow(new)

    # ---- for handlers ----

    def ask(
        self, transactional_id: str, build: Callable[[Token], Request], convert: Callable[[Response], R]
    ) -> "R | asyncio.Future[R]":
        """Pass a request to the id's shard. Returns the converted response, or a future of it."""
        return self.shards.ask(transactional_id, build, convert)

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether a request must bring an unused producer id."""
        shard = self.shards.shard_of(transactional_id)
        return not isinstance(shard, ErrorCode) and shard.core.needs_producer_id(transactional_id)

    async def spare_producer_id(self, transactional_id: str) -> int:
        """An unused producer id if a request may need one. Raises KafkaError, as `ProducerIds.take`."""
        return await self.producer_ids.take() if self.needs_producer_id(transactional_id) else NO_PRODUCER_ID

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    def find(self, transactional_id: str) -> Transaction | ErrorCode:
        shard = self.shards.shard_of(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        return shard.core.find(transactional_id) or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def transactions(self) -> tuple[ErrorCode, list[Transaction]]:
        """The transactional ids coordinated here, and an error if others are not known yet."""
        error, shards = self.shards.ready()
        return error, [each for shard in shards for each in shard.core.transactions()]

    # ---- effects and timers ----

    def _perform(self, shard: Shard[Coordinator], effect: Effect) -> None:
        if not isinstance(effect, WriteMarkers):
            return
        core = shard.core

        def is_current() -> bool:
            return shard.core is core and shard.ready

        def done() -> None:
            shard.submit(
                MarkersWritten(
                    transactional_id=effect.transactional_id,
                    producer_id=effect.producer_id,
                    producer_epoch=effect.producer_epoch,
                )
            )

        self._markers.write(Job(effect, shard.leader_epoch, is_current, done))


def transactions_topic(settings: NodeSettings) -> CoordinatorTopic:
    return CoordinatorTopic(
        name=TRANSACTIONS_TOPIC,
        partitions=settings.transaction_state_log_num_partitions,
        replication_factor=settings.transaction_state_log_replication_factor,
        replication_setting="transaction.state.log.replication.factor",
        configs=(("segment.bytes", str(settings.transaction_state_log_segment_bytes)),),
        min_in_sync=settings.transaction_state_log_min_isr,
    )


def transaction_settings(settings: NodeSettings) -> TransactionSettings:
    return TransactionSettings(
        transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
        transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
        expiration_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
        abort_retry_ms=max(settings.transaction_abort_timed_out_transaction_cleanup_interval_ms // 10, 1),
        two_phase_commit=settings.transaction_two_phase_commit_enable,
    )
