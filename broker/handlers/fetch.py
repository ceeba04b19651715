"""Fetch (v4-18): record batches as slices of files, from either tier, with sessions and one byte budget.

Consumers may be sent to a follower in their rack, which serves what it knows to be committed (KIP-392).
A request is answered at once if it has enough bytes, an error, a diverging epoch or remote data, or tells a
follower that serves consumers of a commit; else it waits in the purgatory. The first batch of the answer is
returned even if larger than every limit (KIP-74).
Remote partitions are read in parallel, each with the part of the budget that its turn in the request gives.
"""

import uuid
from collections.abc import Awaitable, Collection, Hashable, Iterable
from typing import NamedTuple

from tierlog.base.leader_epochs import UNKNOWN_END
from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.context import Handler, Meter, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_sessions import (
    FetchScope,
    FetchSession,
    SessionFault,
    SessionKey,
    SessionPartition,
)
from tierlog.broker.handlers.follower_answer import Told, follower_answer
from tierlog.broker.handlers.leaders import LEADER_ERRORS, leader_of, node_endpoints
from tierlog.broker.handlers.nearest_replica import LEADER_ITSELF, nearest_replica
from tierlog.broker.handlers.remote_fetch import RemoteRead, RemoteReads, aborted_of, fail
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import RACK_AWARE_SELECTOR
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

TOPIC_IDS_FROM = 13  # KIP-516
SESSIONS_FROM = 7  # KIP-227
RACKS_FROM = 11  # KIP-392
REPLICA_STATE_FROM = PLAIN_FROM = 15  # KIP-903
LEADERS_FROM = 16  # KIP-951
READ_COMMITTED = 1
FAULT_CODES = {
    SessionFault.ID_NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionFault.INVALID_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionFault.TOPIC_ID_MIX: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class _Follower:
    """The broker that fetches."""

    __slots__ = ("asked_ms", "broker_epoch", "broker_id", "noted")

    def __init__(self, broker_id: int, broker_epoch: int, asked_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.asked_ms = asked_ms
        self.noted = False
        """Whether what its request tells of it has been taken in."""


class _Asked(NamedTuple):
    """The limits of one request, resolved once."""

    version: int
    max_bytes: int
    min_bytes: int
    committed_only: bool
    scope: FetchScope
    meter: Meter | None
    follower: _Follower | None
    knows_followers: bool
    """Whether the client understands that another replica than the leader's may answer."""
    rack: str | None
    """Where the consumer is, if it shall be sent to the nearest replica."""


class _Reading:
    """One pass over the partitions of a request."""

    __slots__ = ("answers", "at_once", "left", "remote", "size", "sources", "throttled")

    def __init__(self, left: int) -> None:
        self.left = left
        self.size = 0
        self.at_once = False
        self.answers: list[PartitionData | Told | Replica] = []
        """One for each partition; the replica itself where a follower has all of it, as mostly of most."""
        self.sources: list[tuple[Replica, int]] = []
        """Whose records are in the answer, and how many bytes of them."""
        self.throttled = 0
        """Bytes of replicas that may only catch up so fast."""
        self.remote: list[RemoteRead] = []


def fetch_handler(deps: Dependencies) -> Handler:
    fetcher = _Fetcher(deps)
    return fetcher.handle


class _Fetcher:
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._remote = RemoteReads(deps)
        self._errors = deps.stats.of(FETCH_KEY).errors
        self._chooses_by_rack = deps.settings.replica_selector_class == RACK_AWARE_SELECTOR

    def handle(self, context: RequestContext, request: FetchRequest) -> Reply | Awaitable[Reply]:
        version = context.version
        replica_id = request.replica_state.replica_id if version >= REPLICA_STATE_FROM else request.replica_id
        follower = None if replica_id < 0 else self._follower(replica_id, request.replica_state.replica_epoch)
        by_id = version >= TOPIC_IDS_FROM
        scope = self._deps.sessions.begin(
            request.session_id,
            request.session_epoch if version >= SESSIONS_FROM else -1,
            _partitions(request, by_id),
            (
                (topic.topic_id if by_id else topic.topic, partition)
                for topic in request.forgotten_topics_data
                for partition in topic.partitions
            ),
            uses_topic_ids=by_id,
            now_ms=self._deps.clock.monotonic_ms(),
        )
        if isinstance(scope, SessionFault):
            self._errors[FAULT_CODES[scope]] += 1
            return FetchResponse(error_code=FAULT_CODES[scope])
        asked = _Asked(
            version,
            min(request.max_bytes, self._deps.settings.fetch_max_bytes),
            min(request.min_bytes, self._deps.settings.fetch_max_bytes),
            request.isolation_level == READ_COMMITTED,
            scope,
            context.meter if follower is None else None,
            follower,
            follower is None and version >= RACKS_FROM,
            (request.rack_id or None) if self._chooses_by_rack and follower is None else None,
        )
        return self._answer(asked, request.max_wait_ms)

    def _follower(self, broker_id: int, broker_epoch: int) -> _Follower:
        """Raises 31 for anyone but the process that is registered as that broker."""
        broker = self._deps.metadata.image.brokers.get(broker_id)
        itself = broker_id == self._deps.settings.node_id
        if broker is None or itself or broker.broker_epoch != broker_epoch:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed to fetch as a replica")
        return _Follower(broker_id, broker_epoch, self._deps.clock.monotonic_ms())

    def _answer(self, asked: _Asked, max_wait_ms: int) -> Reply | Awaitable[Reply]:
        reading = self.read(asked)
        if reading.remote:
            return self._answer_from_tier(asked, reading)
        enough = reading.size >= asked.min_bytes or reading.at_once or not asked.scope.partitions
        if enough or max_wait_ms <= 0:
            return self.respond(asked, reading)

        waiting = _Waiting(self, asked, reading)
        # A key may name no partition that exists; then nobody touches it.
        keys = [(self._name(item.topic), item.partition) for item in asked.scope.partitions]
        purgatory = self._deps.purgatory
        if asked.follower is None:
            return purgatory.wait(keys, max_wait_ms, waiting.attempt, waiting.expire)
        waiting.places = {key: place for place, key in enumerate(keys)}
        return purgatory.wait_patiently(keys, max_wait_ms, waiting.attempt_of, waiting.expire)

    def _answer_from_tier(self, asked: _Asked, reading: _Reading) -> Awaitable[Reply]:
        def respond(sources: list[tuple[Replica, int]]) -> Reply:
            reading.sources += sources
            return self.respond(asked, reading)

        return self._remote.answer(reading.remote, asked.committed_only, respond)

    # -- reading --

    def read(self, asked: _Asked) -> _Reading:
        reading = _Reading(asked.max_bytes)
        for item in asked.scope.partitions:
            reading.answers.append(self.read_one(asked, item, reading))
        if asked.follower is not None:
            asked.follower.noted = True
        return reading

    def read_one(
        self, asked: _Asked, item: SessionPartition, reading: _Reading
    ) -> PartitionData | Told | Replica:
        replica = self._deps.find_replica(item.topic, item.partition)
        if not isinstance(replica, Replica):
            following = self._deps.find_follower(item.topic, item.partition)
            if following is None or not asked.knows_followers:
                return _refusal(reading, item, replica)
            replica = following
        if item.current_leader_epoch >= 0 and item.current_leader_epoch != replica.leader_epoch:
            newer = item.current_leader_epoch > replica.leader_epoch
            return _refusal(
                reading, item, ErrorCode.UNKNOWN_LEADER_EPOCH if newer else ErrorCode.FENCED_LEADER_EPOCH
            )
        if asked.follower is not None:
            return self._read_for_follower(asked, asked.follower, item, replica, reading)
        if item.last_fetched_epoch >= 0:
            end = replica.end_offset_for_epoch(item.last_fetched_epoch)
            if end.end_offset < 0:
                return _refusal(reading, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if item.fetch_offset < replica.log_start_offset:  # told before a divergence, as in Kafka
                return _refusal(reading, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if end.epoch < item.last_fetched_epoch or end.end_offset < item.fetch_offset:
                return _diverged(reading, item, replica, end.epoch, end.end_offset)
        if asked.rack is not None and replica.is_leader:
            nearest = self._nearest(replica, asked.rack, item.fetch_offset)
            if nearest != LEADER_ITSELF:
                return _sent_away(reading, item, replica, nearest)
        first = reading.left == asked.max_bytes  # nothing was read so far: one batch must get through
        result = replica.read(
            item.fetch_offset,
            max(min(item.max_bytes, reading.left), 0),
            committed_only=asked.committed_only,
            min_one=first,
        )
        if result.error:
            return _refusal(reading, item, result.error)
        answer = PartitionData(
            partition_index=item.partition,
            high_watermark=result.high_watermark,
            last_stable_offset=result.last_stable_offset,
            log_start_offset=result.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
        if asked.committed_only:
            answer.aborted_transactions = aborted_of(result.aborted)
        if result.remote:
            share = max(min(item.max_bytes, reading.left), 0)
            reading.remote.append(RemoteRead(replica, item.fetch_offset, share, first, answer))
            reading.left -= max(share, 1)
        elif result.slice is not None and result.slice.size:
            answer.records = result.slice
            reading.size += result.slice.size
            reading.sources.append((replica, result.slice.size))
            reading.left -= result.slice.size
        return answer

    def _nearest(self, replica: Replica, rack: str, offset: int) -> int:
        deps = self._deps
        return nearest_replica(deps.metadata.image, deps.settings.node_id, replica, rack, offset)

    def _read_for_follower(
        self,
        asked: _Asked,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        reading: _Reading,
    ) -> PartitionData | Told | Replica:
        """Up to the log end; and what it asks for tells what it has, once for each request."""
        if not replica.knows_follower(follower.broker_id, follower.broker_epoch):
            return _refusal(reading, item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if replica.has_no_more_than(item.fetch_offset, item.last_fetched_epoch):
            self._note(asked, follower, item, replica, reading)
            return replica
        most, throttle = max(min(item.max_bytes, reading.left), 0), self._deps.throttles.leader
        throttled = throttle.is_set and _holds_for(throttle, replica, follower)
        if throttled:
            room = throttle.room(self._deps.clock.monotonic_ms()) - reading.throttled
            most = max(min(most, room), 0)
        result = replica.read_for_follower(
            item.fetch_offset,
            most,
            last_fetched_epoch=item.last_fetched_epoch,
            min_one=reading.left == asked.max_bytes and not (throttled and most == 0),
        )
        if result.error:
            refused = _refusal(reading, item, result.error)
            refused.log_start_offset = result.log_start_offset  # where it may have to start anew
            return refused
        if result.diverging != UNKNOWN_END:
            return _diverged(reading, item, replica, result.diverging.epoch, result.diverging.end_offset)
        self._note(asked, follower, item, replica, reading)
        found = result.slice
        if found is not None and found.size:
            reading.size += found.size
            reading.left -= found.size
            reading.throttled += found.size if throttled else 0
        else:
            found = None
        return _told(item, replica, found)

    def _note(
        self,
        asked: _Asked,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        reading: _Reading,
    ) -> None:
        """The follower's log agrees with the leader's up to where it fetches."""
        if not follower.noted and replica.follower_fetched(
            follower.broker_id,
            follower.broker_epoch,
            item.fetch_offset,
            follower.asked_ms,
            item.log_start_offset,
        ):
            self._deps.isr_due(replica)
        awaits_commit = self._chooses_by_rack and _awaits_commit(asked.scope, item, replica, follower)
        if awaits_commit or _awaits_log_start(asked.scope, item, replica):
            reading.at_once = True

    # -- answering --

    def respond(self, asked: _Asked, reading: _Reading) -> Reply:
        scope = asked.scope
        if asked.meter is not None and (throttled := _throttled(asked.meter, scope, reading)):
            return throttled
        if reading.throttled:
            self._deps.throttles.leader.took(reading.throttled)
        for replica, size in reading.sources:
            replica.bytes_out += size
        told, with_records = self._news(scope, reading)
        session_id = self._session_id(asked, scope.session)
        if scope.session is not None:
            scope.session.rotate(with_records)
        if asked.follower is not None and asked.version >= PLAIN_FROM:
            plain = [
                (item.topic, one)
                for item, one in told
                if isinstance(one, Told) and isinstance(item.topic, uuid.UUID)
            ]
            if len(plain) == len(told):
                return follower_answer(session_id, plain)
        response = FetchResponse(session_id=session_id)
        whole = [(item, _whole(one) if isinstance(one, Told) else one) for item, one in told]
        for item, answer in whole:
            _add(response, item.topic, answer)
        if asked.version >= LEADERS_FROM and reading.at_once:  # as with every refusal
            self._name_leaders(response, whole)
        return response

    def _news(
        self, scope: FetchScope, reading: _Reading
    ) -> tuple[list[tuple[SessionPartition, PartitionData | Told]], list[SessionKey]]:
        """What the client has to hear, and of which partitions it gets records."""
        told: list[tuple[SessionPartition, PartitionData | Told]] = []
        with_records: list[SessionKey] = []
        for item, answer in zip(scope.partitions, reading.answers, strict=True):
            error, noteworthy = 0, False
            if isinstance(answer, PartitionData):
                error, records = answer.error_code, isinstance(answer.records, LogSlice)
                if error:
                    self._errors[error] += 1
                noteworthy = (
                    records
                    or answer.diverging_epoch.end_offset >= 0
                    or answer.preferred_read_replica != LEADER_ITSELF
                )
            else:
                records = noteworthy = isinstance(answer, Told) and answer.found is not None
            if records:
                with_records.append(item.key)
            high, start = answer.high_watermark, answer.log_start_offset
            changed = item.tell(
                error=error, high_watermark=high, log_start_offset=start, noteworthy=noteworthy
            )
            if changed or scope.session is None:
                told.append((item, _told(item, answer) if isinstance(answer, Replica) else answer))
        return told, with_records

    def _session_id(self, asked: _Asked, session: FetchSession | None) -> int:
        if session is not None:
            return session.id
        if not asked.scope.may_open or asked.version < SESSIONS_FROM:
            return 0
        return self._deps.sessions.open(
            asked.scope.partitions,
            privileged=asked.follower is not None,
            uses_topic_ids=asked.version >= TOPIC_IDS_FROM,
            now_ms=self._deps.clock.monotonic_ms(),
        )

    def _name_leaders(
        self, response: FetchResponse, told: Iterable[tuple[SessionPartition, PartitionData]]
    ) -> None:
        image = self._deps.metadata.image
        named = set()
        for item, answer in told:
            leader = (
                leader_of(image, item.topic, item.partition) if answer.error_code in LEADER_ERRORS else None
            )
            if leader is not None:
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
                named.add(leader[0])
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in node_endpoints(image, named)
        ]

    def _name(self, topic: str | uuid.UUID) -> str:
        if isinstance(topic, str):
            return topic
        found = self._deps.metadata.image.topics.get(topic)
        return "" if found is None else found.name


class _Waiting:
    """A request that is not answered yet."""

    __slots__ = ("asked", "fetcher", "places", "reading")

    def __init__(self, fetcher: _Fetcher, asked: _Asked, reading: _Reading) -> None:
        self.fetcher = fetcher
        self.asked = asked
        self.reading = reading
        self.places: dict[Hashable, int] = {}
        """Of a follower's partitions, by their keys."""

    def attempt(self) -> Reply | None:
        asked, again = self.asked, self.fetcher.read(self.asked)
        if again.size >= asked.min_bytes or again.at_once or again.remote:
            # What became remote while it waited is read by the next fetch.
            return self.fetcher.respond(asked, again)
        return None

    def attempt_of(self, touched: Collection[Hashable]) -> Reply | None:
        """Of a follower's other partitions nothing has changed."""
        asked, reading = self.asked, self.reading
        if reading.size:
            return self.attempt()  # it was not enough
        for key in touched:
            place = self.places[key]
            reading.answers[place] = self.fetcher.read_one(asked, asked.scope.partitions[place], reading)
        if reading.size >= asked.min_bytes or reading.at_once:
            return self.fetcher.respond(asked, reading)
        return None

    def expire(self) -> Reply:
        return self.fetcher.respond(self.asked, self.fetcher.read(self.asked))


def _holds_for(throttle: Throttle, replica: Replica, follower: _Follower) -> bool:
    return follower.broker_id not in replica.in_sync and throttle.names(replica.name)


def _awaits_commit(scope: FetchScope, item: SessionPartition, replica: Replica, follower: _Follower) -> bool:
    """Whether consumers at this follower may be waiting for the high watermark alone, with no records to
    come before the next write. Only what a session has not been told: without one it would never end.
    Kafka waits for replica.fetch.wait.max.ms here, for the sake of fewer fetches (KAFKA-9952).
    """
    behind = scope.session is not None and item.told_high_watermark < replica.high_watermark
    return behind and follower.broker_id in replica.in_sync  # no other is named to consumers


def _awaits_log_start(scope: FetchScope, item: SessionPartition, replica: Replica) -> bool:
    """Whether the leader's log start is news to the follower: DeleteRecords waits until it has taken it, and
    if it led before that, deleted records would be back. Once for each session, or it would never end.
    """
    start = replica.log_start_offset
    return item.log_start_offset < start and scope.session is not None and item.told_log_start_offset < start


def _throttled(meter: Meter, scope: FetchScope, reading: _Reading) -> FetchResponse | None:
    """Over its quota a client gets nothing, and its session stays as it was (KIP-219)."""
    found = (answer.records for answer in reading.answers if isinstance(answer, PartitionData))
    throttle_time_ms = meter.fetched(sum(part.size for part in found if isinstance(part, LogSlice)))
    if not throttle_time_ms:
        return None
    session_id = 0 if scope.session is None else scope.session.id
    return FetchResponse(throttle_time_ms=throttle_time_ms, session_id=session_id)


def _partitions(request: FetchRequest, by_id: bool) -> Iterable[SessionPartition]:
    for topic in request.topics:
        key = topic.topic_id if by_id else topic.topic
        for asked in topic.partitions:
            yield SessionPartition(
                key,
                asked.partition,
                asked.fetch_offset,
                asked.partition_max_bytes,
                asked.current_leader_epoch,
                asked.last_fetched_epoch,
                asked.log_start_offset,
            )


def _refusal(reading: _Reading, item: SessionPartition, code: ErrorCode) -> PartitionData:
    reading.at_once = True
    return fail(PartitionData(partition_index=item.partition), code)


def _diverged(
    reading: _Reading, item: SessionPartition, replica: Replica, epoch: int, end_offset: int
) -> PartitionData:
    """KIP-595: the reader's log parts from ours at `end_offset`; it must go back there before it reads on."""
    answer = _without_records(reading, item, replica)
    answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return answer


def _sent_away(reading: _Reading, item: SessionPartition, replica: Replica, nearest: int) -> PartitionData:
    """KIP-392: it reads on at the broker `nearest`."""
    answer = _without_records(reading, item, replica)
    answer.preferred_read_replica = nearest
    return answer


def _without_records(reading: _Reading, item: SessionPartition, replica: Replica) -> PartitionData:
    """Nothing is read here, and nothing waited for."""
    reading.at_once = True
    return _whole(_told(item, replica))


def _told(item: SessionPartition, replica: Replica, found: LogSlice | None = None) -> Told:
    high, stable, start = replica.high_watermark, replica.last_stable_offset, replica.log_start_offset
    return Told(item.partition, high, stable, start, found)


def _whole(told: Told) -> PartitionData:
    """Beside an answer that is not plain."""
    return PartitionData(
        partition_index=told.partition,
        high_watermark=told.high_watermark,
        last_stable_offset=told.last_stable_offset,
        log_start_offset=told.log_start_offset,
        aborted_transactions=None,
        records=b"" if told.found is None else told.found,
    )


def _add(response: FetchResponse, topic: str | uuid.UUID, answer: PartitionData) -> None:
    """Partitions of one topic that follow each other share its entry."""
    last = response.responses[-1] if response.responses else None
    if last is not None and topic in (last.topic, last.topic_id):
        last.partitions.append(answer)
    elif isinstance(topic, str):
        response.responses.append(FetchableTopicResponse(topic=topic, partitions=[answer]))
    else:
        response.responses.append(FetchableTopicResponse(topic_id=topic, partitions=[answer]))
