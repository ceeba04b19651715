"""Refused batches of idempotent producers: keeps later batches out of the log until they are sent again.

A producer has up to five batches in flight on its connection. A broker may refuse the first for now, because
it does not lead the partition yet or has lost its lease, and be able to append when it handles the second.
That one would be a gap in the sequence. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka begins another epoch
and sends batches in flight to other partitions twice (its issue 4953). A partition that does not know the
producer would even accept the second batch, and refuse the first for good. The second therefore gets the
error of the first, and the client sends both again, in order. Kafka has no such rule.

A refused batch is remembered per connection, because only a connection has an order. Called by Produce.
"""

from tierlog.base.safeguards import safeguard
from tierlog.broker.handlers.context import RefusedBatch, Where
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, MAGIC, BatchHeader, Buffer, read_header

WAIT_MS = 10_000
"""How long later batches wait for a refused one. Clients send it again after a second, unless they have given
up."""

PARTITIONS_MAX = 100
"""Per connection. The oldest are forgotten first."""

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

_HALF_OF_SEQUENCES = 2**30


def note_refusal(
    refused: dict[Where, RefusedBatch],
    where: Where,
    records: Buffer | None,
    error: ErrorCode,
    now_ms: int,
) -> None:
    """Remember a batch that was refused, unless an earlier one of its producer is. `now_ms` is monotonic."""
    header = _of_idempotent_producer(records) if error in _FOR_NOW else None
    if header is None:
        return
    known = refused.pop(where, None)
    if known is None or now_ms - known.at_ms >= WAIT_MS or not _is_before(known, header):
        known = RefusedBatch(header.producer_id, header.producer_epoch, header.base_sequence, error, now_ms)
    if len(refused) >= PARTITIONS_MAX:
        del refused[next(iter(refused))]
    refused[where] = known


@safeguard("a batch waits for an earlier one that was refused")
def error_of_earlier(
    refused: dict[Where, RefusedBatch],
    where: Where,
    records: Buffer | None,
    now_ms: int,
) -> ErrorCode | None:
    """The error of an earlier batch of the producer that was refused and has not been sent again."""
    known = refused.get(where)
    header = None if known is None else _of_idempotent_producer(records)
    if known is None or header is None:
        return None
    if now_ms - known.at_ms < WAIT_MS and _is_before(known, header):
        return known.error
    del refused[where]
    return None


def _of_idempotent_producer(records: Buffer | None) -> BatchHeader | None:
    """The header of a batch with a sequence that is not part of a transaction."""
    if records is None or len(records) < HEADER_SIZE:
        return None
    header = read_header(records)
    is_plain = header.magic == MAGIC and header.producer_id >= 0 and not header.is_transactional
    return header if is_plain and header.base_sequence >= 0 else None


def _is_before(refused: RefusedBatch, header: BatchHeader) -> bool:
    """Whether the producer sends the batch of `header` after the refused one. Sequences wrap."""
    distance = (header.base_sequence - refused.base_sequence) % (2 * _HALF_OF_SEQUENCES)
    same = (refused.producer_id, refused.producer_epoch) == (header.producer_id, header.producer_epoch)
    return same and 0 < distance < _HALF_OF_SEQUENCES
