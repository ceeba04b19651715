"""Cost of partitions for a broker: start time without and with them, creation time, and memory.

The start time ends with the first Metadata response that has a leader for every partition, the creation
time when every leader serves.
"""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loop_lag
import wire
from meter import memory_mib, start_time
from topics import Topics, count_leaders

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
from kafka_process import KafkaProcess, free_ports

MakeNode = Callable[[Path], Any]
"""Starts a broker in an empty directory, returns at once: it has start(), wait(), stop(), pid, bootstrap."""

STANDING, MADE = 1000, 2000
"""Partitions that a start finds; partitions made in one request."""

TOPIC = "standing"
QUIET_S = 3.0  # before memory is read


class TierlogNode:
    def __init__(self, directory, compiled):
        self._environment = os.environ | ({"PYTHONPATH": str(compiled)} if compiled else {})
        port, admin_port = free_ports(2)
        self.bootstrap, self.admin = f"127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
        self._command = [sys.executable, "-m", "tierlog.cli.main", "server", "--json"]
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "admin.listener": f"127.0.0.1:{admin_port}",
            "log.dirs": str(directory / "data"),
        }
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]
        self.start()

    @property
    def pid(self):
        return self._process.pid

    def start(self):
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )

    def wait(self):
        json.loads(self._process.stdout.readline())

    def stop(self):
        self._process.terminate()
        self._process.wait()


def tierlog_node(compiled=None):
    return lambda directory: TierlogNode(directory, compiled)


def kafka_node(classpath, java):
    def start(directory):
        node = KafkaProcess(classpath, directory, java, wait=False)
        node.admin = None
        return node

    return start


def measure(make_node, directory):
    """The figures of one round, in an empty directory, and the loop lag while partitions are made."""
    node = make_node(directory)
    try:
        start_s = _first_answer(node, None, 0)
        node.wait()
        time.sleep(QUIET_S)
        idle_mib = memory_mib(node.pid)[1]
        Topics(node.bootstrap).create(STANDING, name=TOPIC)
        node.stop()
        node.start()
        start_standing_s = _first_answer(node, TOPIC, STANDING)
        node.wait()
        topics = Topics(node.bootstrap)
        time.sleep(QUIET_S)
        before, lag = memory_mib(node.pid)[1], loop_lag.read(node.admin)
        begin = time.perf_counter()
        topics.create(MADE)
        made_s = time.perf_counter() - begin
        lag = loop_lag.since(lag, node.admin)
        time.sleep(QUIET_S)
        after = memory_mib(node.pid)[1]
    finally:
        node.stop()
    figures = {
        "start_s": start_s,
        "start_standing_s": start_standing_s,
        "rss_mib": idle_mib,
        "made_s": made_s,
        "kib_per_partition": (after - before) * 1024 / MADE,
    }
    return {key: [value] * 3 for key, value in figures.items()}, lag


def _first_answer(node, topic, partitions, within_s=120):
    """Seconds from the start of the process to a Metadata answer with a leader for each partition."""
    address = wire.parse_address(node.bootstrap)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with wire.connect(address, 5) as connection:
                connection.sendall(wire.metadata_request(topic))
                body = wire.read_frame(connection)
                answered = time.clock_gettime(time.CLOCK_BOOTTIME)
                brokers = struct.unpack_from(">i", body, 4)[0]
                if brokers and (not partitions or count_leaders(body) >= partitions):
                    return answered - start_time(node.pid)
        except (OSError, struct.error):
            pass
        time.sleep(0.005)
    raise TimeoutError("no answer")
