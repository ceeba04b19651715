"""Many producers that resend any of their last five batches at any time (guarantee 10).

One client writes for many producers, one request after the other: only their number per partition matters.
"""

from collections import Counter, deque
from typing import NamedTuple

from simulator.witness import Violation
from simulator.workload import Client, new_producer_id, send
from tierlog.records.writer import NewRecord, encode_batch

SHARE_WITH_MANY = 0.2
"""Share of the cluster runs with many producers."""

PRODUCERS = (30, 100)
"""Producers per partition."""

NEW = 0.4
"""Share of requests that are not retries."""

RETRIED = 5
"""Batches of a producer that may be in flight. Any of them may be resent."""


class Sent(NamedTuple):
    batch: bytes
    offset: int


class Sender:
    """One producer id; its values begin with `number`."""

    def __init__(self, number: int, producer_id: int) -> None:
        self.number, self.producer_id, self.count = number, producer_id, 0
        self.last: deque[Sent] = deque(maxlen=RETRIED)

    async def send_new(self, client: Client, partition: int) -> None:
        value = b"%d-%d" % (self.number, self.count)
        records = [NewRecord(1_750_000_000_000 + self.count, None, value, ())]
        batch = bytes(
            encode_batch(records, producer_id=self.producer_id, producer_epoch=0, base_sequence=self.count)
        )
        self.count += 1
        offset = await send(client, partition, batch)
        client.history.note(partition, [(offset, value)], "acknowledged")
        self.last.append(Sent(batch, offset))

    async def retry(self, client: Client, partition: int) -> bool:
        """Resend a batch that the log still has. Returns whether there was one.

        A replica does not know batches below its log start offset, and treats their retry as a new batch or
        as out of order (guarantee 10).
        """
        known = [one for one in self.last if one.offset >= client.history.start_offset(partition)]
        if not known:
            return False
        sent = client.rng.choice(known)
        try:
            offset = await send(client, partition, sent.batch)
        except Violation:
            if sent.offset >= client.history.start_offset(partition):
                raise
            return True
        if offset != sent.offset and sent.offset >= client.history.start_offset(partition):
            raise Violation(f"partition {partition}: a retry of {sent.offset} was written again at {offset}")
        return True


async def produce_and_retry(client: Client, first: int, partition: int, done: Counter[str]) -> None:
    """Runs until cancelled. The producers' numbers begin at `first`."""
    most = client.rng.choice(PRODUCERS)
    senders: list[Sender] = []
    while True:
        if len(senders) < most and (not senders or client.rng.random() < NEW):
            senders.append(Sender(first + len(senders), await new_producer_id(client)))
            await senders[-1].send_new(client, partition)
            continue
        sender = client.rng.choice(senders)
        if client.rng.random() < NEW:
            await sender.send_new(client, partition)
        else:
            done["retries of written batches"] += await sender.retry(client, partition)
