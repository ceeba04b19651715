"""Audit topic: produces the entries of this broker's audit log to a topic (`audit.log.topic`), for consumers
that collect those of all brokers.

The files of `broker.audit` are complete without it, and no request waits for it. Entries wait in the queue
while the partition has no leader. Those of one broker go to one partition, in their order, and may be there
twice after a timeout. Only brokers may write to the topic (`may_write`): a batch for another broker is signed
with controller.quorum.secret. Started by `app`.
"""

import asyncio
import hashlib
import hmac
from contextlib import AsyncExitStack

import structlog

from tierlog.base.network import Caller, Network, Unreachable
from tierlog.base.types import TopicPartition
from tierlog.broker.audit.topic_queue import QUEUE_BYTES_MAX, TopicQueue
from tierlog.broker.handlers.context import Pending, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.purgatory import Write
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import NodeSettings
from tierlog.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from tierlog.metadata.controller.commands import CreateTopics, NewTopic
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.api import PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.batch import ATTRIBUTES_AT, Buffer, seal
from tierlog.records.writer import NewRecord, encode_batch

RETRY_S, RETRY_MAX_S = 0.1, 5.0
"""Pause before a batch is sent again, at first and at most."""

TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
LOGGED_EVERY_MS = 60_000
ACKS_ALL = -1
PRODUCE_VERSION = 9
CLIENT_ID = "audit log"
SIGNATURE = "signature"
"""Header of the last record of a batch. Its value is the end of the batch, and signs the rest."""

SIGNATURE_BYTES = hashlib.sha256().digest_size
SIGNED_BYTES_MAX = 2 * QUEUE_BYTES_MAX
"""More than any batch of a broker: longer ones of clients are refused unread."""

_log = structlog.get_logger("tierlog.audit")


class NotProduced(Exception):
    """A batch did not reach the topic. It is sent again, unless it is too large."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code


class AuditTopic:
    """Empties the queue of a broker."""

    def __init__(self, deps: Dependencies, network: Network | None, queue: TopicQueue) -> None:
        """`network`: None if there are no other brokers."""
        self._deps = deps
        self._node_id = deps.settings.node_id
        self._network = network
        self._queue = queue
        self._caller: Caller | None = None
        self._caller_id = -1
        self._quiet_until_ms = 0

    def start(self) -> None:
        self._task = self._deps.tasks.repeat("audit topic", self._run)

    async def close(self) -> None:
        """Produce what waits, and the counts of repeated denials, for CLOSE_TIMEOUT_S at most."""
        if self._deps.audit is not None:
            self._deps.audit.end_repeats()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._queue.is_empty.wait()
        except TimeoutError:
            _log.warning("audit.stopping.incomplete", topic=self._topic)
        self._task.cancel()
        self._queue.close()
        self._close_caller()

    @property
    def _topic(self) -> str:
        return self._queue.topic

    async def _run(self) -> None:
        """Produce the lines that wait."""
        await self._queue.has_lines.wait()
        pause_s = RETRY_S
        while lines := self._queue.batch():
            try:
                await self._produce(lines)
            except NotProduced as failure:
                if failure.code is ErrorCode.MESSAGE_TOO_LARGE:
                    self._queue.on_too_large(lines)
                    continue
                self._log_failure(str(failure))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                self._queue.on_written(lines)
                pause_s = RETRY_S

    async def _produce(self, lines: list[bytes]) -> None:
        """Raises NotProduced."""
        topic = self._deps.metadata.image.topic(self._topic)
        if topic is None:
            return await self._create()
        number = self._node_id % len(topic.partitions)
        now_ms = self._deps.clock.now_ms()
        leader = topic.partitions[number].leader
        batch = signed_batch(self._deps.settings, TopicPartition(self._topic, number), lines, now_ms)
        if leader == self._node_id:
            return await self._append(number, batch, now_ms)
        return await self._send(leader, number, batch)

    async def _create(self) -> None:
        """Create the topic, unless an operator has done so, with other settings. The batch comes later."""
        settings = self._deps.settings
        replicas = 1 if self._network is None else settings.offsets_topic_replication_factor
        # compaction would leave one entry of each broker
        configs = (("cleanup.policy", "delete"),)
        new = NewTopic(name=self._topic, partitions=1, replication_factor=replicas, configs=configs)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                [outcome] = (await self._deps.metadata.submit(CreateTopics(topics=(new,)))).topics
        except (MetadataUnavailable, TimeoutError) as failure:
            raise NotProduced(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(failure)) from None
        if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise NotProduced(outcome.error, f"cannot create the topic: {outcome.message}")
        raise NotProduced(ErrorCode.LEADER_NOT_AVAILABLE, "the topic is new")

    async def _append(self, number: int, batch: bytearray, now_ms: int) -> None:
        """Append to this broker's replica, and wait for the others. Raises NotProduced."""
        found = self._deps.find_leader(self._topic, number)
        if not isinstance(found, Replica):
            raise NotProduced(found)
        replica = found
        if len(batch) > replica.config.max_message_bytes:
            raise NotProduced(ErrorCode.MESSAGE_TOO_LARGE)
        result = replica.as_leader.append(memoryview(batch), now_ms, from_client=False)
        if result.error is not ErrorCode.NONE:
            raise NotProduced(result.error, result.message)
        epoch, end, code = replica.leader_epoch, result.last_offset + 1, ErrorCode.REQUEST_TIMED_OUT

        def is_complete() -> bool:
            nonlocal code
            found = replica.as_leader.acknowledgement(end, ACKS_ALL, epoch)
            if found is not None:
                code = found
            return found is not None

        if not is_complete():
            write = Write(TopicPartition(self._topic, number), ACKS_ALL, is_complete)
            timeout_ms = int(TIMEOUT_S * 1000)
            waiting = self._deps.purgatory.wait_in_order([write], timeout_ms, None, lambda: None)
            if isinstance(waiting, Pending):
                await waiting.work
        if code is not ErrorCode.NONE:
            raise NotProduced(code)

    async def _send(self, leader: int, number: int, batch: bytearray) -> None:
        """Raises NotProduced."""
        broker = self._deps.metadata.image.brokers.get(leader)
        if broker is None or self._network is None:
            raise NotProduced(ErrorCode.LEADER_NOT_AVAILABLE)
        data = PartitionProduceData(index=number, records=bytes(batch))
        topics = [TopicProduceData(name=self._topic, partition_data=[data])]
        request = ProduceRequest(acks=ACKS_ALL, timeout_ms=int(TIMEOUT_S * 1000), topic_data=topics)
        try:
            if self._caller is None or not self._caller.is_open or self._caller_id != leader:
                self._close_caller()
                self._caller, self._caller_id = await self._network.connect(broker, CLIENT_ID), leader
            response = await self._caller.call(PRODUCE_KEY, PRODUCE_VERSION, request, 2 * TIMEOUT_S)
        except Unreachable as failure:
            raise NotProduced(ErrorCode.NETWORK_EXCEPTION, str(failure)) from None
        [result] = response.responses[0].partition_responses
        if result.error_code:
            raise NotProduced(ErrorCode(result.error_code), result.error_message)

    def _close_caller(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _log_failure(self, why: str) -> None:
        now_ms = self._deps.clock.monotonic_ms()
        if now_ms >= self._quiet_until_ms:
            self._quiet_until_ms = now_ms + LOGGED_EVERY_MS
            _log.warning("audit.topic.waiting", topic=self._topic, why=why)


def start_audit_topic(deps: Dependencies, network: Network | None, parts: AsyncExitStack) -> None:
    """Start the audit topic of a broker, if it has one. `parts`: what ends with the broker."""
    if deps.audit is not None and deps.audit.topic is not None:
        topic = AuditTopic(deps, network, deps.audit.topic)
        topic.start()
        parts.push_async_callback(topic.close)


def signed_batch(settings: NodeSettings, where: TopicPartition, lines: list[bytes], now_ms: int) -> bytearray:
    """The lines as records, with the signature of this broker."""
    key = str(settings.node_id).encode()
    records = [NewRecord(now_ms, key, line.rstrip(b"\n")) for line in lines]
    batch = encode_batch([*records[:-1], records[-1]._replace(headers=[(SIGNATURE, bytes(SIGNATURE_BYTES))])])
    batch[-SIGNATURE_BYTES:] = _signature(settings, where, batch)
    seal(batch, 0, len(batch))
    return batch


def _signature(settings: NodeSettings, where: TopicPartition, batch: Buffer) -> bytes:
    """The signature of a batch. It does not cover itself, nor what a leader sets: offset, epoch and CRC."""
    head = f"audit topic {where.topic} {where.partition}\n".encode()
    signing = hmac.new(settings.controller_quorum_secret.encode(), head, hashlib.sha256)
    signing.update(memoryview(batch)[ATTRIBUTES_AT:-SIGNATURE_BYTES])
    return signing.digest()


def may_write(
    settings: NodeSettings, context: RequestContext, where: TopicPartition, batch: Buffer | None
) -> bool:
    """Whether a client may append this batch, because it is a broker of this cluster: it uses the listener of
    brokers, has the permission for what only brokers do, if there is an authorizer, and knows
    controller.quorum.secret. A client with the permission, such as an administrator, does not. A node without
    the secret has no others."""
    if not settings.controller_quorum_secret:
        return False
    if context.connection.listener != settings.inter_broker_listener:
        return False
    access = context.access
    if access is not None and not access.allows_instead(
        AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        return False
    if batch is None or not ATTRIBUTES_AT + SIGNATURE_BYTES < len(batch) <= SIGNED_BYTES_MAX:
        return False
    given = bytes(memoryview(batch)[-SIGNATURE_BYTES:])
    return hmac.compare_digest(given, _signature(settings, where, batch))
