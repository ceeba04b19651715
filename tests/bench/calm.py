#!/usr/bin/env python3
"""`make bench-calm`: checks that a cluster of three nodes elects no leader on a busy machine, since no node
died.

Burners keep each core busy for --busy of the time while a producer writes with acks=all. The script counts
terms of the quorum, leader epochs of the partitions, and replicas that are out of sync at the end. The last
line is JSON. The exit code is 1 after any election.

    calm.py [--minutes 10] [--busy 0.9] [--tight]
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import failover
from cluster_cases import TIGHT
from cluster_nodes import NODES, TierlogCluster, bootstrap, ended
from failover import Producing, await_in_sync, create
from meter import machine_cpu
from wire_client import Client

from tierlog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

PERIOD_S = 0.05  # a burner is busy for a part of it, then asleep
PARTITIONS = 30


def burn(core: int, busy: float) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        begin = time.monotonic()
        while time.monotonic() < begin + busy * PERIOD_S:
            pass
        time.sleep(max(begin + PERIOD_S - time.monotonic(), 0))


@contextmanager
def burners(busy: float) -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    processes = [multiprocessing.Process(target=burn, args=(core, busy), daemon=True) for core in cores]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def epochs(address: str, topic: str) -> tuple[int, int, int]:
    """Term of the quorum, sum of the leader epochs, and number of partitions with all replicas in sync."""
    client = Client(address)
    try:
        partitions = (
            client.send("Metadata", 12, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
            .topics[0]
            .partitions
        )
    finally:
        client.close()
    whole = sum(len(partition.isr_nodes) == NODES for partition in partitions)
    return failover.quorum(address).leader_epoch, sum(each.leader_epoch for each in partitions), whole


def measure(minutes: float, busy: float, tight: bool) -> dict[str, object]:
    from confluent_kafka.admin import AdminClient

    nodes = list(range(1, NODES + 1))
    with (
        tempfile.TemporaryDirectory(prefix="tierlog-calm-") as directory,
        ended(TierlogCluster(Path(directory), TIGHT if tight else {}, None)) as cluster,
    ):
        admin = AdminClient({"bootstrap.servers": bootstrap(cluster), "log_level": 0})
        topic = create(admin, [nodes[n % NODES :] + nodes[: n % NODES] for n in range(PARTITIONS)])
        address = cluster.addresses[1]
        await_in_sync(address, topic, PARTITIONS)
        before = epochs(address, topic)
        begin, (used, _) = time.monotonic(), machine_cpu()
        with Producing(bootstrap(cluster), topic) as producing, burners(busy):
            time.sleep(minutes * 60)
            cpu_s, wall_s = machine_cpu()[0] - used, time.monotonic() - begin
            after = epochs(address, topic)
    sent = producing.result
    return {
        "minutes": round(wall_s / 60, 2),
        "cpu_percent": round(100 * cpu_s / wall_s / (os.cpu_count() or 1), 1),
        "quorum_elections": after[0] - before[0],
        "partition_elections": after[1] - before[1],
        "not_in_sync": PARTITIONS - after[2],
        "acknowledged": len(sent.times),
        "failed": len(sent.failures),
        "longest_gap_s": round(sent.longest_gap_s(), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--busy", type=float, default=0.9, help="share of each core that the burners take")
    parser.add_argument("--tight", action="store_true", help="with the settings of the tight cases")
    options = parser.parse_args()
    found = measure(options.minutes, options.busy, options.tight)
    print(json.dumps(found))
    sys.exit(bool(found["quorum_elections"] or found["partition_elections"]))


if __name__ == "__main__":
    main()
