"""Gaps in the sequences of idempotent producers: says when an earlier batch may still come.

A producer has up to five batches in flight. The first may have been refused for now, lost with the former
leader, or be under way to it on another connection, when the next one comes here. That one leaves a gap in
the sequence. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka begins another epoch and sends batches in flight
to other partitions twice (its issue 4953). A partition that does not know the producer would even accept the
batch, and refuse the first for good. So for some seconds after an election or a refusal such a batch gets
NOT_LEADER_OR_FOLLOWER, and the client sends both again, in order. Kafka has no such rule.

A refusal is remembered by partition, because the batch may come again on another connection. Called by
Produce.
"""

from tierlog.base.safeguards import safeguard
from tierlog.broker.handlers.context import Where
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.producer_state import Rejection
from tierlog.config.topic import is_topic_name
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, MAGIC, Buffer, read_header

WAIT_MS = 10_000
"""How long an earlier batch may take. Clients send it again after a second. If they have given it up, the
producer waits so long for the error."""

PARTITIONS_MAX = 10_000
"""Per broker. The oldest refusals are forgotten first."""

_FOR_NOW = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which clients send a batch again."""


class Refusals:
    """When batches were last refused for now, by partition. All times are monotonic."""

    def __init__(self) -> None:
        self._refused_ms: dict[Where, int] = {}

    def note(self, where: Where, error: int, now_ms: int) -> None:
        """Remember that a batch was refused with this error. Topics that cannot exist are ignored."""
        topic = where[0]
        if error not in _FOR_NOW or (isinstance(topic, str) and not is_topic_name(topic)):
            return
        self._refused_ms.pop(where, None)
        if len(self._refused_ms) >= PARTITIONS_MAX:
            del self._refused_ms[next(iter(self._refused_ms))]
        self._refused_ms[where] = now_ms

    @safeguard("a batch waits for an earlier one that was refused or lost")
    def must_wait(self, where: Where, replica: Replica, records: Buffer, now_ms: int) -> bool:
        """Whether the batch leaves a gap that an earlier batch may still fill."""
        return self._are_recent(where, replica, now_ms) and _leaves_gap(replica, records)

    def _are_recent(self, where: Where, replica: Replica, now_ms: int) -> bool:
        """Whether batches were refused a short time ago, or may be lost with a former leader, which a
        partition does not have in its first leader epoch."""
        if replica.leader_epoch > 0 and now_ms - replica.leads_since_ms < WAIT_MS:
            return True
        refused_ms = self._refused_ms.get(where)
        return refused_ms is not None and now_ms - refused_ms < WAIT_MS


def _leaves_gap(replica: Replica, records: Buffer) -> bool:
    """Whether an earlier batch of the producer is missing. A transaction may get the error: it is aborted,
    which doubles nothing."""
    if len(records) < HEADER_SIZE:
        return False
    header = read_header(records)
    if header.magic != MAGIC or header.producer_id < 0 or header.is_transactional:
        return False
    producers = replica.log.producers
    known = producers.get(header.producer_id)
    if known is None or known.epoch < 0:
        return header.base_sequence > 0
    verdict = producers.validate(header)
    return isinstance(verdict, Rejection) and verdict.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
