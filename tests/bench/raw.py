"""Raw cases: frames are built once and sent as bytes, to measure the broker and not the client."""

import json
import multiprocessing
import select
import struct
import time

import wire
from meter import Meter, percentiles

MIB = 1 << 20
WARM_LIMIT_S = 60.0
"""For the first pass over a topic: a slow disk must not take the time of the case."""


def produce_frames(topic, partitions, batch, acks):
    return [wire.produce_request(topic, [(partition, batch)], acks) for partition in partitions]


def send_fast(address, frames, depth, limit_bytes, limit_s, batch_bytes):
    """As fast as the broker answers, `depth` requests in flight; returns (requests, seconds, latencies)."""
    connection = wire.connect(address)
    reader = wire.FrameReader(connection)
    sent_at, latencies = [], []
    sent = received = 0
    correlate = struct.Struct(">i").pack_into
    clock = time.perf_counter
    limit_requests = max(limit_bytes // batch_bytes, 1)
    begin = clock()
    end = begin + limit_s
    stop = False
    while True:
        while not stop and sent - received < depth:
            frame = frames[sent % len(frames)]
            correlate(frame, wire.CORRELATION_AT, sent)
            sent_at.append(clock())
            connection.sendall(frame)
            sent += 1
            stop = sent >= limit_requests or sent_at[-1] >= end
        if received == sent:
            break
        body = reader.next()
        now = clock()
        if int.from_bytes(body[:4], "big") != received:
            raise RuntimeError("responses out of order")
        wire.check_produce_response(body)
        latencies.append(now - sent_at[received])
        received += 1
    seconds = clock() - begin
    connection.close()
    return received, seconds, latencies


def send_at_rate(address, frames, rate, limit_s):
    """Open loop: requests leave on a fixed schedule; latency counts from the scheduled moment."""
    connection = wire.connect(address)
    reader = wire.FrameReader(connection)
    total = int(rate * limit_s)
    correlate = struct.Struct(">i").pack_into
    clock = time.perf_counter
    latencies = []
    sent = received = 0
    begin = clock()
    while received < total:
        due = begin + sent / rate
        now = clock()
        if sent < total and now >= due:
            frame = frames[sent % len(frames)]
            correlate(frame, wire.CORRELATION_AT, sent)
            connection.sendall(frame)
            sent += 1
            continue
        wait = due - now if sent < total else None
        if reader.buffered() or select.select([connection], [], [], wait)[0]:
            wire.check_produce_response(reader.next())
            latencies.append(clock() - (begin + received / rate))
            received += 1
    seconds = clock() - begin
    connection.close()
    return received, seconds, latencies


def _child(pipe, work, arguments):
    pipe.send(work(*arguments))
    pipe.close()


def in_processes(work, jobs):
    """Runs work(*job) for each job in a process of its own (in this one when there is a single job)."""
    if len(jobs) == 1:
        return [work(*jobs[0])]
    running = []
    for job in jobs:
        ours, theirs = multiprocessing.Pipe(False)
        process = multiprocessing.Process(target=_child, args=(theirs, work, job))
        process.start()
        theirs.close()  # so that a child that dies is an EOFError here, not a hang
        running.append((process, ours))
    results = [pipe.recv() for _, pipe in running]
    for process, _ in running:
        process.join()
    return results


def stored_records(topic, leaders, wanted):
    """Sum of the log ends; with acks 1 the followers, so the high watermark, may need a moment more."""
    deadline = time.monotonic() + 5
    while True:
        stored = sum(
            wire.end_offset(leader, topic, partition) for leader, own in leaders.items() for partition in own
        )
        if stored == wanted or time.monotonic() > deadline:
            return stored
        time.sleep(0.05)


def retained(partition_bytes):
    """Settings of a topic that keeps so much of each partition; none for 0."""
    if not partition_bytes:
        return {}
    segment = str(max(partition_bytes // 4, MIB))
    return {"retention.bytes": str(partition_bytes), "segment.bytes": segment, "file.delete.delay.ms": "0"}


def tls_or(plain, options):
    """The address of the listener with TLS, if options name one."""
    return wire.tls_address(options.tls, options.ca) if options.tls else plain


def raw_produce(options, topics, pids, warm):
    """options.connections to every leader; they share its partitions."""
    batch = wire.record_batch(options.batch, options.records or max(options.batch // 1024, 1))
    per_batch = options.records or max(options.batch // 1024, 1)
    topic = topics.create(options.partitions, retained(options.retain // options.partitions))
    leaders = topics.wait_leaders(topic, options.partitions)
    shares = [
        (tls_or(leader, options), own[i :: options.connections])
        for leader, own in leaders.items()
        for i in range(options.connections)
        if own[i:]
    ]
    limit_s = options.warm_s if warm else options.seconds
    try:
        jobs = [
            (
                leader,
                produce_frames(topic, share, batch, options.acks),
                options.depth,
                options.max_bytes // len(shares),
                limit_s,
                len(batch),
            )
            for leader, share in shares
        ]
        if options.rate:
            jobs = [
                (leader, frames, options.rate * len(frames) / options.partitions, limit_s)
                for leader, frames, *_ in jobs
            ]
        with Meter(pids) as meter:
            results = in_processes(send_at_rate if options.rate else send_fast, jobs)
        requests = sum(result[0] for result in results)
        stored = stored_records(topic, leaders, requests * per_batch)
        if stored != requests * per_batch:
            raise RuntimeError(f"sent {requests * per_batch} records, the log ends hold {stored}")
    finally:
        topics.delete(topic)
    seconds = max(result[1] for result in results)
    size = requests * len(batch)
    return {
        "mb_s": round(size / 1e6 / seconds, 1),
        "msgs_s": round(requests * per_batch / seconds),
        "requests_s": round(requests / seconds),
        **percentiles([sample for result in results for sample in result[2]]),
        **meter.report(size),
    }


# ---- raw fetch -----------------------------------------------------------------------------------


def fetch_fast(
    address, topic, partition, max_bytes, batch_bytes, per_batch, limit_bytes, limit_s, until, whole
):
    """`whole`: continue until all of the partition was read once, for WARM_LIMIT_S at most."""
    connection = wire.connect(address)
    frame, offset_at = wire.fetch_request(topic, partition, max_bytes)
    buffer = bytearray(max_bytes + 2 * MIB)
    view = memoryview(buffer)
    head = memoryview(bytearray(4))
    offset = received = responses = wraps = 0
    latencies = []
    clock = time.perf_counter
    begin = clock()
    end = begin + limit_s
    while received < limit_bytes and (
        clock() < end or (whole and not wraps and clock() < begin + WARM_LIMIT_S)
    ):
        struct.pack_into(">q", frame, offset_at, offset)
        start = clock()
        connection.sendall(frame)
        wire.read_exact(connection, head)
        size = int.from_bytes(head, "big")
        wire.read_exact(connection, view[:size])
        latencies.append(clock() - start)
        high, _, length = wire.fetch_records(view, size)
        whole = length // batch_bytes
        if not whole:
            raise RuntimeError(f"no whole batch in {length} bytes at offset {offset}")
        offset += whole * per_batch
        received += length
        responses += 1
        if offset >= (until or high):
            offset, wraps = 0, wraps + 1
    seconds = clock() - begin
    connection.close()
    return received, responses, seconds, latencies, wraps


def raw_fetch(options, topics, pids, warm):
    """The warm-up reads the whole topic once: some machines drop pages from the page cache after a minute
    without a read, and the measurement would be one of the disk."""
    address = tls_or(wire.parse_address(options.bootstrap), options)
    per_batch = options.records or max(options.batch // 1024, 1)
    limit_s = options.warm_s if warm else options.seconds
    jobs = [
        (
            address,
            options.topic,
            index % options.partitions,
            options.max_partition,
            options.batch,
            per_batch,
            options.max_bytes // options.connections,
            limit_s,
            options.to_offset,
            warm and not options.to_offset,
        )
        for index in range(options.connections)
    ]
    with Meter(pids) as meter:
        results = in_processes(fetch_fast, jobs)
    size, seconds = sum(result[0] for result in results), max(result[2] for result in results)
    responses = sum(result[1] for result in results)
    return {
        "mb_s": round(size / 1e6 / seconds, 1),
        "msgs_s": round(size / options.batch * per_batch / seconds),
        "requests_s": round(responses / seconds),
        "bytes_per_response": round(size / responses),
        **percentiles([sample for result in results for sample in result[3]]),
        **meter.report(size),
    }


def fill(options, topics):
    """Fills a topic for raw-fetch with options.fill_bytes in batches of options.batch."""
    address = wire.parse_address(options.bootstrap)
    per_batch = options.records or max(options.batch // 1024, 1)
    batch = wire.record_batch(options.batch, per_batch)
    topic = topics.create(options.partitions)
    frames = produce_frames(topic, range(options.partitions), batch, 1)
    send_fast(address, frames, options.depth, options.fill_bytes, 600, len(batch))
    return topic


def tier_fill(options, topics, pids):
    """Fills a tiered topic, waits until its older segments live in remote storage alone.

    Prints where the local log starts: raw-fetch --to-offset that one reads remote segments only.
    """
    address = wire.parse_address(options.bootstrap)
    per_batch = options.records or max(options.batch // 1024, 1)
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": str(options.segment),
        "local.retention.bytes": str(options.segment),
        "retention.ms": "-1",
    }
    topic = topics.create(1, config)
    frames = produce_frames(topic, [0], wire.record_batch(options.batch, per_batch), 1)
    deadline = time.monotonic() + 300
    with Meter(pids) as meter:
        _, fill_s, _ = send_fast(address, frames, options.depth, options.fill_bytes, 600, options.batch)
        begin, seen = time.monotonic(), -1
        wanted = (options.fill_bytes - 3 * options.segment) // options.batch * per_batch
        while (seen := wire.list_offset(address, topic, 0, wire.EARLIEST_LOCAL)) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"local log starts at {seen}, wanted {wanted}")
            time.sleep(0.2)
        tiered_s = time.monotonic() - begin
    print(
        json.dumps(
            {
                "label": options.label,
                "case": "tier-fill",
                "topic": topic,
                "local_start": seen,
                "fill_s": round(fill_s, 2),
                "fill_mb_s": round(options.fill_bytes / 1e6 / fill_s, 1),
                "local_dropped_after_s": round(tiered_s, 2),
                **meter.report(options.fill_bytes),
            }
        )
    )
