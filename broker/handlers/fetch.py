"""Fetch (v4-18): returns record batches as slices of local or remote files, with fetch sessions.

Consumers may be redirected to a follower in their rack, which serves committed records (KIP-392). A request
does not wait if enough bytes are available, if a partition has an error, a diverging epoch or remote records,
or if a follower needs a new high watermark or log start offset. Otherwise it waits in the purgatory. The
first batch of a response is returned even if it is larger than every limit (KIP-74). Partitions share the
request's `max_bytes` in the order of the request. Remote partitions are then read in parallel.
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
    response_message,
)
from tierlog.broker.handlers.fetch_sessions import (
    FetchContext,
    FetchSession,
    SessionFault,
    SessionKey,
    SessionPartition,
)
from tierlog.broker.handlers.leaders import add_current_leaders
from tierlog.broker.handlers.nearest_replica import LEADER_ITSELF, nearest_replica
from tierlog.broker.handlers.remote_fetch import RemoteRead, read_cached, read_remote
from tierlog.broker.quotas.replication import Throttle
from tierlog.broker.replication.replica import Replica
from tierlog.broker.security.authorizer import Access
from tierlog.config.node import RACK_AWARE_SELECTOR
from tierlog.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from tierlog.protocol.api import FETCH_KEY
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
)

# the first versions of Fetch with a feature
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
    """The follower that sent the request."""

    __slots__ = ("broker_epoch", "broker_id", "recorded", "requested_ms")

    def __init__(self, broker_id: int, broker_epoch: int, requested_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.requested_ms = requested_ms
        self.recorded = False
        """Whether the replicas have recorded the offsets of its request."""


class _FetchParams(NamedTuple):
    """Parameters of one request. `max_bytes` is at most `fetch.max.bytes`, and `min_bytes` at most
    `max_bytes`, or a full response would wait."""

    version: int
    max_bytes: int
    min_bytes: int
    committed_only: bool
    fetch_context: FetchContext
    meter: Meter | None
    follower: _Follower | None
    may_read_from_followers: bool
    """Whether the client may read from followers (KIP-392)."""
    access: Access | None
    """None: every topic may be read."""
    rack: str | None
    """The consumer's rack. None if the consumer is not redirected to the nearest replica."""
    listener: str


class _ReadResult:
    """The result of one pass over the partitions of a request."""

    __slots__ = ("left", "must_respond", "partitions", "remote", "size", "sources", "throttled")

    def __init__(self, left: int) -> None:
        self.left = left
        """Bytes that the response may still take."""
        self.size = 0
        """Bytes of local records."""
        self.must_respond = False
        """Whether the request must not wait: a partition has an error, or a change that the client must
        see."""
        self.partitions: list[FetchPartitionData] = []
        """One for each partition of the request, in its order."""
        self.sources: list[tuple[Replica, int]] = []
        """Replicas with records in the response, and the bytes of each."""
        self.throttled = 0
        """Bytes for replicas under a replication throttle."""
        self.remote: list[RemoteRead] = []
        """Reads of remote records that are still to be done."""


def fetch_handler(deps: Dependencies) -> Handler:
    return _Fetcher(deps).handle


class _Fetcher:
    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._errors = deps.stats.for_api(FETCH_KEY).errors
        self._chooses_by_rack = deps.settings.replica_selector_class == RACK_AWARE_SELECTOR

    def handle(self, context: RequestContext, request: FetchRequest) -> Reply | Pending:
        version = context.version
        replica_id = request.replica_state.replica_id if version >= REPLICA_STATE_FROM else request.replica_id
        follower = None if replica_id < 0 else self._follower(replica_id, request.replica_state.replica_epoch)
        by_id = version >= TOPIC_IDS_FROM
        fetch_context = self._deps.fetch_sessions.begin(
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
        if isinstance(fetch_context, SessionFault):
            self._errors[FAULT_CODES[fetch_context]] += 1
            return FetchResponse(error_code=FAULT_CODES[fetch_context])
        max_bytes = min(request.max_bytes, self._deps.settings.fetch_max_bytes)
        params = _FetchParams(
            version,
            max_bytes,
            min(request.min_bytes, max_bytes),
            request.isolation_level == READ_COMMITTED,
            fetch_context,
            context.meter if follower is None else None,
            follower,
            follower is None and version >= RACKS_FROM,
            context.access,
            (request.rack_id or None) if self._chooses_by_rack and follower is None else None,
            context.connection.listener,
        )
        return self._read_or_wait(params, request.max_wait_ms)

    def _follower(self, broker_id: int, broker_epoch: int) -> _Follower:
        """Raises CLUSTER_AUTHORIZATION_FAILED unless the request is from that broker's registered process."""
        broker = self._deps.metadata.image.brokers.get(broker_id)
        is_self = broker_id == self._deps.settings.node_id
        if broker is None or is_self or broker.broker_epoch != broker_epoch:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed to fetch as a replica")
        return _Follower(broker_id, broker_epoch, self._deps.clock.monotonic_ms())

    def _read_or_wait(self, params: _FetchParams, max_wait_ms: int) -> Reply | Pending:
        read = self.read(params)
        if read.remote:
            committed_only, sources = params.committed_only, read.sources
            waiting = read_cached(self._deps.remote, read.remote, committed_only, sources)
            if not waiting:
                return self.respond(params, read)
            respond = partial(self.respond, params, read)
            return Pending(read_remote(self._deps, waiting, committed_only, sources, respond))
        enough = read.size >= params.min_bytes or read.must_respond or not params.fetch_context.partitions
        if enough or max_wait_ms <= 0:
            return self.respond(params, read)

        delayed = _DelayedFetch(self, params, read)
        # the key of a partition that does not exist never changes, so it does not wake the request
        keys = [(self._name(item.topic), item.partition) for item in params.fetch_context.partitions]
        for_follower = params.follower is not None
        if for_follower:
            delayed.indexes = {key: index for index, key in enumerate(keys)}
        return self._deps.purgatory.wait(
            keys, max_wait_ms, delayed.try_complete, delayed.expire, coalesced=for_follower
        )

    # -- read --

    def read(self, params: _FetchParams) -> _ReadResult:
        read = _ReadResult(params.max_bytes)
        for item in params.fetch_context.partitions:
            read.partitions.append(self.read_one(params, item, read))
        if params.follower is not None:
            params.follower.recorded = True
        return read

    def read_one(self, params: _FetchParams, item: SessionPartition, read: _ReadResult) -> FetchPartitionData:
        if params.access is not None and not self._may_read(params.access, params.follower, item.topic):
            return _with_error(read, item, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = self._deps.find_leader(item.topic, item.partition)
        if not isinstance(replica, Replica):
            follower_replica = self._deps.find_follower(item.topic, item.partition)
            if follower_replica is None or not params.may_read_from_followers:
                return _with_error(read, item, replica)
            replica = follower_replica
        if error := _epoch_error(item.current_leader_epoch, replica.leader_epoch):
            return _with_error(read, item, error)
        if params.follower is not None:
            return self._read_for_follower(params, params.follower, item, replica, read)
        if item.last_fetched_epoch >= 0:
            end = replica.end_offset_for_epoch(item.last_fetched_epoch)
            if end.end_offset < 0:
                return _with_error(read, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if item.fetch_offset < replica.log_start_offset:  # checked before a divergence, as in Kafka
                return _with_error(read, item, ErrorCode.OFFSET_OUT_OF_RANGE)
            if end.epoch < item.last_fetched_epoch or end.end_offset < item.fetch_offset:
                return _diverged(read, item, replica, end)
        if params.rack is not None and replica.is_leader:
            image, node_id = self._deps.metadata.image, self._deps.settings.node_id
            nearest = nearest_replica(image, node_id, replica, params.rack, item.fetch_offset)
            if nearest != LEADER_ITSELF:
                return _redirected(read, item, replica, nearest)
        first = read.left == params.max_bytes  # nothing has been read: return at least one batch
        result = replica.read(
            item.fetch_offset,
            max(min(item.max_bytes, read.left), 0),
            committed_only=params.committed_only,
            min_one=first,
        )
        if result.error:
            return _with_error(read, item, result.error)
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

    def _may_read(self, access: Access, follower: _Follower | None, topic: str | uuid.UUID) -> bool:
        """Whether a topic may be read. An unknown id passes, and gets its own error."""
        if follower is not None:
            return access.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        name = topic if isinstance(topic, str) else self._name(topic)
        return not name or access.allows(AclOperation.READ, ResourceType.TOPIC, name)

    def _read_for_follower(
        self,
        params: _FetchParams,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        read: _ReadResult,
    ) -> FetchPartitionData:
        """Read up to the log end, and record the follower's fetch offset: it has all records below it."""
        if not replica.as_leader.knows_follower(follower.broker_id, follower.broker_epoch):
            return _with_error(read, item, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if replica.as_leader.has_nothing_for(item.fetch_offset, item.last_fetched_epoch):
            self._record_fetch(params, follower, item, replica, read)
            return FetchPartitionData(item.partition, replica)
        max_bytes, throttle = max(min(item.max_bytes, read.left), 0), self._deps.throttles.leader
        throttled = throttle.is_set and _is_throttled(throttle, replica, follower)
        if throttled:
            available = throttle.available_bytes(self._deps.clock.monotonic_ms()) - read.throttled
            max_bytes = max(min(max_bytes, available), 0)
        result = replica.read_for_follower(
            item.fetch_offset,
            max_bytes,
            last_fetched_epoch=item.last_fetched_epoch,
            min_one=read.left == params.max_bytes and not (throttled and max_bytes == 0),
        )
        if result.error:
            data = _with_error(read, item, result.error)
            data.log_start_offset = result.log_start_offset  # the follower may have to restart there
            return data
        if result.diverging != UNKNOWN_END:
            return _diverged(read, item, replica, result.diverging)
        self._record_fetch(params, follower, item, replica, read)
        records = result.slice
        if records is not None and records.size:
            read.size += records.size
            read.left -= records.size
            read.throttled += records.size if throttled else 0
        else:
            records = None
        return _with_offsets(item, replica, records)

    def _record_fetch(
        self,
        params: _FetchParams,
        follower: _Follower,
        item: SessionPartition,
        replica: Replica,
        read: _ReadResult,
    ) -> None:
        """Record, once for each request, that the follower's log equals the leader's up to the fetch
        offset."""
        if not follower.recorded and replica.as_leader.follower_fetched(
            follower.broker_id,
            follower.broker_epoch,
            item.fetch_offset,
            follower.requested_ms,
            item.log_start_offset,
        ):
            self._deps.submit_isr_change(replica)
        awaits_commit = self._chooses_by_rack and _awaits_commit(
            params.fetch_context, item, replica, follower
        )
        if awaits_commit or _awaits_log_start(params.fetch_context, item, replica):
            read.must_respond = True

    # -- respond --

    def respond(self, params: _FetchParams, read: _ReadResult) -> Reply:
        fetch_context = params.fetch_context
        if params.meter is not None and (empty := _response_over_quota(params.meter, fetch_context, read)):
            return empty
        if read.throttled:
            self._deps.throttles.leader.record(read.throttled)
        for replica, size in read.sources:
            replica.bytes_out += size
        sent, with_records = self._changes(fetch_context, read)
        session_id = self._session_id(params, fetch_context.session)
        if fetch_context.session is not None:
            fetch_context.session.rotate(with_records)
        if params.version >= PLAIN_FROM and params.meter is None:  # a meter may set the throttle time
            plain = plain_response(session_id, sent)
            if plain is not None:
                return plain
        response = response_message(session_id, sent)
        if (
            params.version >= LEADERS_FROM and read.must_respond
        ):  # remote reads have no error that names leaders
            encoded = (each for topic in response.responses for each in topic.partitions)
            results = (
                (topic, each.partition_index, each) for (topic, _), each in zip(sent, encoded, strict=True)
            )
            image = self._deps.metadata.image
            listener = params.listener
            add_current_leaders(image, listener, response, results, LeaderIdAndEpoch, NodeEndpoint)
        return response

    def _changes(
        self, fetch_context: FetchContext, read: _ReadResult
    ) -> tuple[FetchedPartitions, list[SessionKey]]:
        """Partitions that the response must contain, and those with records."""
        sent: FetchedPartitions = []
        with_records: list[SessionKey] = []
        for item, data in zip(fetch_context.partitions, read.partitions, strict=True):
            data.update_offsets()
            if data.error_code:
                self._errors[data.error_code] += 1
            if data.records is not None:
                with_records.append(item.key)
            changed = item.record_response(
                error=data.error_code,
                high_watermark=data.high_watermark,
                log_start_offset=data.log_start_offset,
                must_be_sent=data.must_be_sent,
            )
            if changed or fetch_context.session is None:
                sent.append((item.topic, data))
        return sent, with_records

    def _session_id(self, params: _FetchParams, session: FetchSession | None) -> int:
        if session is not None:
            return session.id
        if not params.fetch_context.may_open or params.version < SESSIONS_FROM:
            return 0
        return self._deps.fetch_sessions.open(
            params.fetch_context.partitions,
            is_follower=params.follower is not None,
            uses_topic_ids=params.version >= TOPIC_IDS_FROM,
            now_ms=self._deps.clock.monotonic_ms(),
        )

    def _name(self, topic: str | uuid.UUID) -> str:
        if isinstance(topic, str):
            return topic
        known = self._deps.metadata.image.topics.get(topic)
        return "" if known is None else known.name


class _DelayedFetch:
    """A Fetch in the purgatory."""

    __slots__ = ("fetcher", "indexes", "params", "read")

    def __init__(self, fetcher: _Fetcher, params: _FetchParams, read: _ReadResult) -> None:
        self.fetcher = fetcher
        self.params = params
        self.read = read
        self.indexes: dict[Hashable, int] = {}
        """For a follower: its partitions, as key -> index in the request. Empty for a consumer."""

    def try_complete(self, changed: Collection[Hashable]) -> Reply | None:
        """Read again; a follower's Fetch that has no records reads only the changed partitions."""
        params, read = self.params, self.read
        if self.indexes and not read.size:
            for key in changed:
                index = self.indexes[key]
                read.partitions[index] = self.fetcher.read_one(
                    params, params.fetch_context.partitions[index], read
                )
        else:
            read = self.fetcher.read(params)
        if read.size >= params.min_bytes or read.must_respond or read.remote:
            # `remote`: a fetch offset became remote during the wait; the next fetch reads it
            return self.fetcher.respond(params, read)
        return None

    def expire(self) -> Reply:
        return self.fetcher.respond(self.params, self.fetcher.read(self.params))


def _is_throttled(throttle: Throttle, replica: Replica, follower: _Follower) -> bool:
    return follower.broker_id not in replica.in_sync and throttle.is_throttled(replica.name)


def _awaits_commit(
    fetch_context: FetchContext, item: SessionPartition, replica: Replica, follower: _Follower
) -> bool:
    """Whether to send a new high watermark even without records: consumers of this follower may wait for it.

    True only once for each value and session, or the follower would fetch in a loop. Kafka waits for
    replica.fetch.wait.max.ms here to save fetches (KAFKA-9952).
    """
    behind = fetch_context.session is not None and item.sent_high_watermark < replica.high_watermark
    return behind and follower.broker_id in replica.in_sync  # consumers are redirected only to those


def _awaits_log_start(fetch_context: FetchContext, item: SessionPartition, replica: Replica) -> bool:
    """Whether to send the leader's new log start offset even without records.

    DeleteRecords waits until the follower has it. If the follower became leader without it, deleted records
    would return. True only once for each value and session.
    """
    start = replica.log_start_offset
    return (
        item.log_start_offset < start
        and fetch_context.session is not None
        and item.sent_log_start_offset < start
    )


def _response_over_quota(
    meter: Meter, fetch_context: FetchContext, read: _ReadResult
) -> FetchResponse | None:
    """An empty response if the client is over its quota, otherwise None. The session keeps what it has sent,
    so the next response repeats it (KIP-219)."""
    records = (data.records for data in read.partitions)
    throttle_time_ms = meter.charge_fetch(sum(part.size for part in records if part is not None))
    if not throttle_time_ms:
        return None
    session_id = 0 if fetch_context.session is None else fetch_context.session.id
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


def _with_error(read: _ReadResult, item: SessionPartition, code: ErrorCode) -> FetchPartitionData:
    read.must_respond = True
    data = FetchPartitionData(item.partition)
    data.error_code = code
    return data


def _diverged(
    read: _ReadResult, item: SessionPartition, replica: Replica, diverging: EpochEnd
) -> FetchPartitionData:
    """The client's log diverges; it must truncate to the end offset before it continues (KIP-595)."""
    read.must_respond = True
    data = _with_offsets(item, replica)
    data.diverging = diverging
    return data


def _redirected(
    read: _ReadResult, item: SessionPartition, replica: Replica, nearest: int
) -> FetchPartitionData:
    """Redirect the consumer to the broker `nearest` (KIP-392)."""
    read.must_respond = True
    data = _with_offsets(item, replica)
    data.preferred_replica = nearest
    return data


def _with_offsets(
    item: SessionPartition, replica: Replica, records: LogSlice | None = None
) -> FetchPartitionData:
    """Data with the offsets that the replica has now. Later changes do not show: `replica` is None."""
    data = FetchPartitionData(item.partition, replica, records)
    data.update_offsets()
    data.replica = None
    return data
