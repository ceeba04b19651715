"""Analysis of a topic's load: slices, estimates, heavy keys and advice, from batches without a broker."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.cli.topic_analysis import (
    HeavyItems,
    KeySample,
    PartitionLoad,
    advice,
    partition_rows,
    slices_of,
    summary,
)
from tierlog.records.batch import read_header
from tierlog.records.codecs import Codec
from tierlog.records.writer import NewRecord, encode_batch


def loaded(partition: int, batches: list[int], *, value_bytes: int = 10, leader: int = 1) -> PartitionLoad:
    """A partition whose batches have so many records each, all read."""
    end = sum(batches)
    load = PartitionLoad(partition=partition, leader=leader, offsets=(0, end))
    load.slices = slices_of(partition, 0, end, count=1, budget_bytes=1 << 30)
    at = 0
    for count in batches:
        batch = encode_batch([NewRecord(0, b"k", bytes(value_bytes))] * count, base_offset=at)
        header = read_header(batch)
        load.slices[0].add(header)
        load.batch_bytes.append(header.size)
        load.codec_bytes[Codec.NONE] += header.size
        at += count
    return load


def test_a_batch_counts_once_though_it_spans_several_slices() -> None:
    header = read_header(encode_batch([NewRecord(0, None, b"v")] * 100, base_offset=40))
    parts = slices_of(0, 50, 130, count=8, budget_bytes=1 << 20)
    assert [one.add(header) for one in parts] == [True, *[False] * 7], "the range begins inside of it"
    later = slices_of(0, 0, 200, count=4, budget_bytes=1 << 20)
    assert [one.add(header) for one in later[1:]] == [False, False, False]
    assert later[0].add(header) and later[0].records == 100


def test_a_sample_of_half_of_the_offsets_stands_for_all() -> None:
    [part] = slices_of(0, 0, 200, count=1, budget_bytes=1)
    header = read_header(encode_batch([NewRecord(0, None, b"v")] * 100))
    assert part.add(header) and part.is_done
    load = PartitionLoad(partition=0, leader=1, offsets=(0, 200), slices=[part])
    assert (load.records, load.batches, load.sampled) == (200, 2, 0.5)
    assert load.bytes == 2 * header.size


def test_rates_and_shares_are_per_partition_and_of_the_topic() -> None:
    loads = [loaded(0, [10, 10]), loaded(1, [60]), loaded(2, [])]
    rows = partition_rows(loads, 10)
    assert [(row["partition"], row["records_per_s"], row["batches_per_s"]) for row in rows] == [
        (1, 6, 0.1),
        (0, 2, 0.2),
        (2, 0, 0),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.001)
    total = summary(loads, 10)
    assert (total["records"], total["idle_partitions"], total["codecs"]) == (80, 1, {"none": 1})


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=300),
    st.integers(1, 8),
)
def test_weights_of_heavy_items_are_too_low_by_the_error_at_most(
    stream: list[tuple[int, int]], capacity: int
) -> None:
    found, exact = HeavyItems[int](capacity), Counter[int]()
    for item, weight in stream:
        found.add(item, weight)
        exact[item] += weight
        assert len(found.weights) <= 2 * capacity
    assert found.total == exact.total()
    assert found.error * capacity <= found.total
    for item, weight in exact.items():
        assert weight - found.error <= found.weights.get(item, 0) <= weight


def keys(hot_bytes: int) -> KeySample:
    found = KeySample()
    found.add(0, b"hot", bytes(hot_bytes))
    for number in range(1000):
        found.add(number % 4, b"key-%d" % number, bytes(10))
    return found


def test_advice_names_the_hot_key_and_its_partition() -> None:
    loads = [loaded(0, [900] * 5), *(loaded(at, [300]) for at in (1, 2, 3))]
    found = advice("orders", loads, 600, keys(30_000))
    text = "\n".join(found)
    assert "Key 'hot' has 64% of the topic's bytes" in text and "Partition 0 gets 3.3 times" in text
    assert "The keys above heat it" in text
    assert "--keys" in "\n".join(advice("orders", loads, 600, None))
    assert "weigh little each" in "\n".join(advice("orders", loads, 600, keys(10)))


def test_advice_on_small_batches_compression_and_leaders() -> None:
    small = "\n".join(advice("orders", [loaded(0, [1] * 2000)], 1, None))
    assert "Batches are small" in small and "compressed" not in small
    large = "\n".join(advice("orders", [loaded(0, [1000] * 3)], 600, None))
    assert "100% of the bytes are not compressed" in large and "small" not in large
    loads = [loaded(0, [1000]), loaded(1, [1000]), loaded(2, [10], leader=2), loaded(3, [10], leader=3)]
    assert "Broker 1 leads 99% of the bytes" in "\n".join(advice("orders", loads, 600, None))


def test_few_records_or_an_even_load_lead_to_no_advice() -> None:
    assert advice("orders", [loaded(0, [500]), loaded(1, [1])], 600, None) == []
    even = [loaded(at, [50] * 100, value_bytes=1, leader=at) for at in range(4)]
    assert advice("orders", even, 600, keys(10)) == []
