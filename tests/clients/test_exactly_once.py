"""Each client copies a topic exactly once: it reads, writes and commits its offsets in transactions, aborts
some of them, and is killed in the middle and started again.

The programs are in java/, go/, node/ and python/. Each copies until it is killed.
"""

import re
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from java_process import java_command
from wire_client import Client

from tierlog.protocol.messages.describe_transactions import DescribeTransactionsRequest
from tierlog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
PARTITIONS, RECORDS, KEYS = 3, 1_200, 17
KILLED_AFTER = 300
"""Committed records that the sink has when the program is killed."""
LIMIT_S = 60.0


@pytest.fixture
def topics(tierlog_session_broker: TierlogBroker) -> tuple[str, str]:
    return new_topics(tierlog_session_broker.bootstrap)


def new_topics(bootstrap: str) -> tuple[str, str]:
    """A source and a sink."""
    name = uuid.uuid4().hex[:8]
    source, sink = f"source-{name}", f"sink-{name}"
    wanted = [NewTopic(source, PARTITIONS, 1), NewTopic(sink, PARTITIONS, 1)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted).values():
        created.result(LIMIT_S)
    return source, sink


def feed(bootstrap: str, source: str, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        key = number % KEYS
        producer.produce(source, str(number), str(key), partition=key % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0


@contextmanager
def reading(bootstrap: str, topic: str, isolation: str) -> Iterator[Callable[[], tuple[str, str]]]:
    """A function that returns the next record, as key and value."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"readers-of-{topic}",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])

    def following() -> tuple[str, str]:
        message = consumer.poll(LIMIT_S)
        assert message is not None, f"no further record of {topic}"
        assert message.error() is None, message.error()
        return message.key().decode(), message.value().decode()

    yield following
    consumer.close()


def copied(command: list[str], bootstrap: str, topics: tuple[str, str]) -> list[tuple[str, str]]:
    """The committed records of the sink after a copy whose program was killed and started again."""
    feed(bootstrap, topics[0], range(RECORDS))
    found: list[tuple[str, str]] = []
    with reading(bootstrap, topics[1], "read_committed") as following:
        for end in (KILLED_AFTER, RECORDS):
            with running([*command, bootstrap, *topics]) as check_alive:
                while len(found) < end:
                    check_alive()
                    found.append(following())
    return found


@contextmanager
def running(command: list[str]) -> Iterator[Callable[[], None]]:
    """A program that is killed at the end. The function fails if it has ended before."""

    def check_alive() -> None:
        assert program.poll() is None, "the program has ended, see its output"

    with subprocess.Popen(command) as program:
        try:
            yield check_alive
        finally:
            program.kill()


def check_copy(found: list[tuple[str, str]]) -> None:
    """Each record once, and those of a key in their order."""
    counts = Counter(int(value) for _, value in found)
    assert counts == Counter(range(len(found)))
    by_key = defaultdict(list)
    for key, value in found:
        by_key[key].append(int(value))
    assert all(values == sorted(values) for values in by_key.values())


def check_aborts(bootstrap: str, sink: str) -> None:
    """A reader of everything also sees what was aborted: some transactions were repeated."""
    with reading(bootstrap, sink, "read_uncommitted") as following:
        seen: Counter[str] = Counter()
        while not (len(seen) == RECORDS and max(seen.values()) > 1):
            seen[following()[1]] += 1


def copy_and_check(command: list[str], broker: TierlogBroker, topics: tuple[str, str]) -> None:
    check_copy(copied(command, broker.bootstrap, topics))
    check_aborts(broker.bootstrap, topics[1])


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka_python"])
def test_python_client_copies_exactly_once(
    client: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str]
) -> None:
    program = HERE / "python" / f"{client}_copy.py"
    copy_and_check([sys.executable, str(program)], tierlog_session_broker, topics)


def test_java_client_copies_exactly_once(
    java_classpath: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str]
) -> None:
    command = java_command(java_classpath, str(HERE / "java" / "TransactionalCopy.java"))
    copy_and_check(command, tierlog_session_broker, topics)


def test_franz_go_copies_exactly_once(
    go_copy: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str]
) -> None:
    copy_and_check([go_copy], tierlog_session_broker, topics)


def test_kafkajs_copies_exactly_once(
    node_copy: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str]
) -> None:
    copy_and_check(["node", node_copy], tierlog_session_broker, topics)


def test_kafka_streams_counts_exactly_once(
    java_classpath: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Its counts are restored from a changelog topic, whose records are of the same transactions."""
    program = java_command(java_classpath, str(HERE / "java" / "StreamsCopy.java"))
    # Java reads its properties before the arguments of the program.
    program.insert(1, f"-Dstate.dir={tmp_path}")
    found = copied(program, tierlog_session_broker.bootstrap, topics)
    check_copy([(key, value.split()[0]) for key, value in found])
    by_key = defaultdict(list)
    for key, value in found:
        by_key[key].append(int(value.split()[1]))
    assert all(counts == list(range(1, len(counts) + 1)) for counts in by_key.values())


PROGRAM = """
import java.util.Properties;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
public class Snippet {{ public static void main(String[] args) {{ {snippet} }} }}
"""
HOWTO = HERE.parents[1] / "docs/howto/exactly-once-streams.md"


def test_snippet_of_the_howto_for_kafka_streams_runs(
    java_classpath: str, tierlog_session_broker: TierlogBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    bootstrap, (source, sink) = tierlog_session_broker.bootstrap, topics
    [snippet] = re.findall(r"```java\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    replaced = {"127.0.0.1:9092": bootstrap, "/var/lib/order-counts": str(tmp_path / "state")}
    for shown, value in (replaced | {'"orders"': f'"{source}"', '"order-counts"': f'"{sink}"'}).items():
        assert shown in snippet
        snippet = snippet.replace(shown, value)
    program = tmp_path / "Snippet.java"
    program.write_text(PROGRAM.format(snippet=snippet), encoding="utf-8")
    feed(bootstrap, source, range(2 * KEYS))
    with (
        reading(bootstrap, sink, "read_committed") as following,
        running(java_command(java_classpath, str(program))),
    ):
        last = {}
        while set(last.values()) != {"2"} or len(last) < KEYS:
            key, last_count = following()
            last[key] = last_count
    assert last == {str(key): "2" for key in range(KEYS)}


UPGRADE, SAFE_DOWNGRADE = 1, 2  # upgrade types (KIP-778)
TRANSACTIONS = 6
"""At least so many commits copy KILLED_AFTER records."""


def set_transaction_version(client: Client, level: int) -> None:
    """2 is the highest level; the others are only lowered to."""
    kind = UPGRADE if level == 2 else SAFE_DOWNGRADE
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
    response = client.send("UpdateFeatures", 2, UpdateFeaturesRequest(feature_updates=[update]))
    assert response.error_code == 0, response.error_message


def copy_with_versions(command: list[str], broker: TierlogBroker) -> None:
    """transaction.version changes while the program copies. A running program keeps its version, and after a
    restart it uses the new one: only version 2 raises the epoch with each transaction (KIP-890)."""
    bootstrap, (source, sink) = broker.bootstrap, new_topics(broker.bootstrap)
    client, numbers, found, raised = Client(bootstrap), count(), [], []

    def epoch() -> int:
        request = DescribeTransactionsRequest(transactional_ids=[f"copy-{sink}"])
        [state] = client.send("DescribeTransactions", 0, request).transaction_states
        return int(state.producer_epoch)

    with reading(bootstrap, sink, "read_committed") as following:
        for next_level in (1, 2, 0, 2):
            before = epoch()
            with running([*command, bootstrap, source, sink]):
                feed(bootstrap, source, islice(numbers, KILLED_AFTER))
                found += [following() for _ in range(KILLED_AFTER)]
                raised.append(epoch() - before >= TRANSACTIONS)
                feed(bootstrap, source, islice(numbers, KILLED_AFTER))
                set_transaction_version(client, next_level)
                found += [following() for _ in range(KILLED_AFTER)]
    check_copy(found)
    assert raised == [True, False, True, False]
    client.close()


def test_java_client_follows_the_transaction_version(
    java_classpath: str, tierlog_broker: TierlogBroker
) -> None:
    copy_with_versions(
        java_command(java_classpath, str(HERE / "java" / "TransactionalCopy.java")), tierlog_broker
    )


def test_franz_go_follows_the_transaction_version(go_copy: str, tierlog_broker: TierlogBroker) -> None:
    copy_with_versions([go_copy], tierlog_broker)
