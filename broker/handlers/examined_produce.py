"""The rest of a Produce request some of whose batches take long to look at.

Its other batches have been appended; these are examined one by one and appended then, before any later
request of the connection is looked at: idempotent producers have five on their way. (Kafka mutes a connection
while a request of it is at work.) What is judged when a batch is appended is judged then: the partition may
have got another leader or other settings since, or be gone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tierlog.broker.handlers.context import Reply
from tierlog.broker.partition.examination import Examination, Examined
from tierlog.broker.runtime.examiner import Examiner
from tierlog.broker.runtime.replica import Replica
from tierlog.broker.wire.messages.produce import PartitionProduceResponse


@dataclass(slots=True, eq=False)
class Unexamined:
    """A batch that was not appended; its answer is in the response and to be filled in."""

    replica: Replica
    records: memoryview
    answer: PartitionProduceResponse
    examination: Examination | None


async def append_examined(
    examiner: Examiner,
    unexamined: list[Unexamined],
    others_wait: "asyncio.Future[None]",
    append: Callable[[Unexamined, Examined], None],
    finish: Callable[[], "Reply | Awaitable[Reply]"],
) -> Reply:
    """`append` leaves another examination in the batch if it needs one after all; `finish` answers."""
    try:
        for batch in unexamined:
            while batch.examination is not None:
                append(batch, await examiner.examine(batch.examination))
    finally:
        others_wait.set_result(None)
    reply = finish()
    return await reply if isinstance(reply, Awaitable) else reply
