"""Produce (v3-13): appends batches to replicas.

The response is immediate unless acks=all waits for the high watermark, or flush.messages makes
acknowledgements wait for an fsync. If a batch is too large to validate in one turn of the event loop, later
requests of the connection wait until it is appended (`validated_produce`).
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.audit_topic import may_write
from tierlog.broker.handlers.audited import record_denial
from tierlog.broker.handlers.context import CLOSE, WHOLE_FRAME, Handler, Pending, Reply, RequestContext, Where
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.leaders import add_current_leaders
from tierlog.broker.handlers.purgatory import Write
from tierlog.broker.handlers.validated_produce import UnvalidatedBatch, append_validated, keep_bytes
from tierlog.broker.handlers.verification import Verifying, append_verified, produce_error
from tierlog.broker.replication.leader_role import AppendResult
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.record_validation import ValidationResult
from tierlog.config.topic import INTERNAL_TOPICS
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.protocol.api import PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tierlog.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL,
    read_header,
)
from tierlog.records.codecs import Codec

ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0
TOPIC_IDS_FROM = 13  # KIP-516
LEADERS_FROM = 10  # KIP-951
ABORTABLE_FROM, ADDS_PARTITIONS_FROM = 11, 12  # KIP-890
ZSTD_FROM = 7  # KIP-110

_MUST_WAIT = AppendResult(
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    -1,
    -1,
    -1,
    -1,
    "an earlier batch of the producer is missing and may still come: send both again, in order",
)
"""It is not noted as a refusal: a batch that never comes would be waited for without end."""


class _UnacknowledgedBatch:
    """An appended batch that waits until the replica acknowledges `end_offset`."""

    __slots__ = ("acks", "completed", "deps", "end_offset", "leader_epoch", "replica", "response")

    def __init__(
        self,
        deps: Dependencies,
        replica: Replica,
        end_offset: int,
        acks: int,
        response: PartitionProduceResponse,
    ) -> None:
        self.deps = deps
        self.replica = replica
        self.end_offset = end_offset
        self.acks = acks
        self.leader_epoch = replica.leader_epoch
        self.response = response
        self.completed = False

    def is_complete(self) -> bool:
        """Whether the batch is acknowledged or has failed. A failure is written into the response."""
        if not self.completed:
            code = self.replica.as_leader.acknowledgement(self.end_offset, self.acks, self.leader_epoch)
            if code != ErrorCode.NONE and not self.deps.replicas.holds(self.replica):
                code = _error_of_removed(self.deps, self.replica)
            if code is not None:
                self.complete(code)
        return self.completed

    def complete(self, code: ErrorCode) -> None:
        self.completed = True
        if code != ErrorCode.NONE:
            self.response.error_code = code
            self.response.base_offset = -1
            self.deps.stats.for_api(PRODUCE_KEY).errors[code] += 1


def produce_handler(deps: Dependencies) -> Handler:
    append_all = _appender(deps)

    def handle(context: RequestContext, request: ProduceRequest) -> Reply | Pending:
        if request.transactional_id is None:
            return append_all(context, request, None)
        verifying = _begin_verification(deps, context, request, request.transactional_id)
        if deps.verifier is None:
            verifying.guards.clear()  # they count only once the coordinator has confirmed
        if deps.verifier is None or not verifying.guards:
            return append_all(context, request, verifying)
        if verifying.ask(deps.verifier):
            return append_all(context, request, verifying)
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append = partial(append_all, context, request, verifying)
        work = append_verified(verifying, deps.verifier, appended, append)
        return Pending(deps.tasks.spawn("verified produce", work), WHOLE_FRAME, blocks_later_until=appended)

    return handle


def _appender(
    deps: Dependencies,
) -> Callable[[RequestContext, ProduceRequest, Verifying | None], Reply | Pending]:
    """Appends the batches of a request whose transaction, if it has one, is verified."""
    errors = deps.stats.for_api(PRODUCE_KEY).errors
    closed = deps.settings.topics_of_brokers

    def append_all(
        context: RequestContext, request: ProduceRequest, verifying: Verifying | None
    ) -> Reply | Pending:
        now_ms = deps.clock.now_ms()
        by_id = context.version >= TOPIC_IDS_FROM
        response, failed = ProduceResponse(), False
        pending: list[_UnacknowledgedBatch] = []
        unvalidated: dict[Replica, list[UnvalidatedBatch]] = {}
        for topic in request.topic_data:
            key = topic.topic_id if by_id else topic.name
            results = []
            for data in topic.partition_data:
                found, where = deps.find_leader(key, data.index), (key, data.index)
                if isinstance(found, Replica):
                    if found.name.topic in closed and not _may_write(deps, context, found.name, data):
                        found = ErrorCode.INVALID_TOPIC_EXCEPTION
                    else:
                        found = _refusal(context, found, data, verifying) or found
                else:
                    deps.refusals.note(where, found, deps.clock.monotonic_ms())
                result = (
                    _append(deps, where, found, data, request.acks, now_ms, pending, unvalidated, verifying)
                    if isinstance(found, Replica)
                    else _error_response(data.index, found)
                )
                failed = failed or result.error_code != ErrorCode.NONE
                results.append(result)
            response.responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=results)
            )
        if unvalidated:
            batches = [batch for queue in unvalidated.values() for batch in queue]
            return validate(context, request, response, pending, batches, verifying)
        if failed:
            errors.update(_codes(response))
        return _finish(deps, context, request, response, pending, failed)

    def validate(
        context: RequestContext,
        request: ProduceRequest,
        response: ProduceResponse,
        pending: list[_UnacknowledgedBatch],
        unvalidated: list[UnvalidatedBatch],
        verifying: Verifying | None,
    ) -> Pending:
        def respond() -> Reply | Pending:
            errors.update(_codes(response))
            # validation took time: those that have failed by now count their error themselves
            pending[:] = [item for item in pending if not item.is_complete()]
            return _finish(deps, context, request, response, pending, any(_codes(response)))

        append = partial(_append_validated, deps, context, request.acks, pending, verifying)
        kept_bytes = keep_bytes(request, unvalidated)
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = append_validated(deps.batch_validator, unvalidated, appended, append, respond)
        return Pending(deps.tasks.spawn("produce", work), kept_bytes, blocks_later_until=appended)

    return append_all


def _finish(
    deps: Dependencies,
    context: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    pending: list[_UnacknowledgedBatch],
    failed: bool,
) -> Reply | Pending:
    if request.acks == ACKS_NONE:
        return CLOSE if failed else None  # with acks=0 the client expects no response
    if failed and context.version >= LEADERS_FROM:
        _name_leaders(deps, context.connection.listener, response, context.version >= TOPIC_IDS_FROM)
    return _when_acknowledged(deps, pending, response, request.timeout_ms) if pending else response


def _begin_verification(
    deps: Dependencies, context: RequestContext, request: ProduceRequest, transactional_id: str
) -> Verifying:
    """Find the batches that may open a transaction only after the coordinator was asked (KIP-890)."""
    is_enforced = deps.effective_settings.transaction_partition_verification_enable
    verifying = Verifying(transactional_id, context.version >= ADDS_PARTITIONS_FROM, is_enforced)
    for topic in request.topic_data:
        key = topic.topic_id if context.version >= TOPIC_IDS_FROM else topic.name
        for data in topic.partition_data:
            replica, records = deps.find_leader(key, data.index), data.records or b""
            if isinstance(replica, Replica) and len(records) >= HEADER_SIZE:
                verifying.begun.add(replica.name)
                header = read_header(records)
                if header.magic == MAGIC and header.is_transactional:
                    verifying.begin(replica, header.producer_id, header.producer_epoch, header.base_sequence)
    return verifying


def _may_write(
    deps: Dependencies, context: RequestContext, where: TopicPartition, data: PartitionProduceData
) -> bool:
    """Whether a client may write to a topic that brokers write. Kafka makes an exception for the client id
    `__admin_client`, which any client can use."""
    if where.topic in INTERNAL_TOPICS:
        return False
    if may_write(deps.settings, context, where, data.records):
        return True
    if deps.audit is not None:
        record_denial(deps.audit, context, AclOperation.CLUSTER_ACTION, ResourceType.TOPIC, where.topic)
    return False


def _refusal(
    context: RequestContext, replica: Replica, data: PartitionProduceData, verifying: Verifying | None
) -> ErrorCode | None:
    if context.version < ZSTD_FROM and _is_zstd(data):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if verifying is None:
        return None
    if replica.name not in verifying.begun:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # it has become the leader since
    error = verifying.refused.get(replica.name)
    if error is None:
        return None
    knows_abortable = context.version >= ABORTABLE_FROM
    return produce_error(error, knows_abortable=knows_abortable, adds=verifying.adds)


def _append(
    deps: Dependencies,
    where: Where,
    replica: Replica,
    data: PartitionProduceData,
    acks: int,
    now_ms: int,
    pending: list[_UnacknowledgedBatch],
    unvalidated: dict[Replica, list[UnvalidatedBatch]],
    verifying: Verifying | None,
) -> PartitionProduceResponse:
    if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        return _error_response(data.index, ErrorCode.INVALID_REQUIRED_ACKS)
    if data.records is None:
        return _error_response(data.index, ErrorCode.INVALID_RECORD)
    records = memoryview(data.records)
    if verifying is None and len(records) >= HEADER_SIZE and records[ATTRIBUTES_AT + 1] & TRANSACTIONAL:
        return _error_response(data.index, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)  # as in Kafka
    if unvalidated and (queue := unvalidated.get(replica)) is not None:
        response = PartitionProduceResponse(index=data.index)
        queue.append(UnvalidatedBatch(replica, records, response))
        return response
    result = _append_to_log(deps, where, replica, records, acks, now_ms, verifying)
    response = PartitionProduceResponse(index=data.index)
    if result.validation is not None:
        unvalidated[replica] = [UnvalidatedBatch(replica, records, response, result.validation)]
    else:
        _fill_in(deps, response, replica, result, acks, pending)
    return response


def _append_validated(
    deps: Dependencies,
    context: RequestContext,
    acks: int,
    pending: list[_UnacknowledgedBatch],
    verifying: Verifying | None,
    batch: UnvalidatedBatch,
    validated: ValidationResult | None,
) -> None:
    replica = batch.replica
    if not deps.replicas.holds(replica):
        batch.validation = None
        batch.response.error_code, batch.response.base_offset = _error_of_removed(deps, replica), -1
        return
    key = replica.topic_id if context.version >= TOPIC_IDS_FROM else replica.name.topic
    where = key, replica.name.partition
    now_ms = deps.clock.now_ms()
    result = _append_to_log(deps, where, replica, batch.records, acks, now_ms, verifying, validated)
    batch.validation = result.validation
    if result.validation is None:
        _fill_in(deps, batch.response, replica, result, acks, pending)


def _append_to_log(
    deps: Dependencies,
    where: Where,
    replica: Replica,
    records: memoryview,
    acks: int,
    now_ms: int,
    verifying: Verifying | None,
    validated: ValidationResult | None = None,
) -> AppendResult:
    if verifying is None:
        guard, must_verify = None, True
        if deps.refusals.must_wait(where, replica, records, deps.clock.monotonic_ms()):
            return _MUST_WAIT
    else:
        guard, must_verify = verifying.guards.get(replica.name), verifying.is_enforced
    result = replica.as_leader.append(
        records,
        now_ms,
        acks=acks,
        at_once=False,
        validated=validated,
        guard=guard,
        must_verify=must_verify,
    )
    if result.error is not ErrorCode.NONE:
        deps.refusals.note(where, result.error, deps.clock.monotonic_ms())
    return result


def _fill_in(
    deps: Dependencies,
    response: PartitionProduceResponse,
    replica: Replica,
    result: AppendResult,
    acks: int,
    pending: list[_UnacknowledgedBatch],
) -> None:
    response.error_code = result.error
    response.base_offset = result.base_offset
    response.log_append_time_ms = result.log_append_time_ms
    response.log_start_offset = result.log_start_offset
    if result.error != ErrorCode.NONE:
        response.error_message = result.message
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=bad.number, batch_index_error_message=bad.message)
            for bad in result.bad_records
        ]
        return
    reached = replica.high_watermark if acks == ACKS_ALL else replica.flushed_offset
    if acks != ACKS_NONE and reached <= result.last_offset:
        pending.append(_UnacknowledgedBatch(deps, replica, result.last_offset + 1, acks, response))


def _is_zstd(data: PartitionProduceData) -> bool:
    records = data.records or b""
    return len(records) >= HEADER_SIZE and read_header(records).attributes & CODEC_MASK == Codec.ZSTD


def _error_response(index: int, code: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=code, base_offset=-1)


def _when_acknowledged(
    deps: Dependencies, pending: list[_UnacknowledgedBatch], response: ProduceResponse, timeout_ms: int
) -> Reply | Pending:
    def expire() -> ProduceResponse:
        for item in pending:
            if not item.is_complete():
                item.complete(ErrorCode.REQUEST_TIMED_OUT)
        return response

    writes = [Write(item.replica.name, item.acks, item.is_complete) for item in pending]
    return deps.purgatory.wait_in_order(writes, timeout_ms, response, expire)


def _error_of_removed(deps: Dependencies, replica: Replica) -> ErrorCode:
    """The error for a replica that this broker no longer has."""
    lost = deps.replicas.is_offline(replica.name)
    return ErrorCode.KAFKA_STORAGE_ERROR if lost else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _name_leaders(deps: Dependencies, listener: str, response: ProduceResponse, by_id: bool) -> None:
    results = (
        (topic.topic_id if by_id else topic.name, result.index, result)
        for topic in response.responses
        for result in topic.partition_responses
    )
    add_current_leaders(deps.metadata.image, listener, response, results, LeaderIdAndEpoch, NodeEndpoint)


def _codes(response: ProduceResponse) -> Iterator[int]:
    for topic in response.responses:
        for result in topic.partition_responses:
            if result.error_code:
                yield result.error_code
