"""Produce requests with large batches: validates and appends them one by one.

The request's other batches are already appended. Later requests of the connection wait until the last batch
is appended, because an idempotent producer has up to five requests in flight, and their batches must be
appended in order. (Kafka mutes the connection during every request.) An append is checked when it happens: by
then the partition may have a new leader or new settings, or be deleted. Later batches of the same partition
in the request wait too.

The bytes of the request are held until all batches are appended, not until they are acknowledged.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tierlog.broker.handlers.batch_validator import BatchValidator
from tierlog.broker.handlers.context import CLOSE, WHOLE_FRAME, Pending, Reply
from tierlog.broker.replication.replica import Replica
from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.protocol.messages.produce import PartitionProduceResponse, ProduceRequest

MAX_COPIED_BYTES = 256 * 1024
"""Copying this much takes about 20 microseconds."""


@dataclass(slots=True, eq=False)
class UnvalidatedBatch:
    """A batch that is not appended yet. `response` is its part of the response. Without a validation it waits
    for an earlier batch of the same partition.
    """

    replica: Replica
    records: memoryview
    response: PartitionProduceResponse
    validation: BatchValidation | None = None


def keep_bytes(request: ProduceRequest, unvalidated: list[UnvalidatedBatch]) -> int:
    """Keep only these batches of the request. Small ones are copied, since a view would keep the whole
    receive buffer. Returns `Pending.keeps`.
    """
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = None
    held = sum(len(batch.records) for batch in unvalidated)
    if held > MAX_COPIED_BYTES:
        return WHOLE_FRAME
    for batch in unvalidated:
        batch.records = memoryview(bytearray(batch.records))
        if batch.validation is not None:
            batch.validation.move_to(batch.records)
    return held


async def append_validated(
    validator: BatchValidator,
    unvalidated: list[UnvalidatedBatch],
    blocks_later_until: "asyncio.Future[None]",
    append: Callable[[UnvalidatedBatch, ValidationResult | None], None],
    finish: Callable[[], Reply | Pending],
) -> Reply:
    """`append` appends the batch and sets its `validation` to None, or to a new one if the batch must be
    validated again. `finish` returns the response."""
    unvalidated.reverse()
    while unvalidated:
        await _append_one(validator, unvalidated.pop(), append)
    reply = finish()
    if reply is not CLOSE:  # else no later request is handled
        blocks_later_until.set_result(None)
    return await reply if isinstance(reply, Pending) else reply


async def _append_one(
    validator: BatchValidator,
    batch: UnvalidatedBatch,
    append: Callable[[UnvalidatedBatch, ValidationResult | None], None],
) -> None:
    if batch.validation is None:
        append(batch, None)
    while batch.validation is not None:
        append(batch, await validator.validate(batch.validation))
