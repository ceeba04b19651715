"""Each client copies a topic exactly once: it reads, writes and commits its offsets in transactions, aborts
some of them, and is killed in the middle and started again.

The programs are in java/, go/, node/ and python/. Each copies until it is killed.
"""

import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from java_process import java_command

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
PARTITIONS, RECORDS, KEYS = 3, 1_200, 17
KILLED_AFTER = 300
"""Committed records that the sink has when the program is killed."""
LIMIT_S = 60.0


@pytest.fixture
def topics(tierlog_session_broker: TierlogBroker) -> tuple[str, str]:
    """A source with all records, and an empty sink."""
    name, bootstrap = uuid.uuid4().hex[:8], tierlog_session_broker.bootstrap
    source, sink = f"source-{name}", f"sink-{name}"
    wanted = [NewTopic(source, PARTITIONS, 1), NewTopic(sink, PARTITIONS, 1)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(wanted).values():
        created.result(LIMIT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        key = number % KEYS
        producer.produce(source, str(number), str(key), partition=key % PARTITIONS)
    assert producer.flush(LIMIT_S) == 0
    return source, sink


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
    source, sink = topics
    arguments = [*command, bootstrap, source, sink]
    found = []
    with reading(bootstrap, sink, "read_committed") as following:
        for end in (KILLED_AFTER, RECORDS):
            with subprocess.Popen(arguments) as program:
                try:
                    while len(found) < end:
                        assert program.poll() is None, "the program has ended, see its output"
                        found.append(following())
                finally:
                    program.kill()
    return found


def check_copy(found: list[tuple[str, str]]) -> None:
    """Each record once, and those of a key in their order."""
    counts = Counter(int(value) for _, value in found)
    assert counts == Counter(range(RECORDS))
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
