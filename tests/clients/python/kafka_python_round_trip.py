"""kafka_python_round_trip.py LOGIN TOPIC GROUP VALUE: produces a record and consumes it in a group, by
kafka-python.

LOGIN: a file of `Login`. Prints "ok", or the class of the first error. Without VALUE it only consumes.
"""

import json
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from issued_token import issued_token
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

LIMIT_S = 30.0
LOGIN_LIMIT_MS = 5_000
"""A refused login is tried again for so long, and then reported as a timeout."""


class Tokens(AbstractTokenProvider):
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def token(self) -> str:
        return issued_token(self._endpoint)


def main(file: str, topic: str, group: str, value: str) -> None:
    settings = settings_of(json.loads(Path(file).read_text()))
    if value:
        producer = KafkaProducer(**settings)
        producer.send(topic, value.encode()).get(LIMIT_S)
        producer.close()
    consumer = KafkaConsumer(topic, **settings, group_id=group, auto_offset_reset="earliest")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=1000).values():
            if value.encode() in [record.value for record in records]:
                consumer.close()
                return


def settings_of(login: dict[str, str]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=login["ca"])
    settings: dict[str, Any] = {
        "bootstrap_servers": login["bootstrap"],
        "bootstrap_timeout_ms": LOGIN_LIMIT_MS,
        "ssl_context": context,
    }
    if not login["mechanism"]:
        context.load_cert_chain(login["certificate"])
        return settings | {"security_protocol": "SSL"}
    settings |= {"security_protocol": "SASL_SSL", "sasl_mechanism": login["mechanism"]}
    if login["mechanism"] == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": Tokens(login["token_endpoint"])}
    return settings | {"sasl_plain_username": login["user"], "sasl_plain_password": login["password"]}


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KafkaError as failure:
        print(type(failure).__name__)
    else:
        print("ok")
