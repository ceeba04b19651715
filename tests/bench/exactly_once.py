"""Cases with transactions and consumer groups, by librdkafka: commits, copies, visibility, rebalances."""

import itertools
import os
import struct
import sys
import threading
import time
import uuid
from pathlib import Path

from meter import Meter, percentiles

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from wire_client import Client

from tierlog.protocol.api import BY_NAME
from tierlog.protocol.messages.api_versions import ApiVersionsRequest

TIMEOUT_S = 60.0
BATCH = 64 << 10
TRANSACTION_S = 1.0
"""How long a transaction stays open in transactional_produce."""

BALANCE_LIMIT_S = 100.0
BALANCE_POLL_S = 0.02
POLL_S = 0.1
SESSION_MS, HEARTBEAT_MS = 10_000, 3_000


def new_name():
    return f"bench-{uuid.uuid4().hex[:8]}"


def transactional_producer(options, **more):
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": options.bootstrap, "linger.ms": 0, "log_level": 2, **more}
    producer = Producer({**settings, "transactional.id": new_name()})
    producer.init_transactions(TIMEOUT_S)
    return producer


def per_commit(commits, meter, seconds):
    """`commits`: how long each took, in seconds."""
    return {
        "commits_s": round(len(commits) / seconds, 1),
        "cpu_ms_per_commit": round(1e3 * meter.broker / len(commits), 3),
        **percentiles(commits),
        **meter.report(),
    }


def transactions(options, topics, pids, warm):
    """One producer, whose transactions have options.per records each, one after another."""
    topic = topics.create(options.partitions)
    producer, payload, commits = transactional_producer(options), os.urandom(options.size), []
    try:
        with Meter(pids) as meter:
            begin = last = time.perf_counter()
            while last - begin < limit_s(options, warm):
                producer.begin_transaction()
                for index in range(options.per):
                    producer.produce(topic, payload, partition=index % options.partitions)
                producer.commit_transaction(TIMEOUT_S)
                now = time.perf_counter()
                commits.append(now - last)
                last = now
    finally:
        topics.delete(topic)
    return per_commit(commits, meter, last - begin)


def copy(options, topics, pids, warm):
    """Read, write and commit the offsets in transactions of options.per records."""
    source, sink = topics.create(options.partitions), topics.create(options.partitions)
    try:
        fill(options, source)
        consumer = assigned_consumer(options, source)
        producer, commits, copied = transactional_producer(options), [], 0
        with Meter(pids) as meter:
            begin = last = time.perf_counter()
            while last - begin < limit_s(options, warm):
                messages = consumer.consume(options.per, 1.0)
                if not messages:
                    break
                start = time.perf_counter()
                producer.begin_transaction()
                for message in messages:
                    producer.produce(sink, message.value(), partition=message.partition())
                offsets = consumer.position(consumer.assignment())
                group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, group, TIMEOUT_S)
                producer.commit_transaction(TIMEOUT_S)
                last = time.perf_counter()
                commits.append(last - start)
                copied += len(messages)
        consumer.close()
    finally:
        topics.delete(source)
        topics.delete(sink)
    seconds = last - begin
    return {"msgs_s": round(copied / seconds), **per_commit(commits, meter, seconds)}


def fill(options, topic):
    """options.count records, spread over the partitions."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": options.bootstrap, "linger.ms": 20})
    payload = os.urandom(options.size)
    for index in range(options.count):
        producer.produce(topic, payload, partition=index % options.partitions)
        if index % 1000 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise RuntimeError("the source could not be filled")


def assigned_consumer(options, topic):
    """The only member of a new group, which has got all partitions."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": new_name(),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(POLL_S)
    return consumer


def visible(options, topics, pids, warm):
    """options.rate transactions a second of one record: from its send to a read_committed consumer."""
    topic, latencies = topics.create(1), []
    total = int(options.rate * limit_s(options, warm))
    reader = threading.Thread(target=read_stamps, args=(options, topic, total, latencies))
    try:
        reader.start()
        producer, filler = transactional_producer(options), os.urandom(options.size - 8)
        time.sleep(1.0)  # the consumer's first fetch is waiting at the log end by then
        with Meter(pids) as meter:
            begin = time.perf_counter()
            for index in range(total):
                pause = begin + index / options.rate - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                producer.begin_transaction()
                producer.produce(topic, struct.pack(">q", time.monotonic_ns()) + filler)
                producer.commit_transaction(TIMEOUT_S)
            reader.join(TIMEOUT_S)
    finally:
        topics.delete(topic)
    if len(latencies) != total:
        raise RuntimeError(f"{total} committed, {len(latencies)} read")
    return {**percentiles(latencies), **meter.report()}


def read_stamps(options, topic, total, latencies):
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": options.bootstrap, "group.id": new_name(), "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while len(latencies) < total and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            latencies.append((time.monotonic_ns() - struct.unpack_from(">q", message.value())[0]) / 1e9)
    consumer.close()


def transactional_produce(options, topics, pids, warm):
    """Batches of 64 KiB in transactions of TRANSACTION_S, then without transactions for as long."""
    rates, cpu = [], []
    for in_transactions in (True, False):
        topic = topics.create(options.partitions)
        try:
            size, seconds, meter = produce_batches(
                options, topic, pids, limit_s(options, warm), in_transactions=in_transactions
            )
        finally:
            topics.delete(topic)
        rates.append(size / 1e6 / seconds)
        cpu.append(meter.broker / (size / 1e9))
    return {
        "mb_s": round(rates[0], 1),
        "share_of_plain": round(rates[0] / rates[1], 3),
        "cpu_of_plain": round(cpu[0] / max(cpu[1], 1e-3), 3),
        **meter.report(),
        "broker_cpu_s_per_gb": round(cpu[0], 3),
    }


def produce_batches(options, topic, pids, seconds, *, in_transactions):
    """Returns (bytes sent, seconds, Meter)."""
    from confluent_kafka import Producer

    settings = {"linger.ms": 50, "batch.size": BATCH, "queue.buffering.max.messages": 20_000}
    if in_transactions:
        producer = transactional_producer(options, **settings)
        producer.begin_transaction()
    else:
        producer = Producer(
            {"bootstrap.servers": options.bootstrap, "enable.idempotence": True, **settings, "log_level": 2}
        )
    payload, per_batch, sent = os.urandom(options.size), BATCH // options.size, 0
    with Meter(pids) as meter:
        begin = opened = now = time.perf_counter()
        while now - begin < seconds:
            try:
                for _ in range(100):
                    producer.produce(topic, payload, partition=sent // per_batch % options.partitions)
                    sent += 1
                producer.poll(0)
            except BufferError:
                producer.poll(0.01)
            now = time.perf_counter()
            if in_transactions and now - opened >= TRANSACTION_S:
                producer.commit_transaction(TIMEOUT_S)
                producer.begin_transaction()
                opened = now
        if in_transactions:
            producer.commit_transaction(TIMEOUT_S)
        elif producer.flush(TIMEOUT_S):
            raise RuntimeError("not everything was sent")
        taken = time.perf_counter() - begin
    return sent * options.size, taken, meter


class Member(threading.Thread):
    """A consumer of a group that polls until it is stopped. `held`: the partitions assigned to it."""

    def __init__(self, options, group, topic):
        from confluent_kafka import Consumer

        super().__init__(daemon=True)
        settings = {"bootstrap.servers": options.bootstrap, "group.id": group, "log_level": 0}
        settings |= {"enable.auto.commit": False, "auto.offset.reset": "latest"}
        if options.protocol == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
            settings |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        self._consumer, self._topic, self._stopped = Consumer(settings), topic, threading.Event()
        self.held = frozenset()

    def run(self):
        self._consumer.subscribe([self._topic])
        while not self._stopped.is_set():
            self._consumer.poll(POLL_S)
            self.held = frozenset(each.partition for each in self._consumer.assignment())
        self._consumer.close()
        self.held = frozenset()

    def stop(self):
        self._stopped.set()


def started(options, topic):
    """A new group of options.members members."""
    check_protocol(options)
    group = new_name()
    members = [Member(options, group, topic) for _ in range(options.members)]
    for member in members:
        member.start()
    return group, members


def check_protocol(options):
    """Raises RuntimeError if the broker does not serve the protocol, for which librdkafka would wait."""
    client = Client(options.bootstrap)
    served = {each.api_key for each in client.send("ApiVersions", 0, ApiVersionsRequest()).api_keys}
    client.close()
    if options.protocol == "consumer" and BY_NAME["ConsumerGroupHeartbeat"].key not in served:
        raise RuntimeError("ConsumerGroupHeartbeat is not served")


def stopped(members):
    for member in members:
        member.stop()
    for member in members:
        member.join()


def balanced_s(members, partitions):
    """Seconds until each partition is at one member, and all have equally many, or one more."""
    begin = time.perf_counter()
    while (taken := time.perf_counter() - begin) < BALANCE_LIMIT_S:
        held = [member.held for member in members]
        sizes = [len(each) for each in held]
        whole = sum(sizes) == partitions == len(set(itertools.chain(*held)))
        if whole and max(sizes) - min(sizes) <= 1:
            return round(taken, 3)
        time.sleep(BALANCE_POLL_S)
    raise TimeoutError(f"the group is not balanced after {BALANCE_LIMIT_S:g} s")


def rebalance(options, topics, pids, warm):
    """options.members join a new group at once; then one more comes, and goes again."""
    topic = topics.create(options.partitions)
    try:
        group, members = started(options, topic)
        with Meter(pids) as meter:
            all_in = balanced_s(members, options.partitions)
            if not warm:
                late = Member(options, group, topic)
                late.start()
                one_more = balanced_s([*members, late], options.partitions)
                late.stop()
                late.join()
                one_less = balanced_s(members, options.partitions)
        stopped(members)
    finally:
        topics.delete(topic)
    if warm:
        return {}
    return {"all_in_s": all_in, "one_more_s": one_more, "one_less_s": one_less, **meter.report()}


def heartbeats(options, topics, pids, warm):
    """Members that stay and have nothing to read, with a partition each."""
    if warm:
        return {}
    topic = topics.create(options.members)
    try:
        _, members = started(options, topic)
        all_in = balanced_s(members, options.members)
        with Meter(pids) as meter:
            time.sleep(options.seconds)
        stopped(members)
    finally:
        topics.delete(topic)
    return {"all_in_s": all_in, **meter.report()}


def limit_s(options, warm):
    return options.warm_s if warm else options.seconds
