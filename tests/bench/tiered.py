#!/usr/bin/env python3
"""Tiered data in an S3 server on this machine: reads, first byte, many consumers, hot latency, uploads and
merges.

    tiered.py [--cases sequential,slow-link,first-byte,fan-out,hot,uploads,small,merges] [--bytes 1g]
              [--set NAME=VALUE …] [--docs PAGE]

Each case prints a JSON line; `make bench-tiered` also writes the page with the goals (`tiered_page.py`). The
history is written once; each case that reads it has a new broker process on the same data, so that its caches
are empty. Broker, server and generator share the machine's cores.
"""

import argparse
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import fanout
import raw
import s3_servers
import suite
import tiered_page
import wire
from bench import MIB, size
from meter import Meter, percentiles
from topics import Topics

HERE = Path(__file__).parent
BATCH = 64 << 10
LATENCY_MS, LINK_MB_S = 40, 90
PLAIN_GETS_AT_ONCE = 4
UPLOADED = "kafka_server_brokertopicmetrics_remotecopybytes_total"


@contextmanager
def broker(directory, url, settings):
    """A broker process on `directory`, with the bucket's credentials."""
    command = [*suite.TIERLOG, "dev", "--json", "--port", "0", "--data-dir", str(directory)]
    command += [f"--set={name}={value}" for name, value in {"object.store.url": url, **settings}.items()]
    environment = {**os.environ, **s3_servers.CREDENTIALS}
    with open(directory / "broker.log", "ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        ready = json.loads(process.stdout.readline())
        yield suite.Broker(ready["bootstrap"], ready["pid"], admin=ready["admin"])
    finally:
        process.terminate()
        process.wait()


@contextmanager
def slow_link(server, latency_ms=LATENCY_MS, mb_s=LINK_MB_S):
    """The server's URL through a slow link."""
    command = [sys.executable, HERE / "slow_link.py", server.address]
    command += ["--latency-ms", str(latency_ms), "--mb-s", str(mb_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip()
        yield server.url("bench").replace(server.address, f"127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


class Tiered:
    """A filled topic. `end`: the offset below which everything is only remote. `bytes`: of those records."""

    def __init__(self, options, server, directory):
        self.options, self.server, self.directory = options, server, directory
        self.settings = dict(text.split("=", 1) for text in options.set)
        self.records = BATCH // 1024
        with self.broker() as started:
            self.topic, self.end, self.bytes = self.fill(started, options.bytes, options.segment)

    def fill(self, started, size_bytes, segment_bytes):
        """Fill a new topic until its older segments are only remote. Returns its name, their end, bytes."""
        arguments = {"--batch": BATCH, "--fill-bytes": size_bytes, "--segment": segment_bytes}
        words = [str(word) for pair in arguments.items() for word in pair]
        [filled] = suite.run_case(started, "tier-fill", *words)
        end = filled["local_start"]
        return filled["topic"], end, end // self.records * BATCH

    def broker(self, url=None, **settings):
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        return broker(self.directory, url or self.server.url("bench"), {**self.settings, **changed})

    def read_once(self, started, seconds):
        """A single consumer's pass over the history, or as much as it reads in `seconds`."""
        address = wire.parse_address(started.bootstrap)
        while not fetch_once(address, self.topic, self.end - 1):
            pass  # the broker loads its S3 client
        with Meter([started.pid]) as meter:
            received, latencies = read_history(
                address, self.topic, self.end, seconds, self.options.max_partition
            )
        figures = {"mb_s": round(received / 1e6 / meter.wall, 1), **percentiles(latencies)}
        return {**figures, **meter.report(received)}

    @property
    def store_bytes(self):
        """Bytes that the server has written to its sockets and files."""
        text = Path(f"/proc/{self.server._process.pid}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["wchar"])


def read_history(address, topic, end, seconds, max_bytes):
    """Reads from offset 0 to `end`, or for `seconds`. Returns (bytes, latencies). A Fetch may be empty: the
    store may be slower than remote.fetch.max.wait.ms."""
    connection = wire.connect(address)
    frame, offset_at = wire.fetch_request(topic, 0, max_bytes)
    view, head = memoryview(bytearray(max_bytes + MIB)), memoryview(bytearray(4))
    offset = received = 0
    latencies, clock = [], time.perf_counter
    stop = clock() + seconds
    while offset < end and clock() < stop:
        struct.pack_into(">q", frame, offset_at, offset)
        begin = clock()
        connection.sendall(frame)
        wire.read_exact(connection, head)
        size = int.from_bytes(head, "big")
        wire.read_exact(connection, view[:size])
        latencies.append(clock() - begin)
        batches = wire.fetch_records(view, size)[2] // BATCH
        offset += batches * (BATCH // 1024)
        received += batches * BATCH
    connection.close()
    return received, latencies


def plain_gets(tiered):
    """Plain GETs of 8 MiB ranges, PLAIN_GETS_AT_ONCE at a time, into one buffer each."""
    client = tiered.server.minio_client()
    logs = [
        (found.object_name, found.size)
        for found in client.list_objects(s3_servers.BUCKET, recursive=True)
        if found.object_name.endswith(".log")
    ]
    ranges = [
        (client.presigned_get_object(s3_servers.BUCKET, key), start, min(start + 8 * MIB, length))
        for key, length in logs
        for start in range(0, length, 8 * MIB)
    ]
    shares = [ranges[number::PLAIN_GETS_AT_ONCE] for number in range(PLAIN_GETS_AT_ONCE)]
    begin = time.perf_counter()
    total = sum(raw.in_processes(get_ranges, [(tiered.server.address, share) for share in shares]))
    return {"mb_s": round(total / 1e6 / (time.perf_counter() - begin), 1)}


def get_ranges(address, ranges):
    import http.client

    connection = http.client.HTTPConnection(address)
    buffer, total = memoryview(bytearray(9 * MIB)), 0
    for url, start, end in ranges:
        path = url.split(address, 1)[1]
        connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})
        response = connection.getresponse()
        done = 0
        while count := response.readinto(buffer[done:]):
            done += count
        if done != end - start:
            raise RuntimeError(f"{response.status}: {bytes(buffer[:done][:500])!r}")
        total += done
    return total


def sequential(tiered):
    """The whole history, once."""
    with tiered.broker() as started:
        return tiered.read_once(started, 60)


def through_slow_link(tiered):
    with slow_link(tiered.server) as url, tiered.broker(url) as started:
        return tiered.read_once(started, 20)


def first_byte(tiered):
    """Reads of offsets in segments that were never read: the index and one chunk come from the store. One
    read follows the other: a machine that takes unused memory back (DAMON) makes a process that has paused
    for a second 50 times slower, at first."""
    rng, segments = random.Random(1), tiered.bytes // tiered.options.segment
    per_segment = tiered.end // segments
    latencies = []
    with slow_link(tiered.server) as url, tiered.broker(url) as started:
        address = wire.parse_address(started.bootstrap)
        for segment in rng.sample(range(segments), segments):
            offset = segment * per_segment + rng.randrange(per_segment // 2)
            begin = time.perf_counter()
            while not fetch_once(address, tiered.topic, offset):
                pass
            latencies.append(time.perf_counter() - begin)
    return {
        "round_trip_ms": LATENCY_MS,
        "first_ms": round(latencies[0] * 1e3, 1),
        **percentiles(latencies[1:]),
    }


def fetch_once(address, topic, offset):
    frame, offset_at = wire.fetch_request(topic, 0, 64 << 10, max_bytes=64 << 10)
    struct.pack_into(">q", frame, offset_at, offset)
    with wire.connect(address) as connection:
        connection.sendall(frame)
        body = memoryview(wire.read_frame(connection))
    return wire.fetch_records(body, len(body))[2]


def fan_out(tiered):
    """`--readers` consumers of the same history in one process, which drops the records."""
    with tiered.broker() as started:
        pipe, child_pipe = multiprocessing.Pipe()
        address = wire.parse_address(started.bootstrap)
        while not fetch_once(address, tiered.topic, tiered.end - 1):
            pass
        arguments = address, tiered.topic, tiered.options.max_partition, BATCH, tiered.records
        job = child_pipe, tiered.options.readers, arguments
        before = tiered.store_bytes
        with Meter([started.pid]) as meter:
            readers = multiprocessing.Process(target=fanout.run_readers, args=job)
            readers.start()
            fanout._receive(pipe)
            pipe.send(tiered.end)
            received = sum(fanout._receive(pipe))
            readers.join()
        from_store = tiered.store_bytes - before
    return {
        "readers": tiered.options.readers,
        "mb_s": round(received / 1e6 / meter.wall, 1),
        "store_bytes_per_history_byte": round(from_store / tiered.bytes, 3),
        **meter.report(received),
    }


def hot(tiered):
    """Latency of Produce requests at a fixed rate, alone and while two consumers read the history and the
    segments of another topic are uploaded. Server and consumers stand for other machines: they get the CPU
    time that broker and producer leave."""
    figures = {}
    run_when_idle(tiered.server._process.pid)
    with tiered.broker() as started:
        address = wire.parse_address(started.bootstrap)
        topics = Topics(started.bootstrap)
        topic = topics.create(1)
        [leader] = topics.wait_leaders(topic, 1)
        frames = raw.produce_frames(topic, [0], wire.record_batch(16 << 10, 16), 1)
        raw.send_at_rate(leader, frames, 300, 2)
        figures["alone"] = percentiles(raw.send_at_rate(leader, frames, 300, 8)[2])
        waiting = topics.create(1, {"segment.bytes": str(MIB)})  # many segments, to be uploaded
        frames_of_it = raw.produce_frames(waiting, [0], wire.record_batch(BATCH, tiered.records), 1)
        raw.send_fast(address, frames_of_it, 8, tiered.options.bytes, 600, BATCH)
        topics.configure(waiting, "remote.storage.enable", "true")
        pace = address, tiered.topic, tiered.end, 9, MIB
        cold = [multiprocessing.Process(target=read_history, args=pace) for _ in range(2)]
        for process in cold:
            process.start()
            run_when_idle(process.pid)
        before = metric(started, UPLOADED)
        figures["beside"] = percentiles(raw.send_at_rate(leader, frames, 300, 8)[2])
        figures["uploaded_bytes"] = metric(started, UPLOADED) - before
        for process in cold:
            process.join()
        topics.delete(topic)
        topics.delete(waiting)
    alone, beside = (figures[name]["p99_ms"] for name in ("alone", "beside"))
    return {"p99_ratio": round(beside / alone, 2), **figures}


def run_when_idle(pid):
    """SCHED_IDLE for all threads of a process."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def uploads(tiered):
    """Produce, upload and local deletion together, until the history is only remote."""
    with tiered.broker(remote_log_merge_min_segments=0) as started, Meter([started.pid]) as meter:
        _, _, size_bytes = tiered.fill(started, tiered.options.bytes, tiered.options.segment)
    return {"mb_s": round(size_bytes / 1e6 / meter.wall, 1), **meter.report(size_bytes)}


def small(tiered):
    """The same in segments of 1 MiB, not merged: CPU time of a segment from its records to its deletion."""
    with tiered.broker(remote_log_merge_min_segments=0) as started, Meter([started.pid]) as meter:
        _, _, size_bytes = tiered.fill(started, tiered.options.bytes // 4, MIB)
    segments = size_bytes // MIB
    return {
        "segments": segments,
        "cpu_ms_per_segment": round(meter.broker * 1e3 / segments, 2),
        **meter.report(size_bytes),
    }


def merges(tiered):
    """Merges of segments of 1 MiB, as those of `small`, without a limit of their rate."""
    with tiered.broker(remote_log_merge_min_segments=0) as started:
        topic, _, size_bytes = tiered.fill(started, tiered.options.bytes // 4, MIB)
        Topics(started.bootstrap).configure(topic, "segment.bytes", str(1 << 30))
    pace = {"remote_log_merge_max_bytes_per_second": 1 << 40, "remote_log_manager_task_interval_ms": 1000}
    with tiered.broker(**pace) as started, Meter([started.pid]) as meter:
        while metric(started, "tierlog_remote_merged_bytes_total") < size_bytes // 2:
            time.sleep(0.2)
        size_bytes = metric(started, "tierlog_remote_merged_bytes_total")
        segments = metric(started, "tierlog_remote_merged_segments_total")
        count = metric(started, "tierlog_remote_merges_total")
    return {"merges": count, "segments": segments, "merged_bytes": size_bytes, **meter.report(size_bytes)}


def metric(started, name):
    """A metric without labels."""
    with urllib.request.urlopen(f"{started.admin}/metrics", timeout=30) as response:
        lines = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if " " in line)
    return int(float(lines.get(name, 0)))


CASES = {
    "plain-gets": plain_gets,
    "sequential": sequential,
    "slow-link": through_slow_link,
    "first-byte": first_byte,
    "fan-out": fan_out,
    "hot": hot,
    "uploads": uploads,
    "small": small,
    "merges": merges,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--server", default="versitygw", help="or minio, moto")
    parser.add_argument("--bytes", type=size, default=1 << 30, help="of the history")
    parser.add_argument("--segment", type=size, default=64 * MIB)
    parser.add_argument(
        "--max-partition", type=size, default=MIB, help="maximum bytes per partition of a Fetch"
    )
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], help="a setting of the broker, NAME=VALUE")
    parser.add_argument("--docs", type=Path, help="the page to write")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="tierlog-bench-") as folder:
        data, objects = Path(folder) / "data", Path(folder) / "objects"
        data.mkdir()
        objects.mkdir()
        with s3_servers.running(options.server, objects) as server:
            tiered = Tiered(options, server, data)
            cases = options.cases.split(",")
            for name in sorted(cases, key=lambda name: name == "hot"):  # the last, since it slows the server
                found[name] = CASES[name](tiered)
                print(json.dumps({"case": name, **found[name]}), flush=True)
    if options.docs:
        options.docs.write_text(tiered_page.page(found, suite.machine(), options))


if __name__ == "__main__":
    main()
