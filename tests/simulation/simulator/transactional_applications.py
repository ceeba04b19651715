"""Applications with transactions, and their readers: what they do, and what goes wrong with them.

Writers write transactions. A loop consumes, transforms and produces. Both consist of one instance after
another. They commit, abort, die, or let transactions time out. Replaced instances continue (zombies).
Late copies of their requests arrive in later transactions. Each coroutine runs until it is cancelled.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from simulator.groups import OFFSETS_TOPIC
from simulator.operators import create_topic, delete_topic
from simulator.transaction_history import NO_OFFSET, SimTransaction, TransactionHistory
from simulator.transaction_producer import (
    END,
    INPUTS,
    OUTPUTS,
    PRODUCE,
    TIMESTAMP_MS,
    VERSIONS,
    Failed,
    Producer,
    call,
    find_coordinator,
)
from simulator.transaction_reader import fetch, fetch_offset
from simulator.workload import RETRY_S, Client, new_producer_id, send
from tierlog.protocol.errors import ErrorCode
from tierlog.records.writer import NewRecord, encode_batch

PARTITIONS = 2
"""Partitions of the output topic."""

LOOP = "loop"
PAUSE_S, STEP_S = 0.1, 0.05
"""Mean pauses between two transactions, and between two steps of one."""

LATE_S = 2.0
"""A late request arrives, and a zombie continues, within this time."""

FATES = ("commit",) * 6 + ("abort", "abort late", "time out", "die", "zombie", "zombie")
LATE_ENDS = 0.4
"""Share of the ends of transactions, with version 2, of which a copy arrives late."""

KILLED, KILLED_EARLY = 0.08, 0.01
"""Shares of the ends of transactions, and of the batches, at which the coordinator is killed."""

DELAYED = 0.4
"""Share of the late batches that the coordinator's answer reaches late, maybe after the marker."""


FORGOTTEN = 0.5
"""Share of the aborts with a late batch, with version 1, in which the producer forgets an appended one."""

AWAY = 0.7
"""Share of the other aborts with a late batch, with version 1, after which the producer begins the next epoch
so late that the batch can come before it."""

SAME = 0.7
"""Share of the aborts with a late or forgotten batch, with version 1, after which the producer writes to the
batch's partition at once, and commits."""

LATE_OFFSETS = 0.15
"""Share of the loop's commits whose marker reaches the group's offsets late, after the response."""


class Host(Protocol):
    """The run of these applications."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...
    def client(self, name: str, topic: str = OUTPUTS) -> Client:
        """A client with connections of its own."""

    def kill_coordinator(self, producer: Producer, share: float) -> None:
        """Kill it within a moment in this share of the calls, while there are faults."""

    configs: Sequence[tuple[str, str]]
    """Configs that all topics of the run have."""

    def doomed_client(self) -> Client | None:
        """The client of a topic that does not exist yet, in some runs and transactions."""

    def delay_answers(self, producer: Producer, topic: str, partition: int) -> None:
        """Delay each message from the coordinator to the leader of a partition."""


class Applications:
    def __init__(
        self,
        host: Host,
        history: TransactionHistory,
        done: Counter[str],
        versions: Mapping[str, int],
        timeout_ms: int,
        forgets: random.Random,
        rare: random.Random,
        same: random.Random,
    ) -> None:
        """`versions`: of transactions, by transactional id. `forgets`: says which batches are forgotten.
        `rare`: says where AWAY and LATE_OFFSETS apply, and `same` where SAME does."""
        self._host, self._history, self._done = host, history, done
        self._versions, self._timeout_ms, self._forgets = versions, timeout_ms, forgets
        self._rare, self._same = rare, same
        self._instances: dict[str, list[Producer]] = {}

    def start(self) -> None:
        for name in self._versions:
            self._host.spawn(self._process_inputs() if name == LOOP else self._write(name))
        self._host.spawn(self._produce_inputs())
        for partition in range(PARTITIONS):
            self._host.spawn(self._read(partition))
        self._host.spawn(self._watch_offset())

    async def _write(self, name: str) -> None:
        """Runs until cancelled: one instance after another."""
        while True:
            producer = await self._new_instance(name)
            try:
                is_alive = True
                while is_alive:
                    is_alive = await self._transaction(producer)
                    await asyncio.sleep(producer.client.rng.expovariate(1 / PAUSE_S))
            except Failed:
                self._done["transactional producers fenced"] += 1
            await asyncio.sleep(producer.client.rng.uniform(*RETRY_S))

    async def _new_instance(self, name: str) -> Producer:
        instances = self._instances.setdefault(name, [])
        client = self._host.client(f"{name}-{len(instances)}")
        producer = Producer(client, self._history, name, self._versions[name], self._timeout_ms)
        instances.append(producer)
        await producer.initialize()
        for earlier in instances[:-1]:
            earlier.is_replaced = True
        return producer

    async def _transaction(self, producer: Producer, position: int = NO_OFFSET, inputs: int = 0) -> bool:
        """One transaction; of a loop, which is at `position`, one with that many inputs. Returns whether the
        instance continues."""
        rng, transaction = producer.client.rng, producer.begin()
        fate = rng.choice(FATES)
        texts = [str(position + at) for at in range(inputs)] or [""] * rng.randint(1, 5)
        doomed = self._host.doomed_client()
        topic_id = None if doomed is None else await create_topic(doomed, self._host.configs)
        await self._write_outputs(producer, transaction, texts)
        if doomed is not None and topic_id is not None:
            await self._write_to_doomed_topic(producer, doomed, topic_id)
        if inputs:
            transaction.first_input, transaction.next_input = position, position + inputs
        lacks_offset = bool(inputs) and fate == "zombie" and rng.random() < 0.5
        if inputs and not lacks_offset:
            await producer.send_offset(transaction.next_input)
        match fate:
            case "commit":
                await self._end(producer, transaction, commit=True)
            case "abort":
                await self._end(producer, transaction, commit=False)
            case "abort late":
                if producer.version == 1 and self._forgets.random() < FORGOTTEN:
                    await self._abort_and_forget(producer, transaction)
                else:
                    await self._abort_with_late_batch(producer, transaction)
            case "time out":
                self._done["transactions that time out"] += 1
                await asyncio.sleep(rng.uniform(0.5, 1.5) * self._timeout_ms / 1000)
                await self._end(producer, transaction, commit=True)
            case "zombie":
                self._done["zombies"] += 1
                self._host.spawn(self._continue(producer, transaction, lacks_offset=lacks_offset))
                return False
            case "die":
                await asyncio.sleep(rng.choice((0, 0, 1.2)) * self._timeout_ms / 1000)
                return False
        return True

    async def _write_outputs(self, producer: Producer, transaction: SimTransaction, texts: list[str]) -> None:
        rng = producer.client.rng
        while texts:
            count = rng.randint(1, 2)
            values = [transaction.next_value(text) for text in texts[:count]]
            del texts[:count]
            self._host.kill_coordinator(producer, KILLED_EARLY)
            await producer.send(transaction, rng.randrange(PARTITIONS), values)
            await asyncio.sleep(rng.expovariate(1 / STEP_S))

    async def _write_to_doomed_topic(self, producer: Producer, client: Client, topic_id: UUID) -> None:
        """Write to a topic that is deleted while the transaction is open, or when it ends. The transaction
        must end in its other partitions, and the next one begin."""
        await producer.add(0, client.topic)
        request, version = producer.request(0, [b"doomed"], client.topic), producer.version
        error = ErrorCode.REQUEST_TIMED_OUT
        while error != ErrorCode.NONE:
            answer = await client.call_leader(0, PRODUCE, VERSIONS[version][PRODUCE], request)
            if answer is None:
                continue
            error = ErrorCode(answer.responses[0].partition_responses[0].error_code)  # type: ignore[attr-defined]
            if error != ErrorCode.NONE:
                producer.check_error(error)
                await client.lost(0)
        self._done["transactions with a deleted topic"] += 1
        self._host.spawn(self._delete_late(client, topic_id))

    async def _delete_late(self, client: Client, topic_id: UUID) -> None:
        await asyncio.sleep(client.rng.uniform(0, 2 * PAUSE_S))
        await delete_topic(client, topic_id)

    async def _end(self, producer: Producer, transaction: SimTransaction, *, commit: bool) -> None:
        request = producer.end_request(commit)
        if commit and transaction.next_input != NO_OFFSET and self._rare.random() < LATE_OFFSETS:
            self._done["late markers of offsets"] += 1
            self._host.delay_answers(producer, OFFSETS_TOPIC, 0)
        self._host.kill_coordinator(producer, KILLED)
        await producer.end(transaction, commit=commit)
        if producer.version == 2 and producer.client.rng.random() < LATE_ENDS:
            self._host.spawn(self._end_late(producer, request))

    async def _end_late(self, producer: Producer, request: object) -> None:
        """A copy of an EndTxn arrives when the next transaction may be open. It belongs to none."""
        client = self._host.client(f"late-{producer.client.name}")
        await asyncio.sleep(client.rng.uniform(0, LATE_S) * client.rng.random())
        node = await find_coordinator(client, producer.transactional_id, 1)
        if await call(client, node, END, VERSIONS[2][END], request) is not None:
            self._done["late ends of transactions"] += 1

    async def _abort_with_late_batch(self, producer: Producer, transaction: SimTransaction) -> None:
        """The last batch is on its way when the producer gives up and aborts. Or its leader is asking the
        coordinator, whose answer then may come after the marker."""
        client = producer.client
        partition = client.rng.randrange(PARTITIONS)
        await producer.add(partition)
        request = producer.request(partition, [transaction.next_value()])
        is_delayed = client.rng.random() < DELAYED
        late_s = 0.0 if is_delayed else client.rng.uniform(0, LATE_S) * client.rng.random() ** 2
        if is_delayed:
            self._host.delay_answers(producer, OUTPUTS, partition)
        self._host.spawn(self._send_late(producer, partition, request, late_s))
        if client.rng.random() < 0.5:
            await asyncio.sleep(client.rng.expovariate(1 / STEP_S))
        await producer.end(transaction, commit=False)
        if producer.version == 1:
            if self._rare.random() < AWAY:
                self._done["producers away after an abort"] += 1
                await asyncio.sleep(LATE_S)
            await producer.initialize()  # the sequence of the next batch is not known (KIP-360)
            await self._commit_next(producer, partition)

    async def _abort_and_forget(self, producer: Producer, transaction: SimTransaction) -> None:
        """The response to the last batch is lost, and the next batch gets the same sequence, as librdkafka
        does it."""
        partition = self._forgets.randrange(PARTITIONS)
        await producer.add(partition)
        request = producer.request(partition, [transaction.next_value()])
        answer = await producer.client.call_leader(partition, PRODUCE, VERSIONS[1][PRODUCE], request)
        await producer.end(transaction, commit=False)
        if answer is None or answer.responses[0].partition_responses[0].error_code != ErrorCode.NONE:  # type: ignore[attr-defined]
            await producer.initialize()
        else:
            self._done["appended batches forgotten by an abort"] += 1
            await self._commit_next(producer, partition)

    async def _commit_next(self, producer: Producer, partition: int) -> None:
        """In some cases, write one record to the partition and commit.

        The marker would also commit a late batch that the leader has taken. A forgotten batch has the
        sequence of this record, which must not count as a retry of it."""
        if self._same.random() < SAME:
            transaction = producer.begin()
            await producer.send(transaction, partition, [transaction.next_value()])
            await producer.end(transaction, commit=True)
            self._done["commits after a late or forgotten batch"] += 1

    async def _send_late(self, producer: Producer, partition: int, request: object, late_s: float) -> None:
        client, version = self._host.client(f"late-{producer.client.name}"), producer.version
        await asyncio.sleep(late_s)
        if await client.call_leader(partition, PRODUCE, VERSIONS[version][PRODUCE], request) is not None:
            self._done["late batches"] += 1

    async def _continue(self, producer: Producer, transaction: SimTransaction, *, lacks_offset: bool) -> None:
        """A zombie continues its transaction, maybe after its successor has initialized, and commits."""
        rng = producer.client.rng
        await asyncio.sleep(rng.uniform(0, LATE_S) * rng.random())
        try:
            if rng.random() < 0.5:
                await self._write_outputs(producer, transaction, [""])
            if lacks_offset:
                await producer.send_offset(transaction.next_input)
            await producer.end(transaction, commit=True)
        except Failed:
            self._done["zombies fenced"] += 1

    # ---- the loop ----

    async def _produce_inputs(self) -> None:
        client = self._host.client(INPUTS, INPUTS)
        producer_id, sequence = await new_producer_id(client), 0
        while True:
            records = [NewRecord(TIMESTAMP_MS, None, b"%d" % sequence, ())]
            batch = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
            await send(client, 0, bytes(batch))
            sequence += 1
            await asyncio.sleep(client.rng.expovariate(1 / PAUSE_S))

    async def _process_inputs(self) -> None:
        """Consume, transform, produce. Runs until cancelled."""
        while True:
            producer = await self._new_instance(LOOP)
            client = self._host.client(f"{producer.client.name}-inputs", INPUTS)
            try:
                is_alive = True
                while is_alive:
                    known = self._history.acknowledged_offset
                    position = await fetch_offset(client, is_stable=True)
                    self._history.committed_offset(position, known)
                    position = max(position, 0)
                    found = await fetch(client, 0, position)
                    inputs = min(len(found.records), client.rng.randint(1, 3)) if found is not None else 0
                    if inputs:
                        is_alive = await self._transaction(producer, position, inputs)
                    if not inputs or client.rng.random() < 0.5:  # else its markers may not be written yet
                        await asyncio.sleep(client.rng.expovariate(1 / PAUSE_S))
            except Failed:
                self._done["transactional producers fenced"] += 1
            await asyncio.sleep(client.rng.uniform(*RETRY_S))

    # ---- readers ----

    async def _read(self, partition: int) -> None:
        """Read to the end, sometimes from the start again. Runs until cancelled."""
        client, offset = self._host.client(f"reader-{partition}"), 0
        self._history.begin_pass(partition)
        while True:
            found = await fetch(client, partition, offset)
            if found is None:
                continue
            self._history.read(partition, found.records, found.next_offset)
            offset = found.next_offset
            if client.rng.random() < 0.03:
                offset = 0
                self._history.begin_pass(partition)
            await asyncio.sleep(client.rng.expovariate(1 / STEP_S))

    async def _watch_offset(self) -> None:
        """Read the offset of the loop without waiting for transactions. Runs until cancelled."""
        client = self._host.client("offset reader", INPUTS)
        while True:
            self._history.committed_offset(await fetch_offset(client, is_stable=False), NO_OFFSET)
            await asyncio.sleep(client.rng.expovariate(1 / PAUSE_S))
