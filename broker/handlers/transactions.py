"""Transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions,
ListTransactions (KIP-98, KIP-664, KIP-890). Markers are in txn_markers.py, offsets in committed_offsets.py.

Translates between messages and the transaction coordinator's events and responses. EndTxn in version 5 and
AddPartitionsToTxn in version 5 stand for transaction version 2, as in Kafka.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, TypeVar

from tierlog.base.patterns import InvalidPattern, compile_pattern
from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.coordinators.shards import Shards, partition_of
from tierlog.broker.handlers.context import (
    Handler,
    Pending,
    Reply,
    RequestContext,
    at_once_or_pending,
    pending,
)
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN, in_turns, respond_in_turns
from tierlog.broker.security.authorizer import Access
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.events import (
    EndTransaction,
    InitProducerId,
    ProducerResponse,
    Response,
)
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import (
    EPOCH_BUMP_VERSION,
    NO_EPOCH,
    Transaction,
)
from tierlog.broker.transactions.transaction_service import TransactionService
from tierlog.broker.transactions.verifier import Verification, add_partitions
from tierlog.config.topic import OFFSETS_TOPIC
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.metadata.image import ClusterImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages import describe_transactions, list_transactions
from tierlog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tierlog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from tierlog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

BATCHES_FROM, ADD_VERSION = 4, 5
"""Versions of AddPartitionsToTxn: those of brokers, and those that stand for transaction version 2."""

END_VERSION = 5
IDS_PER_TURN = 20
"""Transactional ids that are compared with a pattern in one turn of the event loop: 10 ms at worst, if they
are short."""

FENCED_FROM = {
    BY_NAME[name].key: version
    for name, version in (
        ("InitProducerId", 4),
        ("AddPartitionsToTxn", 2),
        ("AddOffsetsToTxn", 2),
        ("EndTxn", 2),
    )
}
"""The first versions whose clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH (KIP-588)."""

T = TypeVar("T")


def transaction_handlers(service: TransactionService, groups: Shards[Any]) -> dict[int, Handler]:
    """API key -> handler of the APIs of the transaction coordinator."""
    handlers = _Handlers(service, groups)
    named: dict[str, Handler] = {
        "InitProducerId": pending(handlers.init_producer_id),
        "AddPartitionsToTxn": handlers.add_partitions,
        "AddOffsetsToTxn": handlers.add_offsets,
        "EndTxn": handlers.end,
        "DescribeTransactions": pending(handlers.describe),
        "ListTransactions": pending(handlers.list_transactions),
    }
    return {BY_NAME[name].key: handler for name, handler in named.items()}


class _Handlers:
    def __init__(self, service: TransactionService, groups: Shards[Any]) -> None:
        self._service = service
        self._groups = groups

    # ---- producers ----

    async def init_producer_id(self, context: RequestContext, request: InitProducerIdRequest) -> Reply:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
            # KIP-360: a producer that already has an id sends it with its epoch. Without a transactional id
            # it gets a new one, as in Kafka.
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id without its epoch, or the reverse")
        transactional_id = request.transactional_id
        if transactional_id is None:
            producer_id = await self._service.producer_ids.take()
            return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        if transactional_id == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        expected = (
            None if request.producer_id == NO_PRODUCER_ID else (request.producer_id, request.producer_epoch)
        )
        spare = await self._service.spare_producer_id(transactional_id)

        def convert(response: Response) -> InitProducerIdResponse:
            if not isinstance(response, ProducerResponse) or response.error != ErrorCode.NONE:
                return InitProducerIdResponse(
                    error_code=_known_error(context, response.error),
                    producer_id=NO_PRODUCER_ID,
                    producer_epoch=NO_EPOCH,
                )
            return InitProducerIdResponse(
                producer_id=response.producer_id,
                producer_epoch=response.producer_epoch,
                ongoing_txn_producer_id=response.ongoing_producer_id,
                ongoing_txn_producer_epoch=response.ongoing_producer_epoch,
            )

        return await _result(
            self._service.ask(
                transactional_id,
                lambda token: InitProducerId(
                    token=token,
                    transactional_id=transactional_id,
                    timeout_ms=request.transaction_timeout_ms,
                    expected=expected,
                    two_phase_commit=request.enable2_pc,
                    keep=request.keep_prepared_txn,
                    spare_producer_id=spare,
                ),
                convert,
            )
        )

    def end(self, context: RequestContext, request: EndTxnRequest) -> Reply | Pending:
        if request.transactional_id == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        if self._service.needs_producer_id(request.transactional_id):
            return Pending(self._end_with_spare(context, request))
        return at_once_or_pending(self._end(context, request, NO_PRODUCER_ID))

    async def _end_with_spare(self, context: RequestContext, request: EndTxnRequest) -> Reply:
        spare = await self._service.spare_producer_id(request.transactional_id)
        return await _result(self._end(context, request, spare))

    def _end(
        self, context: RequestContext, request: EndTxnRequest, spare: int
    ) -> "Reply | asyncio.Future[Reply]":
        def convert(response: Response) -> EndTxnResponse:
            if not isinstance(response, ProducerResponse) or response.error != ErrorCode.NONE:
                return EndTxnResponse(error_code=_known_error(context, response.error))
            return EndTxnResponse(producer_id=response.producer_id, producer_epoch=response.producer_epoch)

        return self._service.ask(
            request.transactional_id,
            lambda token: EndTransaction(
                token=token,
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                commit=request.committed,
                client_version=EPOCH_BUMP_VERSION if context.version >= END_VERSION else 0,
                spare_producer_id=spare,
            ),
            convert,
        )

    # ---- partitions ----

    def add_partitions(self, context: RequestContext, request: AddPartitionsToTxnRequest) -> Reply | Pending:
        if context.version < BATCHES_FROM:
            added = self._add(
                context,
                request.v3_and_below_transactional_id,
                (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
                request.v3_and_below_topics,
                lambda results: AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results),
                verify_only=False,
            )
            return at_once_or_pending(added)
        all_added = [
            self._add(
                context,
                each.transactional_id,
                (each.producer_id, each.producer_epoch),
                each.topics,
                partial(_result_of, each.transactional_id),
                verify_only=each.verify_only,
            )
            for each in request.transactions
        ]
        if any(isinstance(each, asyncio.Future) for each in all_added):
            return Pending(_all_results(all_added))  # an id that has to wait does not delay the others
        results = [each for each in all_added if not isinstance(each, asyncio.Future)]
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    def _add(
        self,
        context: RequestContext,
        transactional_id: str,
        producer: tuple[int, int],
        topics: list[AddPartitionsToTxnTopic],
        then: Callable[[list[AddPartitionsToTxnTopicResult]], T],
        *,
        verify_only: bool,
    ) -> "T | asyncio.Future[T]":
        """All partitions of the request are added, or none."""

        def results(errors: Mapping[TopicPartition, ErrorCode]) -> T:
            return then(
                [
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=each,
                                error_code=_known_error(context, errors[TopicPartition(topic.name, each)]),
                            )
                            for each in topic.partitions
                        ],
                    )
                    for topic in topics
                ]
            )

        partitions = [TopicPartition(topic.name, each) for topic in topics for each in topic.partitions]
        unknown = {each for each in partitions if not _exists(self._service.shards.image, each)}
        if transactional_id == "":
            return results(dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST))
        if unknown:
            not_attempted = dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED)
            return results(not_attempted | dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        verification = Verification(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            partitions=frozenset(partitions),
            adds=not verify_only,
            client_version=EPOCH_BUMP_VERSION if context.version >= ADD_VERSION else 0,
        )
        return add_partitions(self._service.shards, verification, results)

    def add_offsets(self, context: RequestContext, request: AddOffsetsToTxnRequest) -> Reply | Pending:
        """Add the `__consumer_offsets` partition of a group."""
        if self._groups.has_topic:
            return at_once_or_pending(self._add_offsets(context, request))
        return Pending(self._add_offsets_to_new_topic(context, request))

    async def _add_offsets_to_new_topic(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> Reply:
        await self._groups.create_topic()  # clients look for the group's coordinator later
        return await _result(self._add_offsets(context, request))

    def _add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest
    ) -> "Reply | asyncio.Future[Reply]":
        offsets_topic = self._service.shards.image.topic(OFFSETS_TOPIC)
        if request.transactional_id == "" or offsets_topic is None:
            error = (
                ErrorCode.COORDINATOR_NOT_AVAILABLE if offsets_topic is None else ErrorCode.INVALID_REQUEST
            )
            return AddOffsetsToTxnResponse(error_code=error)
        partition = partition_of(request.group_id, len(offsets_topic.partitions))
        name = TopicPartition(OFFSETS_TOPIC, partition)
        verification = Verification(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset((name,)),
            adds=True,
            client_version=0,
        )
        return add_partitions(
            self._service.shards,
            verification,
            lambda errors: AddOffsetsToTxnResponse(error_code=_known_error(context, errors[name])),
        )

    # ---- queries ----

    async def describe(
        self, context: RequestContext, request: describe_transactions.DescribeTransactionsRequest
    ) -> Reply:
        ids = dict.fromkeys(request.transactional_ids)
        return await respond_in_turns(
            describe_transactions.DescribeTransactionsResponse(),
            context.version,
            "transaction_states",
            len(ids),
            (self._described(each, context.access) for each in ids),
            weigh=lambda state: 1 + sum(len(topic.partitions) for topic in state.topics),
        )

    def _described(
        self, transactional_id: str, access: Access | None
    ) -> describe_transactions.TransactionState:
        if access is not None and not _may_describe(access, transactional_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return describe_transactions.TransactionState(transactional_id=transactional_id, error_code=code)
        found = self._service.find(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
        if isinstance(found, ErrorCode):
            return describe_transactions.TransactionState(transactional_id=transactional_id, error_code=found)
        numbers = numbers_by_topic(found.partitions)
        topics = [
            describe_transactions.TopicData(topic=topic, partitions=each)
            for topic, each in numbers.items()
            if access is None or access.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        ]
        return describe_transactions.TransactionState(
            transactional_id=transactional_id,
            transaction_state=found.state.title,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.started_ms,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=topics,
        )

    async def list_transactions(
        self, context: RequestContext, request: list_transactions.ListTransactionsRequest
    ) -> Reply:
        titles = {state.title for state in TransactionState}
        unknown = [each for each in request.state_filters if each not in titles]
        try:
            matches = _filter(request, self._service.now_ms, context.access)
        except InvalidPattern as fault:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(fault)) from None
        error, found = self._service.transactions()
        per_turn = IDS_PER_TURN if request.transactional_id_pattern else ENTRIES_PER_TURN
        is_wanted = await in_turns(found, matches, per_turn)
        listed = list(compress(found, is_wanted))
        return await respond_in_turns(
            list_transactions.ListTransactionsResponse(error_code=error, unknown_state_filters=unknown),
            context.version,
            "transaction_states",
            len(listed),
            map(_listed, listed),
        )


def _listed(found: Transaction) -> list_transactions.TransactionState:
    return list_transactions.TransactionState(
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
        transaction_state=found.state.title,
    )


def _may_describe(access: Access, transactional_id: str, keep: bool = True) -> bool:
    return access.allows(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, keep)


def _filter(
    request: list_transactions.ListTransactionsRequest, now_ms: int, access: Access | None
) -> Callable[[Transaction], bool]:
    """Filters of one kind are alternatives; a transaction must match each kind. None at all match everything
    that the client may describe. Raises InvalidPattern."""
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    pattern = request.transactional_id_pattern
    id_matches = compile_pattern(pattern) if pattern else None

    def matches(each: Transaction) -> bool:
        if states and each.state.title not in states:
            return False
        if producers and each.producer_id not in producers:
            return False
        if request.duration_filter >= 0 and not (
            each.state is TransactionState.ONGOING and now_ms - each.started_ms > request.duration_filter
        ):
            return False
        if id_matches is not None and not id_matches(each.transactional_id):
            return False
        return access is None or _may_describe(access, each.transactional_id, keep=False)

    return matches


def _exists(image: ClusterImage, partition: TopicPartition) -> bool:
    topic = image.topic(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


def _known_error(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """An error that clients of this version know."""
    if error == ErrorCode.PRODUCER_FENCED and context.version < FENCED_FROM[context.api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _result_of(
    transactional_id: str, results: list[AddPartitionsToTxnTopicResult]
) -> AddPartitionsToTxnResult:
    return AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=results)


async def _all_results(
    added: "Sequence[AddPartitionsToTxnResult | asyncio.Future[AddPartitionsToTxnResult]]",
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_transaction=[await _result(each) for each in added])


async def _result(found: "T | asyncio.Future[T]") -> T:
    return await found if isinstance(found, asyncio.Future) else found
