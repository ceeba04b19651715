"""Pure functions of the command line: partitioner, timestamps, lines, events and sizes."""

import gc

import pytest
from kafka.partitioner.default import murmur2 as reference_murmur2

from tierlog.cli.commands.consume import parse_time
from tierlog.cli.commands.produce import split_line
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.node import gc_paused
from tierlog.cli.options import parse_pairs
from tierlog.cli.output import counted, listed, readable, size
from tierlog.client.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected % 2**32
    assert murmur2(data) == reference_murmur2(data) % 2**32


def test_keys_map_to_fixed_partitions_below_the_count() -> None:
    partitions = {partition_of(b"key-%d" % index, 7) for index in range(1000)}
    assert partitions == set(range(7))
    assert partition_of(b"foobar", 7) == partition_of(b"foobar", 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1735689600000", 1_735_689_600_000),
        ("2025-01-01T00:00:00Z", 1_735_689_600_000),
        ("2025-01-01T00:00:00", 1_735_689_600_000),
        ("2025-01-01T01:00:00+01:00", 1_735_689_600_000),
    ],
)
def test_parse_time(text: str, expected: int) -> None:
    assert parse_time(text) == expected


def test_invalid_time_is_a_usage_error_with_an_example() -> None:
    with pytest.raises(CliError) as raised:
        parse_time("yesterday")
    assert raised.value.code == ExitCode.USAGE
    assert "2025-01-01T00:00:00Z" in raised.value.hint


def test_split_line() -> None:
    assert split_line(b"a:b:c\n", ":") == (b"a", b"b:c")
    assert split_line(b"abc\r\n", ":") == (None, b"abc")
    assert split_line(b"a:b\n", None) == (None, b"a:b")
    assert split_line(b":b\n", ":") == (b"", b"b")

    assert split_line(b"a:\n", ":", "") == (b"a", None)
    assert split_line(b"a:NULL\n", ":", "NULL") == (b"a", None)
    assert split_line(b"a:NULLs\n", ":", "NULL") == (b"a", b"NULLs")
    assert split_line(b"NULL\n", None, "NULL") == (None, None)


def test_readable_encodes_binary_values_as_base64() -> None:
    assert readable(b"caf\xc3\xa9") == "café"
    assert readable(b"\xff") == {"base64": "/w=="}
    assert readable(None) is None


def test_parse_pairs() -> None:
    assert parse_pairs(["a=1", " b = x=y "], "--set", "") == {"a": "1", "b": "x=y"}
    with pytest.raises(CliError) as raised:
        parse_pairs(["novalue"], "--set", "")
    assert raised.value.code == ExitCode.USAGE


def test_size() -> None:
    assert [size(count) for count in (0, 1023, 1024, 18_140_365, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "17.3 MiB",
        "5.0 TiB",
    ]


def test_number_and_noun_agree() -> None:
    assert [counted(number, "record") for number in (0, 1, 2, 1000)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,000 records",
    ]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


def test_long_list_is_cut_and_says_how_many_more_there_are() -> None:
    assert listed(["a", "b"], most=2) == "a, b"
    assert listed(["a", "b", "c", "d"], most=2) == "a, b and 2 more"


def test_gc_paused_collects_nothing_and_freezes_new_objects() -> None:
    collected: list[str] = []
    before = gc.get_freeze_count()
    gc.callbacks.append(lambda phase, _: collected.append(phase))
    try:
        with gc_paused():
            kept = [[number] for number in range(100_000)]
        assert collected == []
        assert gc.isenabled() and gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.callbacks.pop()
        gc.unfreeze()
