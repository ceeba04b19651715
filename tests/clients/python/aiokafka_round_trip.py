"""aiokafka_round_trip.py LOGIN TOPIC GROUP VALUE: produces a record and consumes it in a group, by
aiokafka.

LOGIN: a file of `Login`. Prints "ok", or the class of the first error. Without VALUE it only consumes.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from issued_token import issued_token

LIMIT_S = 30.0


class Tokens(AbstractTokenProvider):
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def token(self) -> str:
        return await asyncio.to_thread(issued_token, self._endpoint)


async def main(file: str, topic: str, group: str, value: str) -> None:
    settings = settings_of(json.loads(Path(file).read_text()))
    async with asyncio.timeout(LIMIT_S):
        if value:
            async with AIOKafkaProducer(**settings) as producer:
                await producer.send_and_wait(topic, value.encode())
        reading = {"group_id": group, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(topic, **settings, **reading) as consumer:
            async for record in consumer:
                if record.value == value.encode():
                    return


def settings_of(login: dict[str, str]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=login["ca"])
    settings: dict[str, Any] = {"bootstrap_servers": login["bootstrap"], "ssl_context": context}
    if not login["mechanism"]:
        context.load_cert_chain(login["certificate"])
        return settings | {"security_protocol": "SSL"}
    settings |= {"security_protocol": "SASL_SSL", "sasl_mechanism": login["mechanism"]}
    if login["mechanism"] == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": Tokens(login["token_endpoint"])}
    return settings | {"sasl_plain_username": login["user"], "sasl_plain_password": login["password"]}


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KafkaError as failure:
        print(type(failure).__name__)
    else:
        print("ok")
