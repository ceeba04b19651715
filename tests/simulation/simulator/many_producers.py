"""Many producers in a run, which send any of their last five batches again, at any time (guarantee 10).

One client writes for many of them, one request after the other: what counts is how many a partition knows.
"""

from collections import Counter, deque
from typing import NamedTuple

from simulator.witness import Violation
from simulator.workload import Client, fresh_producer_id, send
from tierlog.records.writer import NewRecord, encode_batch

MANY = 0.2
"""Of the runs of a cluster: the share that has them."""

PRODUCERS = (30, 100)
"""Of each partition."""

NEW = 0.4
"""The share of requests that are no retries."""

RETRIED = 5
"""Batches of a producer that may be in flight, so any of them may come again."""


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

    async def retry(self, client: Client, partition: int) -> None:
        """Of a batch that the log still has. A replica that begins at the log start does not know batches
        below it, and takes a retry for a new batch, or for one out of order (guarantee 10)."""
        known = [one for one in self.last if one.offset >= client.history.first_kept(partition)]
        if not known:
            return
        sent = client.rng.choice(known)
        try:
            offset = await send(client, partition, sent.batch)
        except Violation:
            if sent.offset >= client.history.first_kept(partition):
                raise
            return
        if offset == sent.offset:
            return
        client.history.written_again.add((partition, offset))
        if sent.offset >= client.history.first_kept(partition):
            raise Violation(f"partition {partition}: a retry of {sent.offset} was written again at {offset}")


async def produce_and_retry(client: Client, first: int, partition: int, done: Counter[str]) -> None:
    """For ever; the producers' numbers begin at `first`."""
    most = client.rng.choice(PRODUCERS)
    senders: list[Sender] = []
    while True:
        if len(senders) < most and (not senders or client.rng.random() < NEW):
            senders.append(Sender(first + len(senders), await fresh_producer_id(client)))
            await senders[-1].send_new(client, partition)
            continue
        sender = client.rng.choice(senders)
        if client.rng.random() < NEW:
            await sender.send_new(client, partition)
        else:
            await sender.retry(client, partition)
            done["retries of written batches"] += 1
