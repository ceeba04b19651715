"""confluent_round_trip.py SETTINGS TOPIC GROUP VALUE: produces a record and consumes it in a group, by
librdkafka.

Prints "ok", or the name of the first error. SETTINGS: a file of JSON. Without VALUE it only consumes.
"""

import json
import os
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer

LIMIT_S = 30.0
TRANSIENT = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}


def main(file: str, topic: str, group: str, value: str) -> None:
    # A failed login is reported as an event: no delivery fails because of it, since a later one may succeed.
    settings = json.loads(Path(file).read_text()) | {"error_cb": stop_at, "log_level": 0}
    if value:
        producer = Producer(settings)
        producer.produce(topic, value, on_delivery=lambda error, _: stop_at(error))
        producer.flush(LIMIT_S)
    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        stop_at(message.error())
        if message.value().decode() == value:
            consumer.close()
            print("ok")
            return


def stop_at(error: KafkaError | None) -> None:
    if error is not None and error.code() not in TRANSIENT:
        print(error.name(), flush=True)
        os._exit(0)  # a client that cannot log in takes half a minute to close


if __name__ == "__main__":
    main(*sys.argv[1:])
