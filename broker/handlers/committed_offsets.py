"""Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete. OffsetCommit and OffsetFetch identify topics
by id from version 10 on (KIP-848).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from tierlog.base.types import TopicPartition, numbers_by_topic
from tierlog.broker.coordinators.core.effects import ErrorResponse, Token
from tierlog.broker.groups.core.events import (
    NO_MEMBER_ID,
    Commit,
    DeleteOffsets,
    OffsetsResponse,
    OffsetToCommit,
    Request,
    Response,
)
from tierlog.broker.groups.core.formats import CommittedOffset
from tierlog.broker.groups.core.offsets import OffsetsByPartition
from tierlog.broker.groups.group_service import GroupService
from tierlog.broker.handlers.context import Handler, Pending, RawReply, Reply, RequestContext
from tierlog.broker.handlers.turns import ResponseEncoder, before_later_requests, weighted_slices
from tierlog.broker.security.authorizer import Access
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.metadata.image import TopicImage
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.codec import ArrayWriter, array_writer, nested_array_writer
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tierlog.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tierlog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tierlog.protocol.schema import ZERO_UUID

GROUPS_FROM = 8  # OffsetFetch names several groups from this version on
MEMBER_EPOCHS_FROM = 9  # KIP-848
TOPIC_IDS_FROM = 10
NO_OFFSET = -1
Key = TypeVar("Key", str, UUID)


UNSTABLE = CommittedOffset(NO_OFFSET, -1, "", 0)
"""In place of an offset that an open transaction may change."""


def offset_handlers(service: GroupService) -> dict[int, Handler]:
    handlers = _Handlers(service)
    named: dict[str, Handler] = {
        "OffsetCommit": handlers.commit,
        "OffsetFetch": handlers.fetch,
        "OffsetDelete": handlers.delete,
    }
    return {BY_NAME[name].key: handler for name, handler in named.items()}


class _Handlers:
    def __init__(self, service: GroupService) -> None:
        self._service = service

    # ---- OffsetCommit ----

    def commit(self, context: RequestContext, request: OffsetCommitRequest) -> Reply | Pending:
        refused: dict[tuple[str | UUID, int], ErrorCode] = {}
        offsets: list[OffsetToCommit] = []
        names: dict[str | UUID, str] = {}
        for topic in request.topics:
            key = _key(topic, context.version)
            found = self._service.image.find_topic(key)
            for each in topic.partitions:
                if found is None or not 0 <= each.partition_index < len(found.partitions):
                    refused[key, each.partition_index] = _unknown(key, found)
                    continue
                names[key] = found.name
                topic_partition = TopicPartition(found.name, each.partition_index)
                metadata = each.committed_metadata or ""
                offsets.append(
                    OffsetToCommit(
                        topic_partition,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        metadata,
                        found.topic_id,
                    )
                )

        def to_message(response: Response) -> OffsetCommitResponse:
            errors, top_level_error = _partition_errors(response)

            def result(key: str | UUID, partition: int) -> ErrorCode:
                if (key, partition) in refused:
                    return refused[key, partition]
                return errors.get(TopicPartition(names[key], partition), top_level_error)

            return OffsetCommitResponse(
                topics=[
                    OffsetCommitResponseTopic(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        partitions=[
                            OffsetCommitResponsePartition(
                                partition_index=each.partition_index,
                                error_code=result(_key(topic, context.version), each.partition_index),
                            )
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                    if topic.partitions
                ]
            )

        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: Commit(
                token=token,
                group_id=request.group_id,
                generation=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                group_instance_id=request.group_instance_id,
                retention_ms=request.retention_time_ms,
                by_name=context.version < TOPIC_IDS_FROM,
                has_epochs=context.version >= MEMBER_EPOCHS_FROM,
                offsets=tuple(offsets),
            ),
            to_message,
        )

    # ---- OffsetFetch ----

    def fetch(self, context: RequestContext, request: OffsetFetchRequest) -> Pending:
        if context.version < GROUPS_FROM:
            return before_later_requests(self._fetch_one(context, request))
        return before_later_requests(self._fetch_groups(context, request))

    async def _fetch_one(self, context: RequestContext, request: OffsetFetchRequest) -> RawReply:
        version, access = context.version, context.access
        committed: OffsetsByPartition | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if may_describe_group(access, request.group_id):
            committed = self._offsets(request.group_id, request.require_stable)
        requested = None
        if request.topics is not None:
            requested = _each_once([(each.name, each.partition_indexes) for each in request.topics])
        encoder = _TopicEncoder(array_writer(OffsetFetchResponse, version, "topics"), version)
        if isinstance(committed, ErrorCode):
            # version 1 has no top-level error: each partition carries it
            named = requested if requested is not None and version < 2 else []
            topics = [_Topic(name, numbers, error=committed) for name, numbers in named]
            await encoder.add(OffsetFetchResponse(error_code=committed), topics, {}, committed)
        else:
            wanted = numbers_by_topic(committed).items() if requested is None else requested
            topics = [_Topic(name, numbers) for name, numbers in wanted]
            topics = _permitted(access, topics, are_requested=requested is not None)
            await encoder.add(OffsetFetchResponse(), topics, committed)
        return encoder.encoding.reply()

    async def _fetch_groups(self, context: RequestContext, request: OffsetFetchRequest) -> RawReply:
        version, access, response = context.version, context.access, OffsetFetchResponse()
        once = {group.group_id: group for group in request.groups}
        topics = nested_array_writer(OffsetFetchResponse, version, OffsetFetchResponseGroup, "topics")
        groups = array_writer(OffsetFetchResponse, version, "groups")
        encoder = _TopicEncoder(topics, version)
        await encoder.encoding.add(groups.before(response, len(once)))
        for group in once.values():
            committed: OffsetsByPartition | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
            if may_describe_group(access, group.group_id):
                committed = self._offsets_of_member(group, request.require_stable)
            found = OffsetFetchResponseGroup(group_id=group.group_id)
            if isinstance(committed, ErrorCode):
                found.error_code = committed
                await encoder.add(found, [], {}, committed)
            else:
                topics_of_group = self._topics_of(group, version, committed)
                requested = _permitted(access, topics_of_group, are_requested=group.topics is not None)
                await encoder.add(found, requested, committed)
        await encoder.encoding.add(groups.after(response))
        return encoder.encoding.reply()

    def _offsets_of_member(
        self, group: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetsByPartition | ErrorCode:
        error = self._service.check_fetch(group.group_id, group.member_id or NO_MEMBER_ID, group.member_epoch)
        return error or self._offsets(group.group_id, require_stable)

    def _offsets(self, group_id: str, require_stable: bool) -> OffsetsByPartition | ErrorCode:
        """A copy: all offsets of a group are those of one moment, although encoding takes several turns.
        `require_stable`: those that an open transaction may change are UNSTABLE (KIP-447)."""
        committed = self._service.offsets(group_id)
        if isinstance(committed, ErrorCode):
            return committed
        unstable = self._service.unstable_partitions(group_id) if require_stable else ()
        return {**committed, **dict.fromkeys(unstable, UNSTABLE)}

    def _topics_of(
        self, group: OffsetFetchRequestGroup, version: int, committed: OffsetsByPartition
    ) -> "list[_Topic]":
        image = self._service.image
        if group.topics is None:
            return [
                _Topic(name, numbers, image.topic_ids.get(name, ZERO_UUID))
                for name, numbers in numbers_by_topic(committed).items()
                if version < TOPIC_IDS_FROM or name in image.topic_ids
            ]
        if version < TOPIC_IDS_FROM:
            named = _each_once([(each.name, each.partition_indexes) for each in group.topics])
            return [_Topic(name, numbers) for name, numbers in named]
        topics = []
        for topic_id, numbers in _each_once(
            [(each.topic_id, each.partition_indexes) for each in group.topics]
        ):
            found = image.topics.get(topic_id)
            if found is None:
                topics.append(_Topic("", numbers, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                topics.append(_Topic(found.name, numbers, topic_id))
        return topics

    # ---- OffsetDelete ----

    def delete(self, context: RequestContext, request: OffsetDeleteRequest) -> Reply | Pending:
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        requested = [
            TopicPartition(topic.name, each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        ]
        known = tuple(one for one in requested if self._exists(one))

        def to_message(response: Response) -> OffsetDeleteResponse:
            errors, top_level_error = _partition_errors(response)
            if top_level_error != ErrorCode.NONE:
                return OffsetDeleteResponse(error_code=top_level_error)

            def result(topic: str, partition: int) -> ErrorCode:
                topic_partition = TopicPartition(topic, partition)
                return errors.get(topic_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

            return OffsetDeleteResponse(
                topics=[
                    OffsetDeleteResponseTopic(
                        name=topic.name,
                        partitions=[
                            OffsetDeleteResponsePartition(
                                partition_index=each.partition_index,
                                error_code=result(topic.name, each.partition_index),
                            )
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )

        return ask_coordinator(
            self._service,
            request.group_id,
            lambda token: DeleteOffsets(token=token, group_id=request.group_id, partitions=known),
            to_message,
        )

    def _exists(self, topic_partition: TopicPartition) -> bool:
        topic = self._service.image.topic(topic_partition.topic)
        return topic is not None and 0 <= topic_partition.partition < len(topic.partitions)


def may_describe_group(access: Access | None, group_id: str) -> bool:
    return access is None or access.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)


def ask_coordinator(
    service: GroupService,
    group_id: str,
    build: Callable[[Token], Request],
    convert: Callable[[Response], Reply],
) -> Reply | Pending:
    """Send a request to the group's coordinator and convert its response. Returns a Pending if the
    coordinator does not respond at once."""
    response = service.ask(group_id, build, convert)
    return Pending(response) if isinstance(response, asyncio.Future) else response


def _key(topic: OffsetCommitRequestTopic, version: int) -> str | UUID:
    return topic.topic_id if version >= TOPIC_IDS_FROM else topic.name


def _each_once(topics: Iterable[tuple[Key, list[int]]]) -> list[tuple[Key, list[int]]]:
    """Remove repeated partitions: otherwise a small request could make the response hold many copies of an
    offset's metadata."""
    seen: dict[Key, set[int]] = {}
    unique = []
    for key, partitions in topics:
        earlier = seen.setdefault(key, set())
        first = [number for number in dict.fromkeys(partitions) if number not in earlier]
        earlier.update(first)
        unique.append((key, first))
    return unique


def _unknown(key: str | UUID, found: TopicImage | None) -> ErrorCode:
    by_id = isinstance(key, UUID) and found is None
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _top_level_error(response: Response) -> ErrorCode:
    return (
        response.error
        if isinstance(response, OffsetsResponse | ErrorResponse)
        else ErrorCode.UNKNOWN_SERVER_ERROR
    )


def _partition_errors(response: Response) -> tuple[dict[TopicPartition, ErrorCode], ErrorCode]:
    """Returns the errors by partition, and the error of every partition without its own."""
    partitions = response.partitions if isinstance(response, OffsetsResponse) else ()
    return dict(partitions), _top_level_error(response)


class _Topic(NamedTuple):
    """A topic of an OffsetFetch response. `error`: error code of all its partitions."""

    name: str
    partitions: list[int]
    topic_id: UUID = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE


def _permitted(access: Access | None, topics: list[_Topic], *, are_requested: bool) -> list[_Topic]:
    """The topics, of which those that the client may not describe have an error. If the client requested all
    topics, they are left out."""
    if access is None:
        return topics
    permitted = []
    for topic in topics:
        if not topic.name or access.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name):
            permitted.append(topic)
        elif are_requested:
            permitted.append(topic._replace(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return permitted


class _TopicEncoder:
    """Encodes the topics of OffsetFetch responses. Versions from GROUPS_FROM on have other structs."""

    def __init__(self, topics: ArrayWriter, version: int) -> None:
        self.encoding = ResponseEncoder()
        self._topics = topics
        self._has_groups = version >= GROUPS_FROM
        kind = OffsetFetchResponseTopics if self._has_groups else OffsetFetchResponseTopic
        self._partitions = nested_array_writer(OffsetFetchResponse, version, kind, "partitions")

    async def add(
        self,
        parent: OffsetFetchResponse | OffsetFetchResponseGroup,
        topics: Sequence[_Topic],
        committed: OffsetsByPartition,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        """Add `parent` with these topics. `error`: that of the parent."""
        if error != ErrorCode.NONE:
            self.encoding.errors[error] += 1
        await self.encoding.add(self._topics.before(parent, len(topics)), entries=1)
        for topic in topics:
            await self._add_topic(topic, committed)
        await self.encoding.add(self._topics.after(parent))

    async def _add_topic(self, topic: _Topic, committed: OffsetsByPartition) -> None:
        if self._has_groups:
            topic_struct: Any = OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id)
            kind: Any = OffsetFetchResponsePartitions
        else:
            topic_struct, kind = OffsetFetchResponseTopic(name=topic.name), OffsetFetchResponsePartition
        await self.encoding.add(self._partitions.before(topic_struct, len(topic.partitions)), entries=1)
        for some in weighted_slices(topic.partitions):
            partitions = [_partition(kind, committed, topic.name, number, topic.error) for number in some]
            await self.encoding.add(self._partitions.elements(partitions), len(some))
        await self.encoding.add(self._partitions.after(topic_struct))
        if topic.error != ErrorCode.NONE:
            self.encoding.errors[topic.error] += len(topic.partitions)


def _partition(
    kind: Any, committed: OffsetsByPartition, topic: str, partition: int, error: ErrorCode = ErrorCode.NONE
) -> Any:
    """The partition's response. A partition without a committed offset has offset -1, empty metadata and no
    error."""
    found = committed.get(TopicPartition(topic, partition)) if error == ErrorCode.NONE else None
    if found is UNSTABLE:
        found, error = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
    if found is None:
        return kind(
            partition_index=partition, committed_offset=NO_OFFSET, committed_leader_epoch=-1, error_code=error
        )
    return kind(
        partition_index=partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )
