"""Real Spark writes to a real broker, and real consumers read what is committed."""

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from waiting import until

from tierlog.client import Cluster
from tierlog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tierlog.spark.live import transactions as live_transactions
from tierlog.spark.live.transactions import (
    NO_DECISION,
    OPEN_STATE,
    BatchCommitter,
    Prepared,
    Transactions,
)
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TIMEOUT_S = 90.0
WRITTEN_MS = int(time.time()) * 1_000 - 60_000  # older records would be deleted at once
PARTITIONS = 5
KILLED = Path(__file__).parents[1] / "support" / "spark_stream_killed.py"
SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"
)


TWO_PHASES = {"transaction.two.phase.commit.enable": "true"}


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    return with_topics(tierlog_broker_factory(TWO_PHASES))


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TierlogBroker]:
    """For tests that write nothing."""
    with TierlogBroker(tmp_path_factory.mktemp("shared"), TWO_PHASES) as running:
        yield with_topics(running)


def with_topics(running: TierlogBroker) -> TierlogBroker:
    client = AdminClient({"bootstrap.servers": running.bootstrap})
    for created in client.create_topics([NewTopic(n, PARTITIONS, 1) for n in ("out", "other")]).values():
        created.result(TIMEOUT_S)
    return running


def consumed(
    broker: TierlogBroker, topic: str = "out", *, committed: bool = True
) -> dict[int, list[Message]]:
    """All records of a topic by partition, in order. Waits until no transaction is open: a consumer of
    committed records does not reach the end before."""
    level = "read_committed" if committed else "read_uncommitted"
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "test", "isolation.level": level}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    found: dict[int, list[Message]] = defaultdict(list)
    try:
        for partition in range(PARTITIONS):
            place = TopicPartition(topic, partition, 0)
            consumer.assign([place])
            end = consumer.get_watermark_offsets(place, TIMEOUT_S)[1]
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, "an open transaction"
                if message.error() is None:
                    found[partition].append(message)
                elif message.offset() >= end:
                    break
    finally:
        consumer.close()
    return found


def values(broker: TierlogBroker, **options: Any) -> list[str]:
    found = consumed(broker, **options)
    return sorted(m.value().decode() for messages in found.values() for m in messages)


def write(frame: DataFrame, broker: TierlogBroker, **options: object) -> None:
    writer = frame.write.format("tierlog").mode("append")
    for name, value in {"kafka.bootstrap.servers": broker.bootstrap, **options}.items():
        writer = writer.option(name, str(value))
    writer.save()


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def test_rows_are_placed_as_kafkas_own_producer_places_them(
    spark: SparkSession, broker: TierlogBroker
) -> None:
    keys = [f"k{n}".encode() * (n % 7) for n in range(500)]
    rows = [(key, str(n).encode(), None, None, None) for n, key in enumerate(keys)]
    write(spark.createDataFrame(rows, SCHEMA).coalesce(1), broker, topic="out", compression="zstd")
    reference = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for n, key in enumerate(keys):
        reference.produce("other", str(n), key)
    assert reference.flush(TIMEOUT_S) == 0
    mine, others = consumed(broker), consumed(broker, "other")
    assert {p: [(m.key(), m.value()) for m in each] for p, each in mine.items()} == {
        p: [(m.key(), m.value()) for m in each] for p, each in others.items()
    }


def test_all_columns_arrive(spark: SparkSession, broker: TierlogBroker) -> None:
    headers = [("a", b"1"), ("a", None)]
    rows = [
        (b"k", b"first", headers, "out", 3),
        (None, None, [], "other", 1),
        (None, b"second", None, "out", 3),
    ]
    write(spark.createDataFrame(rows, SCHEMA).coalesce(1), broker)
    first, second = consumed(broker)[3]
    assert (first.key(), first.value(), first.headers()) == (b"k", b"first", headers)
    assert (second.key(), second.value(), second.headers()) == (None, b"second", None)
    [tombstone] = consumed(broker, "other")[1]
    assert (tombstone.key(), tombstone.value()) == (None, None)


@pytest.mark.parametrize(
    ("expression", "options", "named"),
    [
        ("id as value", {"topic": "out"}, "unknown column value:bigint"),
        ("'x' as key", {"topic": "out"}, "`value` is missing"),
        ("'x' as value", {}, "option `topic`"),
        ("'x' as value", {"topic": "out", "kafka.acks": "1"}, "kafka.acks"),
        ("'x' as value", {"topic": "out", "kafka.linger": "1"}, "kafka.linger"),
        ("'x' as value", {"topic": "nowhere"}, "'nowhere' does not exist: create it with"),
        ("'x' as value, 9 as partition", {"topic": "out"}, "has no partition 9"),
    ],
)
def test_invalid_write_says_what_is_wrong(
    spark: SparkSession, shared_broker: TierlogBroker, expression: str, options: dict[str, str], named: str
) -> None:
    with pytest.raises(PySparkException, match=named):
        write(spark.range(1).selectExpr(*expression.split(", ")), shared_broker, **options)


def test_transactional_write_leaves_nothing_of_a_failed_one(
    spark: SparkSession, broker: TierlogBroker
) -> None:
    rows = spark.range(0, 2_000, 1, 2).selectExpr(
        "cast(if(id = 1999, raise_error('broken'), id) as string) as value"
    )
    with pytest.raises(PySparkException, match="broken"):
        write(rows, broker, topic="out", transactional=True)
    write(numbers(spark, 1_000), broker, topic="out", transactional=True)
    assert values(broker) == sorted(str(n) for n in range(1_000))


class Stream:
    """A streaming query from files of numbers to the topic."""

    def __init__(self, spark: SparkSession, broker: TierlogBroker, directory: Path) -> None:
        self._spark, self._broker, self._directory = spark, broker, directory
        (directory / "in").mkdir()

    def add(self, *lines: object) -> None:
        name = f"{len(list((self._directory / 'in').iterdir())):04}"
        (self._directory / name).write_text("\n".join(map(str, lines)))
        (self._directory / name).rename(self._directory / "in" / name)

    def run(self, source: str = "tierlog", expression: str = "value", **options: str) -> None:
        """Write all files, one in a batch."""
        frame = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._directory / "in"))
        columns = f"{expression} as value", f"timestamp_millis({WRITTEN_MS}) as timestamp"
        writer = frame.repartition(2).selectExpr(*columns).writeStream.format(source)
        for name, value in {
            "kafka.bootstrap.servers": self._broker.bootstrap,
            "topic": "out",
            **options,
        }.items():
            writer = writer.option(name, value)
        named = writer.queryName("copy")  # Spark hands it over as an option
        started = named.option("checkpointLocation", str(self._directory / "checkpoint"))
        started.trigger(availableNow=True).start().awaitTermination()

    def forget_last_commit(self) -> None:
        """As if the driver had died before Spark stored that the last batch is done."""
        newest = max((self._directory / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
        newest.unlink()


@pytest.fixture
def stream(spark: SparkSession, broker: TierlogBroker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path)


def test_batch_that_is_repeated_is_not_written_again(stream: Stream, broker: TierlogBroker) -> None:
    stream.add(*range(100))
    stream.add(*range(100, 200))
    stream.run()
    stream.forget_last_commit()
    stream.add(*range(200, 300))
    stream.run()
    assert values(broker) == sorted(str(n) for n in range(300))
    assert len(values(broker, committed=False)) == 300  # nothing was even written twice
    written = (message for messages in consumed(broker).values() for message in messages)
    assert {message.timestamp()[1] for message in written} == {WRITTEN_MS}


def test_failed_tasks_leave_nothing(stream: Stream, broker: TierlogBroker) -> None:
    stream.add(*range(100), -1)
    with pytest.raises(StreamingQueryException, match="broken"):
        stream.run(expression="if(value = '-1', raise_error('broken'), value)")
    stream.run()
    assert values(broker) == sorted(str(n) for n in range(-1, 100))


@pytest.mark.parametrize(
    "moment",
    [
        "decided",
        *(
            pytest.param(moment, marks=pytest.mark.nightly)
            for moment in ("task", "prepared", "committing", "committed")
        ),
    ],
)
def test_killed_process_leaves_nothing_lost_or_doubled(
    stream: Stream, broker: TierlogBroker, tmp_path: Path, moment: str
) -> None:
    """The driver is killed at the moment, or one Python worker after its rows are acknowledged."""
    stream.add(*range(1_000))
    code = subprocess.run(
        [sys.executable, str(KILLED), broker.bootstrap, str(tmp_path), moment], timeout=300, check=False
    ).returncode
    assert code == (0 if moment == "task" else -signal.SIGKILL)
    assert (tmp_path / "killed").exists() == (moment == "task")
    stream.add(*range(1_000, 1_100))
    stream.run()
    assert values(broker) == sorted(str(n) for n in range(1_100))


def test_decision_of_a_killed_driver_is_waited_for_until_brokers_abort_it(
    tierlog_broker_factory: TierlogBrokerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies while it stores its decision. Tasks of the next one ask for it, with short timeouts."""
    monkeypatch.setattr(live_transactions, "DECISION_TIMEOUT_MS", 3_000)
    broker = tierlog_broker_factory(TWO_PHASES)

    class Dying(Transactions):
        def end(self, transaction: Prepared, *, commit: bool) -> None:
            raise KeyboardInterrupt

    def cluster() -> Cluster:
        return Cluster(broker.bootstrap, timeout_s=0.5)

    with cluster() as dying, pytest.raises(KeyboardInterrupt):
        BatchCommitter(Dying(dying), "query").decide(0, [])
    with cluster() as next_driver:
        assert BatchCommitter(Transactions(next_driver), "query").decision() == NO_DECISION


def test_late_copy_of_init_producer_id_leaves_the_prepared_transaction(broker: TierlogBroker) -> None:
    """A request that timed out and was repeated may reach the broker once the task is done."""

    def prepare(begun: Prepared | None) -> Prepared:
        assert begun is not None
        opened = transactions.ask(
            begun.transactional_id,
            AddOffsetsToTxnRequest(**begun._asdict(), group_id="group"),
            lambda response: response.error_code,
        )
        assert opened.error_code == 0
        assert transactions.state("task") == (OPEN_STATE, begun)
        return begun

    with Cluster(broker.bootstrap) as cluster:
        transactions = Transactions(cluster)
        first = prepare(transactions.begin_two_phase("task", None))
        assert transactions.begin_two_phase("task", None) is None
        assert transactions.state("task") == (OPEN_STATE, first)
        transactions.end(first, commit=True)
        until(lambda: transactions.state("task")[0] == "CompleteCommit", "the markers are not written")
        _, found = transactions.state("task")
        second = prepare(transactions.begin_two_phase("task", found))
        for late in (None, first, found):
            assert transactions.begin_two_phase("task", late) is None
        assert transactions.state("task") == (OPEN_STATE, second)
        transactions.end(second, commit=True)


def test_broker_without_two_phase_commit_is_refused(
    spark: SparkSession, tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    broker = with_topics(tierlog_broker_factory())
    stream = Stream(spark, broker, tmp_path)
    stream.add(1)
    with pytest.raises(StreamingQueryException, match=r"transaction\.two\.phase\.commit\.enable=true"):
        stream.run()
