"""CPU cost of the controller's cores at scale, without quorum and disk. Prints JSON with milliseconds.

    python tests/bench/controller.py [--rounds 3]

Ten brokers in five zones, three replicas. Each command is decided, encoded, decoded and applied, as a
leader and a follower do together. The best round counts.
"""

import argparse
import gc
import json
import random
import resource
import time
import uuid

from tierlog.base.process_limits import tune_interpreter
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.balance import rebalance
from tierlog.metadata.controller.decide import decide
from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.records import decode_records, encode_records

BROKERS, ZONES, REPLICAS = 10, 5, 3
PARTITIONS = 100_000
AT_ONCE = 10_000
ISR_CHANGES = 1000

Timed = dict[str, float]


class Controller:
    """Decides and applies commands on one image, and records the duration of each part."""

    def __init__(self, image):
        self.image = image
        self.rng = random.Random(1)

    def do(self, command) -> Timed:
        gc.collect()
        times = [time.process_time()]
        decision = decide(self.image, command, 0, self.rng)
        times.append(time.process_time())
        payload = encode_records(decision.records)
        times.append(time.process_time())
        records = decode_records(payload)
        times.append(time.process_time())
        self.image = apply_entry(self.image, self.image.index + 1, records)
        times.append(time.process_time())
        parts = ("decide", "encode", "decode", "apply")
        timed = {part: 1000 * (times[at + 1] - times[at]) for at, part in enumerate(parts)}
        return timed | {
            "total": 1000 * (times[-1] - times[0]),
            "records": len(decision.records),
            "bytes": len(payload),
        }


def empty_cluster(brokers: int = BROKERS) -> ClusterImage:
    controller = Controller(ClusterImage(cluster_id="bench"))
    for broker_id in range(brokers):
        controller.do(
            c.RegisterBroker(
                broker_id=broker_id,
                incarnation=uuid.UUID(int=broker_id + 1),
                host="h",
                port=9092,
                admin_url="",
                rack=f"zone-{broker_id % ZONES}/host-{broker_id}",
                min_in_sync=2,
            )
        )
    return controller.image


def topics(names: list[str], partitions: int) -> c.CreateTopics:
    return c.CreateTopics(
        topics=tuple(
            c.NewTopic(name=name, partitions=partitions, replication_factor=REPLICAS) for name in names
        )
    )


def full_cluster(partitions_each: int, brokers: int = BROKERS) -> ClusterImage:
    controller = Controller(empty_cluster(brokers))
    per_command = AT_ONCE // partitions_each
    for start in range(0, PARTITIONS // partitions_each, per_command):
        controller.do(topics([f"topic-{start + n}" for n in range(per_command)], partitions_each))
    return controller.image


def broker(image: ClusterImage, broker_id: int) -> dict[str, int]:
    return {"broker_id": broker_id, "broker_epoch": image.brokers[broker_id].broker_epoch}


def shrink(image: ClusterImage, leader: int, without: int) -> c.AlterPartitions:
    changes = [
        c.IsrChange(
            topic_id=topic.topic_id,
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple(
                c.InSync(one, image.brokers[one].broker_epoch) for one in partition.in_sync if one != without
            ),
        )
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.leader == leader
    ]
    return c.AlterPartitions(**broker(image, leader), changes=tuple(changes[:ISR_CHANGES]))


def measure() -> dict[str, object]:
    found: dict[str, object] = {
        "create one topic of 10,000": Controller(empty_cluster()).do(topics(["one"], AT_ONCE)),
        "create 10,000 topics of one": Controller(empty_cluster()).do(
            topics([f"topic-{n}" for n in range(AT_ONCE)], 1)
        ),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for each in (100, 1):
        image = full_cluster(each)
        within = f", 100,000 partitions in topics of {each}"
        controller = Controller(image)
        found["fence a leader of 10,000" + within] = controller.do(
            c.FenceBroker(**broker(image, 3), fenced=True)
        )
        found["let it in again" + within] = controller.do(c.FenceBroker(**broker(image, 3), fenced=False))
        found["shrink 1,000 in-sync sets" + within] = Controller(image).do(shrink(image, 4, without=5))
        start = time.process_time()
        rebalance(image)
        found["look for imbalance" + within] = {"total": 1000 * (time.process_time() - start)}
        start = time.process_time()
        data = encode_image(controller.image)
        middle = time.process_time()
        decode_image(data)
        found["snapshot" + within] = {
            "encode": 1000 * (middle - start),
            "decode": 1000 * (time.process_time() - middle),
            "bytes": len(data),
        }
    controller = Controller(full_cluster(100, brokers=REPLICAS))
    found["fence one of three, 100,000 partitions in topics of 100"] = controller.do(
        c.FenceBroker(**broker(controller.image, 1), fenced=True)
    )
    found["memory, at most, MiB"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return found


def best(rounds: list[dict[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for name, value in rounds[0].items():
        if isinstance(value, dict):
            result[name] = {part: round(min(one[name][part] for one in rounds), 1) for part in value}
        else:
            result[name] = round(value, 1)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tune_interpreter()  # as a node does
    print(json.dumps(best([measure() for _ in range(arguments.rounds)]), indent=2))
