"""TxnOffsetCommit (v0-5): offsets that count once the producer's transaction is committed."""

import asyncio
from collections.abc import Callable
from functools import partial

from tierlog.base.types import TopicPartition
from tierlog.broker.coordinators.core.effects import ErrorResponse, Producer
from tierlog.broker.groups.core.events import Commit, OffsetsResponse, OffsetToCommit, Response
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext, at_once_or_pending
from tierlog.broker.handlers.verification import Verifying, offsets_error
from tierlog.broker.transactions.verifier import TransactionVerifier
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ABORTABLE_FROM, ADDS_FROM = 4, 5
NO_SEQUENCE = -1


def txn_offset_commit_handler(groups: GroupService, verifier: TransactionVerifier) -> Handler:
    def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> Reply | Pending:
        if request.group_id == "":
            return _response(request, {}, ErrorCode.INVALID_GROUP_ID)
        shard = groups.shards.shard_of(request.group_id)
        if isinstance(shard, ErrorCode):
            return _response(request, {}, shard)
        adds = context.version >= ADDS_FROM
        verifying = Verifying(request.transactional_id, adds, groups.shards.must_verify)
        verifying.begin(shard.replica, request.producer_id, request.producer_epoch, NO_SEQUENCE)
        commit = partial(_commit, groups, context, request, verifying, shard.name)
        if verifying.ask(verifier):
            return at_once_or_pending(commit())
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        work = _commit_verified(verifying, verifier, commit, appended)
        return Pending(work, blocks_later_until=appended)

    return handle


async def _commit_verified(
    verifying: Verifying,
    verifier: TransactionVerifier,
    commit: "Callable[[], Reply | asyncio.Future[Reply]]",
    appended: "asyncio.Future[None]",
) -> Reply:
    """`appended`: set once later requests of the connection may follow. A later commit must not be overtaken:
    the coordinator may answer its question first."""
    await verifying.answers(verifier)
    found = commit()
    appended.set_result(None)
    return await found if isinstance(found, asyncio.Future) else found


def _commit(
    groups: GroupService,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    verifying: Verifying,
    partition: TopicPartition,
) -> "Reply | asyncio.Future[Reply]":
    """Commit the offsets, after the verification. `partition`: the one of the group."""
    if verifying.refused:
        error = verifying.refused[partition]
        known = offsets_error(error, knows_abortable=context.version >= ABORTABLE_FROM)
        return _response(request, {}, known)
    producer = Producer(request.producer_id, request.producer_epoch, verifying.guards.get(partition))
    refused, offsets = _offsets(groups, request)
    return groups.ask(
        request.group_id,
        lambda token: Commit(
            token=token,
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            by_name=True,
            offsets=tuple(offsets),
            producer=producer,
        ),
        lambda response: _converted(request, refused, response),
    )


Errors = dict[TopicPartition, ErrorCode]


def _offsets(groups: GroupService, request: TxnOffsetCommitRequest) -> tuple[Errors, list[OffsetToCommit]]:
    refused: Errors = {}
    offsets = []
    for topic in request.topics:
        found = groups.image.topic(topic.name)
        for each in topic.partitions:
            name = TopicPartition(topic.name, each.partition_index)
            if found is None or not 0 <= each.partition_index < len(found.partitions):
                refused[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            metadata, epoch = each.committed_metadata or "", each.committed_leader_epoch
            offsets.append(OffsetToCommit(name, each.committed_offset, epoch, metadata, found.topic_id))
    return refused, offsets


def _converted(
    request: TxnOffsetCommitRequest, refused: Errors, response: Response
) -> TxnOffsetCommitResponse:
    if isinstance(response, OffsetsResponse) and response.error == ErrorCode.NONE:
        return _response(request, refused | dict(response.partitions), ErrorCode.NONE)
    error = response.error if isinstance(response, OffsetsResponse | ErrorResponse) else ErrorCode.NONE
    return _response(request, refused, error)


def _response(request: TxnOffsetCommitRequest, errors: Errors, error: ErrorCode) -> TxnOffsetCommitResponse:
    """`error`: of the partitions without one of their own."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, each.partition_index), error),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
