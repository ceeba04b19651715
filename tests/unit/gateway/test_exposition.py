"""Metrics in the Prometheus text format: readable by Prometheus, and written in turns of the event loop."""

import asyncio
from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from tierlog.base.histogram import Histogram
from tierlog.broker.gateway.exposition import PAUSE, Family, Sample, exposition


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_labels_are_escaped_and_may_be_missing() -> None:
    unescaped = 'a\\b"c\nd'
    families: list[Family] = [
        ("kafka_server_brokertopicmetrics_bytesin_total", [((), 7), (("t",), 3)]),
        ("tierlog_log_directory_full", [((unescaped,), 1)]),
    ]
    assert parsed(await exposition(families)) == {
        ("kafka_server_brokertopicmetrics_bytesin_total", ()): 7,
        ("kafka_server_brokertopicmetrics_bytesin_total", (("topic", "t"),)): 3,
        ("tierlog_log_directory_full", (("directory", unescaped),)): 1,
    }


async def test_histogram_values_are_in_the_unit_of_the_metrics_name() -> None:
    seconds = Histogram((0.001, 0.5))
    for value in (0.0005, 0.25, 9.0):
        seconds.observe(value)
    name = "kafka_log_logflushstats_logflushrateandtimems"
    values = parsed(await exposition([(name, [((), seconds)])]))
    buckets = {labels[0][1]: count for (key, labels), count in values.items() if key == f"{name}_bucket"}
    assert buckets == {"1": 1, "500": 2, "+Inf": 3}
    assert (values[f"{name}_count", ()], values[f"{name}_sum", ()]) == (3, 9250.5)


async def test_exposition_yields_while_it_writes_many_lines() -> None:
    turns = []

    def samples() -> Iterator[Sample]:
        for number in range(10_000):
            yield ("t", str(number)), len(turns)

    async def count_turns() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counter = asyncio.ensure_future(count_turns())
    text = await exposition([("kafka_log_log_size", samples())])
    assert text.count(b"\n") == 10_002
    assert len(turns) >= 9
    turns.clear()
    assert await exposition([PAUSE, PAUSE]) == b""
    counter.cancel()
    assert len(turns) == 2
