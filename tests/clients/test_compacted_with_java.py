"""Kafka's console consumer reads a tiered topic from its beginning, while it is compacted in S3."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_servers
from compacted_history import END_OFFSET, KEYS, SETTINGS, TOPIC, Record, check_compacted, fill, last_records
from java_process import TOOLS, java

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

PREFIX = "compacted-java"
PRINTED = "print.offset=true,print.key=true,null.literal=TOMBSTONE"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[s3_servers.S3Server]:
    with s3_servers.running("versitygw", tmp_path) as server:
        yield server


def read(classpath: str, broker: TierlogBroker) -> list[Record]:
    """Ends after the last record, whose offset is known."""
    options = [part for shown in PRINTED.split(",") for part in ("--formatter-property", shown)]
    end = ("--offset", "earliest", "--partition", "0", "--timeout-ms", "5000")
    name = f"{TOOLS}.consumer.ConsoleConsumer"
    said = java(classpath, name, "--bootstrap-server", broker.bootstrap, "--topic", TOPIC, *end, *options)
    return [_parsed(line) for line in said.splitlines() if line.startswith("Offset:")]


def _parsed(line: str) -> Record:
    offset, key, value = line.split("\t")
    return int(offset.removeprefix("Offset:")), key.encode(), None if value == "TOMBSTONE" else value.encode()


def test_console_consumer_reads_a_valid_log_while_it_is_compacted(
    java_classpath: str, tierlog_broker_factory: TierlogBrokerFactory, s3: s3_servers.S3Server
) -> None:
    broker = tierlog_broker_factory(SETTINGS, object_store=s3.url(PREFIX), environment=s3_servers.CREDENTIALS)
    fill(broker)
    found = read(java_classpath, broker)
    check_compacted(found)
    while len(found) > KEYS:
        found = read(java_classpath, broker)
        check_compacted(found)
    assert found == last_records() and found[-1][0] == END_OFFSET - 1
