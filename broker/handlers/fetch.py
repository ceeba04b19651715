"""Fetch (v4-18): returns record batches as slices of local or remote files, with fetch sessions.

Consumers may be redirected to a follower in their rack, which serves committed records (KIP-392). A request
does not wait if it has enough bytes, an error, a diverging epoch or remote data, or if a follower needs a new
high watermark or log start offset. Else it waits in the purgatory. The first batch of a response is returned
even if it is larger than every limit (KIP-74). Remote partitions are read in parallel, each with the bytes
that are left when its turn in the request comes.
"""

import uuid
from collections.abc import Collection, Hashable, Iterable
from functools import partial
from typing import NamedTuple

from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd
from tierlog.base.safeguards import safeguard
from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.context import Handler, Meter, Pending, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.fetch_response import (
    PLAIN_FROM,
    FetchedPartitions,
    FetchPartitionData,
    plain_response,
    whole_response,
)
from tierlog.broker.handlers.fetch_sessions import (
    FetchScope,
    FetchSession,
    SessionFault,
    SessionKey,
    SessionPartition,
)
from tierlog.broker.handlers.leaders import name_current_leaders
from tierlog.broker.handlers.nearest_replica import LEADER_ITSELF, nearest_replica
from tierlog.broker.handlers.remote_fetch import RemoteRead, read_remote
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.replica import Replica
from tierlog.config.node import RACK_AWARE_SELECTOR
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
)

TOPIC_IDS_FROM = 13  # KIP-516
SESSIONS_FROM = 7  # KIP-227
RACKS_FROM = 11  # KIP-392
REPLICA_STATE_FROM = 15  # KIP-903
LEADERS_FROM = 16  # KIP-951
READ_COMMITTED = 1
FAULT_CODES = {
    SessionFault.ID_NOT_FOUND: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    SessionFault.INVALID_EPOCH: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    SessionFault.TOPIC_ID_MIX: ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class _Follower:
    """The broker that fetches."""

    __slots__ = ("broker_epoch", "broker_id", "recorded", "requested_ms")

    def __init__(self, broker_id: int, broker_epoch: int, requested_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.requested_ms = requested_ms
        self.recorded = False
        """Whether the replicas have recorded the offsets of its request."""


class _FetchParams(NamedTuple):
    """Parameters of one request."""

    version: int
    max_bytes: int
    min_bytes: int
    committed_only: bool
    scope: FetchScope
    meter: Meter | None
    follower: _Follower | None
    knows_followers: bool
    """Whether the client may read from followers (KIP-392)."""
    rack: str | None
    """The consumer's rack, if it is to be redirected to the nearest replica."""


class _ReadResult:
    """One pass over the partitions of a request."""

    __slots__ = ("at_once", "left", "partitions", "remote", "size", "sources", "throttled")

    def __init__(self, left: int) -> None:
        self.left = left
        self.size = 0
        self.at_once = False
        self.partitions: list[FetchPartitionData] = []
        """One for each partition."""
        self.sources: list[tuple[Replica, int]] = []
        """Replicas with records in the response, and the bytes of each."""
        self.throttled = 0
        """Bytes for replicas under a replication throttle."""
        self.remote: list[RemoteRead] = []


def fetch_handler(deps: Dependencies) -> Handler:
    return _Fetcher(deps).handle


class _Fetcher:
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._errors = deps.stats.of(FETCH_KEY).errors
        self._chooses_by_rack = deps.settings.replica_selector_class == RACK_AWARE_SELECTOR

    def handle(self, context: RequestContext, request: FetchRequest) -> Reply | Pending:
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
        params = _FetchParams(
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
        return self._read_or_wait(params, request.max_wait_ms)

    def _follower(self, broker_id: int, broker_epoch: int) -> _Follower:
        """Raises CLUSTER_AUTHORIZATION_FAILED unless the request is from that broker's registered process."""
        broker = self._deps.metadata.image.brokers.get(broker_id)
        itself = broker_id == self._deps.settings.node_id
        if broker is None or itself or broker.broker_epoch != broker_epoch:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed to fetch as a replica")
        return _Follower(broker_id, broker_epoch, self._deps.clock.monotonic_ms())

    def _read_or_wait(self, params: _FetchParams, max_wait_ms: int) -> Reply | Pending:
        read = self.read(params)
        if read.remote:
            respond = partial(self.respond, params, read)
            return Pending(read_remote(self._deps, read.remote, params.committed_only, read.sources, respond))
        enough = read.size >= params.min_bytes or read.at_once or not params.scope.partitions
        if enough or max_wait_ms <= 0:
            return self.respond(params, read)

        waiting = _DelayedFetch(self, params, read)
        # a key of a partition that does not exist never changes
        keys = [(self._name(item.topic), item.partition) for item in params.scope.partitions]
        by_follower = params.follower is not None
        if by_follower:
            waiting.places = {key: place for place, key in enumerate(keys)}
        return self._deps.purgatory.wait(
            keys, max_wait_ms, waiting.try_complete, waiting.expire, coalesced=by_follower
        )

    # -- read --

    def read(self, params: _FetchParams) -> _ReadResult:
        read = _ReadResult(params.max_bytes)
        for item in params.scope.partitions:
            read.partitions.append(self.read_one(params, item, read))
        if params.follower is not None:
            params.follower.recorded = True
        return read

    def read_one(self, params: _FetchParams, item: SessionPartition, read: _ReadResult) -> FetchPartitionData:
        replica = self._deps.find_replica(item.topic, item.partition)
        if not isinstance(replica, Replica):
            following = self._deps.find_follower(item.topic, item.partition)
            if following is None or not params.knows_followers:
                return _refusal(read, item, replica)
            replica = following
        if error := _epoch_error(item.current_leader_epoch, replica.leader_epoch):
            return _refusal(read, item, error)
        if params.follower is not None:
            return self._read_for_follower(params, params.follower, item, replica, read)
        if item.last_fetched_epoch >= 0:
            end = replica.end_offset_for_epoch(item.last_fetched_epoch)
            if end.end_offset < 0:
                return _refusal(read, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if (
                item.fetch_offset < replica.log_start_offset
            ):  # takes precedence over a divergence, as in Kafka
                return _refusal(read, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if end.epoch < item.last_fetched_epoch or end.end_offset < item.fetch_offset:
                return _diverged(read, item, replica, end)
        if params.rack is not None and replica.is_leader:
            image, here = self._deps.metadata.image, self._deps.settings.node_id
            nearest = nearest_replica(image, here, replica, params.rack, item.fetch_offset)
            if nearest != LEADER_ITSELF:
                return _redirected(read, item, replica, nearest)
        first = read.left == params.max_bytes  # nothing read so far: return at least one batch
        result = replica.read(
            item.fetch_offset,
            max(min(item.max_bytes, read.left), 0),
            committed_only=params.committed_only,
            min_one=first,
        )
        if result.error:
            return _refusal(read, item, result.error)
        data = FetchPartitionData(item.partition)
        data.high_watermark = result.high_watermark
        data.last_stable_offset = result.last_stable_offset
        data.log_start_offset = result.log_start_offset
        if params.committed_only:
            data.aborted = result.aborted
        if result.remote:
            share = max(min(item.max_bytes, read.left), 0)
            read.remote.append(RemoteRead(replica, item.fetch_offset, share, first, data))
            read.left -= max(share, 1)
        elif result.slice is not None and result.slice.size:
            data.records = result.slice
            read.size += result.slice.size
            read.sources.append((replica, result.slice.size))
            read.left -= result.slice.size
        return data

    def _read_for_follower(
        self,
        params: _FetchParams,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        read: _ReadResult,
    ) -> FetchPartitionData:
        """Read up to the log end. Its fetch offset says what the follower has; recorded once for each
        request."""
        if not replica.as_leader.knows_follower(follower.broker_id, follower.broker_epoch):
            return _refusal(read, item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if replica.as_leader.has_nothing_for(item.fetch_offset, item.last_fetched_epoch):
            self._record_fetch(params, follower, item, replica, read)
            return FetchPartitionData(item.partition, replica)
        most, throttle = max(min(item.max_bytes, read.left), 0), self._deps.throttles.leader
        throttled = throttle.is_set and _is_throttled(throttle, replica, follower)
        if throttled:
            available = throttle.available_bytes(self._deps.clock.monotonic_ms()) - read.throttled
            most = max(min(most, available), 0)
        result = replica.read_for_follower(
            item.fetch_offset,
            most,
            last_fetched_epoch=item.last_fetched_epoch,
            min_one=read.left == params.max_bytes and not (throttled and most == 0),
        )
        if result.error:
            refused = _refusal(read, item, result.error)
            refused.log_start_offset = result.log_start_offset  # the follower may have to restart there
            return refused
        if result.diverging != UNKNOWN_END:
            return _diverged(read, item, replica, result.diverging)
        self._record_fetch(params, follower, item, replica, read)
        found = result.slice
        if found is not None and found.size:
            read.size += found.size
            read.left -= found.size
            read.throttled += found.size if throttled else 0
        else:
            found = None
        return _with_offsets(item, replica, found)

    def _record_fetch(
        self,
        params: _FetchParams,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        read: _ReadResult,
    ) -> None:
        """The follower's log agrees with the leader's up to where it fetches."""
        if not follower.recorded and replica.as_leader.follower_fetched(
            follower.broker_id,
            follower.broker_epoch,
            item.fetch_offset,
            follower.requested_ms,
            item.log_start_offset,
        ):
            self._deps.isr_due(replica)
        awaits_commit = self._chooses_by_rack and _awaits_commit(params.scope, item, replica, follower)
        if awaits_commit or _awaits_log_start(params.scope, item, replica):
            read.at_once = True

    # -- response --

    def respond(self, params: _FetchParams, read: _ReadResult) -> Reply:
        scope = params.scope
        if params.meter is not None and (throttled := _throttled(params.meter, scope, read)):
            return throttled
        if read.throttled:
            self._deps.throttles.leader.record(read.throttled)
        for replica, size in read.sources:
            replica.bytes_out += size
        sent, with_records = self._changes(scope, read)
        session_id = self._session_id(params, scope.session)
        if scope.session is not None:
            scope.session.rotate(with_records)
        if params.version >= PLAIN_FROM and params.meter is None:  # which may set the throttle time
            plain = plain_response(session_id, sent)
            if plain is not None:
                return plain
        response = whole_response(session_id, sent)
        if params.version >= LEADERS_FROM and read.at_once:  # as with every refusal
            data = (each for topic in response.responses for each in topic.partitions)
            results = ((topic, one.partition_index, one) for (topic, _), one in zip(sent, data, strict=True))
            image = self._deps.metadata.image
            name_current_leaders(image, response, results, LeaderIdAndEpoch, NodeEndpoint)
        return response

    def _changes(self, scope: FetchScope, read: _ReadResult) -> tuple[FetchedPartitions, list[SessionKey]]:
        """Partitions that the response must contain, and those with records."""
        sent: FetchedPartitions = []
        with_records: list[SessionKey] = []
        for item, data in zip(scope.partitions, read.partitions, strict=True):
            data.take_offsets()
            if data.error_code:
                self._errors[data.error_code] += 1
            if data.records is not None:
                with_records.append(item.key)
            changed = item.record_response(
                error=data.error_code,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
                noteworthy=data.is_noteworthy,
            )
            if changed or scope.session is None:
                sent.append((item.topic, data))
        return sent, with_records

    def _session_id(self, params: _FetchParams, session: FetchSession | None) -> int:
        if session is not None:
            return session.id
        if not params.scope.may_open or params.version < SESSIONS_FROM:
            return 0
        return self._deps.sessions.open(
            params.scope.partitions,
            privileged=params.follower is not None,
            uses_topic_ids=params.version >= TOPIC_IDS_FROM,
            now_ms=self._deps.clock.monotonic_ms(),
        )

    def _name(self, topic: str | uuid.UUID) -> str:
        if isinstance(topic, str):
            return topic
        found = self._deps.metadata.image.topics.get(topic)
        return "" if found is None else found.name


class _DelayedFetch:
    """A Fetch in the purgatory."""

    __slots__ = ("fetcher", "params", "places", "read")

    def __init__(self, fetcher: _Fetcher, params: _FetchParams, read: _ReadResult) -> None:
        self.fetcher = fetcher
        self.params = params
        self.read = read
        self.places: dict[Hashable, int] = {}
        """Key -> index of a follower's partitions; empty for a consumer."""

    def try_complete(self, changed: Collection[Hashable]) -> Reply | None:
        """A follower's Fetch reads only the changed partitions again."""
        params, read = self.params, self.read
        if self.places and not read.size:  # else the records so far were not enough
            for key in changed:
                place = self.places[key]
                read.partitions[place] = self.fetcher.read_one(params, params.scope.partitions[place], read)
        else:
            read = self.fetcher.read(params)
        if read.size >= params.min_bytes or read.at_once or read.remote:
            # partitions that have become remote are read by the next fetch
            return self.fetcher.respond(params, read)
        return None

    def expire(self) -> Reply:
        return self.fetcher.respond(self.params, self.fetcher.read(self.params))


def _is_throttled(throttle: Throttle, replica: Replica, follower: _Follower) -> bool:
    return follower.broker_id not in replica.in_sync and throttle.is_throttled(replica.name)


def _awaits_commit(scope: FetchScope, item: SessionPartition, replica: Replica, follower: _Follower) -> bool:
    """Whether consumers at this follower may wait for a high watermark that comes with no records.

    Only once for each value and session, or the follower would fetch in a loop. Kafka waits for
    replica.fetch.wait.max.ms here to save fetches (KAFKA-9952).
    """
    behind = scope.session is not None and item.sent_high_watermark < replica.high_watermark
    return behind and follower.broker_id in replica.in_sync  # consumers are redirected to no other


def _awaits_log_start(scope: FetchScope, item: SessionPartition, replica: Replica) -> bool:
    """Whether the follower needs the leader's new log start offset: DeleteRecords waits for it, and if the
    follower became leader without it, deleted records would return. Once for each value and session.
    """
    start = replica.log_start_offset
    return item.log_start_offset < start and scope.session is not None and item.sent_log_start_offset < start


def _throttled(meter: Meter, scope: FetchScope, read: _ReadResult) -> FetchResponse | None:
    """An empty response for a client over its quota; its session does not change (KIP-219)."""
    found = (data.records for data in read.partitions)
    throttle_time_ms = meter.charge_fetch(sum(part.size for part in found if part is not None))
    if not throttle_time_ms:
        return None
    session_id = 0 if scope.session is None else scope.session.id
    return FetchResponse(throttle_time_ms=throttle_time_ms, session_id=session_id)


def _partitions(request: FetchRequest, by_id: bool) -> Iterable[SessionPartition]:
    for topic in request.topics:
        key = topic.topic_id if by_id else topic.topic
        for params in topic.partitions:
            yield SessionPartition(
                key,
                params.partition,
                params.fetch_offset,
                params.partition_max_bytes,
                params.current_leader_epoch,
                params.last_fetched_epoch,
                params.log_start_offset,
            )


def _epoch_error(sent: int, current: int) -> ErrorCode:
    if sent < 0 or sent == current:
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_LEADER_EPOCH if sent > current else ErrorCode.FENCED_LEADER_EPOCH


safeguard("a fetch with an old leader epoch is refused")(_epoch_error)


def _refusal(read: _ReadResult, item: SessionPartition, code: ErrorCode) -> FetchPartitionData:
    read.at_once = True
    data = FetchPartitionData(item.partition)
    data.error_code = code
    return data


def _diverged(
    read: _ReadResult, item: SessionPartition, replica: Replica, diverging: EpochEnd
) -> FetchPartitionData:
    """The client's log diverges; it must truncate to the end offset before it reads on (KIP-595)."""
    read.at_once = True
    data = _with_offsets(item, replica)
    data.diverging = diverging
    return data


def _redirected(
    read: _ReadResult, item: SessionPartition, replica: Replica, nearest: int
) -> FetchPartitionData:
    """Redirect the consumer to the broker `nearest` (KIP-392)."""
    read.at_once = True
    data = _with_offsets(item, replica)
    data.preferred_replica = nearest
    return data


def _with_offsets(
    item: SessionPartition, replica: Replica, records: LogSlice | None = None
) -> FetchPartitionData:
    """Data with the offsets that the replica has now."""
    data = FetchPartitionData(item.partition, replica, records)
    data.take_offsets()
    data.replica = None
    return data
