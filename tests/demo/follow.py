"""Step 5: one Spark stream reads the history from the bucket, then the tail from the broker."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flights import Flights
from report import Report
from send import Sent

if TYPE_CHECKING:
    from tierlog.cli.process import TierlogBroker

TAIL = 2000


def follow(
    report: Report, session: Any, broker: "TierlogBroker", topic: str, flights: Flights, sent: Sent
) -> None:
    """Send the last TAIL flights again while a stream runs. Each offset must be in its output once."""
    import pandas

    output = broker.object_dir.parent / "stream"
    records = (
        session.readStream.format("tierlog")
        .option("path", str(broker.object_dir))
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    stream = records.select("partition", "offset").writeStream.format("parquet")
    query = stream.option("checkpointLocation", str(output / "checkpoint")).start(str(output / "rows"))
    with report.progress("batches of the stream", 2) as bar:
        try:
            query.processAllAvailable()
            bar.reach(1)
            tail = _send(broker.bootstrap, topic, flights)
            query.processAllAvailable()
            bar.reach(2)
        finally:
            query.stop()
    expected = pandas.DataFrame({"partition": sent.partition, "offset": sent.offset})
    expected = pandas.concat([expected, pandas.DataFrame(tail, columns=expected.columns)])
    report.say(f"{len(flights):,} records were in the bucket, {len(tail):,} arrived while the stream ran")
    report.check(
        "each record is in the stream's output once", _sorted(expected), _sorted(_rows(output / "rows"))
    )


def _send(bootstrap: str, topic: str, flights: Flights) -> list[tuple[int, int]]:
    """Partition and offset of each record."""
    from confluent_kafka import Producer

    places: list[tuple[int, int]] = []

    def delivered(error: object, message: Any) -> None:
        if error is None:
            places.append((message.partition(), message.offset()))

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for record in list(flights.records())[-TAIL:]:
        producer.produce(topic, record.value, record.key, on_delivery=delivered, timestamp=record.timestamp)
    producer.flush(30)
    return places


def _rows(files: Path) -> Any:
    import pandas

    return pandas.read_parquet(files)


def _sorted(rows: Any) -> list[tuple[int, int]]:
    return sorted(zip(rows["partition"].tolist(), rows["offset"].tolist(), strict=True))
