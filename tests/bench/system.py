"""Cases about the whole process: many connections, idling, creating topics, starting up."""

import select
import struct
import subprocess
import time
import uuid
from pathlib import Path

import wire
from meter import Meter, cpu_seconds, memory_mib, percentiles, start_time, wait_quiet
from topics import count_leaders


def connections(options, topics, pids, warm):
    """options.connections open at once: idle for half the time, then each sends one request a second."""
    address = wire.parse_address(options.bootstrap)
    topic = topics.create(1)
    limit_s = options.warm_s if warm else options.seconds
    if options.request == "produce":
        frame = wire.produce_request(topic, [(0, wire.record_batch(options.batch, 1))], 1)
    else:
        frame = wire.metadata_request(topic)
    open_ones = []
    try:
        with Meter(pids) as opening:
            for _ in range(options.connections):
                connection = wire.connect(address)
                connection.sendall(wire.api_versions_request())
                wire.read_frame(connection)
                open_ones.append(connection)
        with Meter(pids) as idle:
            time.sleep(limit_s / 2)
        poller = select.epoll()
        by_number = {connection.fileno(): connection for connection in open_ones}
        for number in by_number:
            poller.register(number, select.EPOLLIN)
        total = int(options.connections * limit_s)
        sent_due, latencies = {}, []
        sent = 0
        with Meter(pids) as busy:
            begin = time.perf_counter()
            while len(latencies) < total:
                now = time.perf_counter()
                due = begin + sent / options.connections
                if sent < total and now >= due:
                    connection = open_ones[sent % options.connections]
                    if connection.fileno() not in sent_due:
                        sent_due[connection.fileno()] = due
                        connection.sendall(frame)
                        sent += 1
                        continue
                for number, _ in poller.poll(max(due - now, 0) if sent < total else 1.0):
                    wire.read_frame(by_number[number])
                    latencies.append(time.perf_counter() - sent_due.pop(number))
    finally:
        for connection in open_ones:
            connection.close()
        topics.delete(topic)
    return {
        "connections": options.connections,
        "open_s": round(opening.wall, 3),
        "idle_cpu_pct": idle.report()["broker_cpu_pct"],
        "idle_rss_mib": idle.report()["rss_mib"],
        "requests_s": round(total / busy.wall),
        **percentiles(latencies),
        **busy.report(),
    }


def fairness(options, topics, pids, warm):
    """options.connections in a closed loop, one request each: responses per connection."""
    topic = topics.create(1)
    frame = wire.metadata_request(topic)
    if options.request == "produce":
        frame = wire.produce_request(topic, [(0, wire.record_batch(options.batch, 1))], 1)
    answers = {}
    open_ones, poller = {}, select.epoll()
    try:
        for _ in range(options.connections):
            connection = wire.connect(wire.parse_address(options.bootstrap))
            open_ones[connection.fileno()] = connection
            answers[connection.fileno()] = 0
            poller.register(connection.fileno(), select.EPOLLIN)
        with Meter(pids) as meter:
            end = time.perf_counter() + (options.warm_s if warm else options.seconds)
            for connection in open_ones.values():
                connection.sendall(frame)
            while time.perf_counter() < end:
                for number, _ in poller.poll(1.0):
                    wire.read_frame(open_ones[number])
                    answers[number] += 1
                    open_ones[number].sendall(frame)
    finally:
        for connection in open_ones.values():
            connection.close()
        topics.delete(topic)
    total = sum(answers.values())
    return {
        "connections": options.connections,
        "requests_s": round(total / meter.wall),
        "slowest_of_mean": round(min(answers.values()) * len(answers) / total, 3),
        **meter.report(),
    }


def idle(options, topics, pids, warm):
    with Meter(pids) as meter:
        time.sleep(options.warm_s if warm else options.seconds)
    return meter.report()


def create_topic(options, topics, pids, warm):
    """Time until CreateTopics is answered, and until every partition has a leader that answers."""
    from confluent_kafka.admin import NewTopic

    partitions = 10 if warm else options.partitions
    name = f"bench-{uuid.uuid4().hex[:8]}"
    try:
        with Meter(pids) as meter:
            begin = time.perf_counter()
            topics.admin.create_topics([NewTopic(name, partitions, topics.rf)], request_timeout=120)[
                name
            ].result(120)
            answered = time.perf_counter() - begin
            topics.wait_leaders(name, partitions)
            ready = time.perf_counter() - begin
    finally:
        begin = time.perf_counter()
        topics.delete(name)
    return {
        "partitions": partitions,
        "answered_s": round(answered, 3),
        "serving_s": round(ready, 3),
        "delete_answered_s": round(time.perf_counter() - begin, 3),
        **meter.report(),
    }


# ---- start-up ------------------------------------------------------------------------------------


def startup(options, reps):
    """Process start (from /proc) until ApiVersions and Metadata are answered; needs --start and --stop."""
    address = wire.parse_address(options.bootstrap)
    for _ in range(reps):
        subprocess.run(options.stop, shell=True, check=False, capture_output=True)
        wait_quiet([], options.quiet, options.quiet_timeout)
        quiet = subprocess.DEVNULL
        launcher = subprocess.Popen(options.start, shell=True, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + 120
        while True:
            try:
                with wire.connect(address, 5) as connection:
                    connection.sendall(wire.api_versions_request())
                    wire.read_frame(connection)
                    connection.sendall(wire.metadata_request(options.topic))
                    body = wire.read_frame(connection)
                    answered = time.clock_gettime(time.CLOCK_BOOTTIME)
                    if (
                        count_leaders(body) >= options.partitions * bool(options.topic)
                        and struct.unpack_from(">i", body, 4)[0]
                    ):
                        break
            except (OSError, struct.error):
                pass
            if time.monotonic() > deadline:
                raise TimeoutError("no answer within 120 s")
            time.sleep(0.005)
        launcher.wait()
        pids = [int(text) for text in Path(options.pid_file).read_text().replace(",", " ").split()]
        at_answer = sum(cpu_seconds(pid) for pid in pids)
        time.sleep(options.idle)
        memory = [memory_mib(pid) for pid in pids]
        _, rss, anon, threads = (sum(column) for column in zip(*memory, strict=True))
        yield {
            "start_s": round(answered - min(start_time(pid) for pid in pids), 3),
            "start_cpu_s": round(at_answer, 2),
            "idle_rss_mib": round(rss, 1),
            "idle_rss_anon_mib": round(anon, 1),
            "threads": threads,
        }
