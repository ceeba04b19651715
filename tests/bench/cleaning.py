"""Effect of the log cleaner on clients: latency of small produce requests while it runs."""

import random
import time

import raw
import wire
from meter import Meter, cpu_seconds, percentiles

KEYS = 1_000_000
BATCHES = 256  # different ones, sent in turn
RECORDS = 500
VALUE_BYTES = 100
DIRTY = {"min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(32 << 20)}

SLOT_S = 0.5
AT_WORK = 0.3
"""CPU share above which the broker does more than serve the requests of this case."""

BEGIN_S = 60.0  # brokers look for dirty logs every 15 s
IDLE_SLOTS = 4  # in a row: the cleaner has finished


def produce_while_compacting(options, topics, pids, warm):
    """An open loop of options.rate requests a second to one topic while the broker compacts another."""
    topic, dirty = topics.create(1), topics.create(1, DIRTY)
    (leader,) = topics.wait_leaders(topic, 1)
    batch = wire.record_batch(options.batch, options.records or max(options.batch // 1024, 1))
    frames = raw.produce_frames(topic, [0], batch, options.acks)
    rate = options.rate or 200.0
    try:
        if warm:
            raw.send_at_rate(leader, frames, rate, options.warm_s)
            return {}
        fill(leader, dirty, options.fill_bytes)
        topics.configure(dirty, "cleanup.policy", "compact")  # now: the cleaner finds all of it dirty
        wait_for_cleaner(pids)
        with Meter(pids) as meter:
            latencies, slots = beside_cleaner(leader, frames, rate, pids, options.seconds)
    finally:
        topics.delete(topic)
        topics.delete(dirty)
    return {"compacting_s": slots * SLOT_S, **percentiles(latencies), **meter.report()}


def fill(leader, topic, size):
    rng = random.Random(7)
    batches = [
        wire.keyed_batch([b"user-%08d" % rng.randrange(KEYS) for _ in range(RECORDS)], VALUE_BYTES, seed)
        for seed in range(BATCHES)
    ]
    frames = [wire.produce_request(topic, [(0, batch)], 1) for batch in batches]
    raw.send_fast(leader, frames, 5, size, 300, len(batches[0]))


def wait_for_cleaner(pids):
    deadline = time.monotonic() + BEGIN_S
    while time.monotonic() < deadline:
        before = burnt(pids)
        time.sleep(SLOT_S)
        if burnt(pids) - before > AT_WORK * SLOT_S:
            return
    raise RuntimeError("the broker compacts nothing")


def beside_cleaner(leader, frames, rate, pids, limit_s):
    """Latencies while the cleaner was at work, until it rests or time is up, and the number of such slots."""
    latencies, slots, idle = [], 0, 0
    end = time.monotonic() + limit_s
    while time.monotonic() < end and idle < IDLE_SLOTS:
        before = burnt(pids)
        seen = raw.send_at_rate(leader, frames, rate, SLOT_S)[2]
        if burnt(pids) - before > AT_WORK * SLOT_S:
            slots, idle = slots + 1, 0
            latencies += seen
        else:
            idle += 1
    return latencies, slots


def burnt(pids):
    return sum(map(cpu_seconds, pids))
