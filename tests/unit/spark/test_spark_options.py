"""Options of the Spark source: accepted values, and errors that name the wrong option."""

import sys

import pytest

from tierlog.spark.options import EARLIEST, LATEST, InvalidOption, StoreAddress, Table, parse_options
from tierlog.spark.options.stream import parse_stream_options
from tierlog.spark.options.write import parse_write_options
from tierlog.spark.tables import count

LEAST = {"path": "/bucket", "topic": "flights"}


def test_defaults_are_everything_committed() -> None:
    options = parse_options(LEAST)
    assert (options.topics, options.partitions) == (("flights",), None)
    assert options.starting.offset_of("flights", 0) == EARLIEST
    assert options.ending.offset_of("flights", 0) == LATEST
    assert not options.include_headers and options.fail_on_data_loss and not options.push_filters


def test_names_count_in_any_case() -> None:
    options = parse_options({"PATH": "/b", "Topics": "b, a,b", "INCLUDEHEADERS": "True", "partitions": "3,1"})
    assert options.topics == ("b", "a") and options.include_headers and options.partitions == {1, 3}


def test_offsets_by_partition_leave_the_others_at_the_default() -> None:
    bound = parse_options({**LEAST, "startingOffsets": '{"flights":{"0":23,"1":-1}}'}).starting
    assert [bound.offset_of("flights", p) for p in range(3)] == [23, LATEST, EARLIEST]
    assert parse_options({**LEAST, "endingOffsets": "earliest"}).ending.offset_of("x", 0) == EARLIEST
    assert parse_options({**LEAST, "startingTimestamp": "17"}).starting.timestamp_ms == 17


def test_topics_are_selected_as_in_sparks_kafka_source() -> None:
    assert parse_options({"path": "/b", "subscribe": "b, a"}).topics == ("b", "a")
    assert parse_options({"path": "/b", "subscribePattern": "a.*"}).pattern == "a.*"
    assigned = parse_options({"path": "/b", "assign": '{"a":[0,2],"b":[1]}'})
    assert assigned.topics == ("a", "b")
    assert [assigned.partitions_of(topic) for topic in "ab"] == [{0, 2}, {1}]


def test_a_timestamp_precedes_timestamps_by_partition_and_these_precede_offsets() -> None:
    given = {**LEAST, "startingOffsets": "latest", "startingOffsetsByTimestamp": '{"flights":{"1":9}}'}
    by_partition = parse_options(given).starting
    assert [by_partition.timestamp_of("flights", p) for p in range(2)] == [None, 9]
    assert by_partition.offset_of("flights", 0) == EARLIEST and by_partition.must_match
    both = parse_options({**given, "startingTimestamp": "5"}).starting
    assert [both.timestamp_of("flights", p) for p in range(2)] == [5, 5]
    lenient = {**LEAST, "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    assert not parse_options(lenient).starting.must_match
    assert not parse_options({**LEAST, "endingTimestamp": "5"}).ending.must_match


def test_options_of_kafkas_clients_do_no_harm_in_a_batch_read() -> None:
    given = {"kafka.bootstrap.servers": "b:9092", "kafka.ssl.protocol": "TLS", "groupIdPrefix": "g"}
    assert parse_options({**LEAST, **given, "kafka.isolation.level": "read_committed"}).topics == ("flights",)


def test_metadata_tables_are_of_all_topics_by_default() -> None:
    options = parse_options({"path": "/b", "table": "Segments"})
    assert (options.table, options.pattern, options.topics) == (Table.SEGMENTS, ".*", ())
    assert parse_options({"path": "/b", "table": "segments", "subscribe": "a"}).pattern is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": "t"}, "path"),
        ({"path": "/b"}, "topic"),
        ({**LEAST, "topics": "a,b"}, "topic"),
        ({"path": "/b", "topics": " , "}, "name a topic"),
        ({**LEAST, "startingOfsets": "earliest"}, "startingofsets"),
        ({**LEAST, "partitions": "1,x"}, "partitions"),
        ({**LEAST, "partitions": "-1"}, "partitions"),
        ({**LEAST, "startingOffsets": "newest"}, "startingOffsets"),
        ({**LEAST, "startingOffsets": '{"flights":{"0":-3}}'}, "startingOffsets"),
        ({**LEAST, "startingOffsets": '{"flights":{"0":"5"}}'}, "startingOffsets"),
        ({**LEAST, "startingOffsets": '{"flights":{"0":true}}'}, "startingOffsets"),
        ({**LEAST, "endingOffsets": '{"flights":[5]}'}, "endingOffsets"),
        ({**LEAST, "endingOffsets": "[1]"}, "endingOffsets"),
        ({"path": "/b", "subscribe": "a", "assign": '{"a":[0]}'}, "set one of `subscribe`"),
        ({"path": "/b", "subscribePattern": "("}, "regular expression"),
        ({"path": "/b", "assign": '{"a":["0"]}'}, "assign"),
        ({"path": "/b", "assign": '{"a":0}'}, "assign"),
        ({**LEAST, "startingOffsetsByTimestamp": '{"flights":{"0":-2}}'}, "startingOffsetsByTimestamp"),
        ({**LEAST, "startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({**LEAST, "kafka.isolation.level": "read_uncommitted"}, "read_committed"),
        ({**LEAST, "maxOffsetsPerTrigger": "5"}, "belongs to `spark.readStream`"),
        ({**LEAST, "minPartition": "5"}, "Did you mean `minPartitions`"),
        ({**LEAST, "minPartitions": "0"}, "minPartitions"),
        ({**LEAST, "table": "records?"}, "partitions, segments"),
        ({**LEAST, "endingTimestamp": "yesterday"}, "endingTimestamp"),
        ({**LEAST, "includeHeaders": "yes"}, "includeHeaders"),
        ({**LEAST, "splitBytes": "0"}, "splitBytes"),
        ({**LEAST, "splitBytes": "8m"}, "splitBytes"),
        ({**LEAST, "endpoint": "127.0.0.1:9000"}, "`endpoint` must be http://host:port"),
        ({**LEAST, "splitBytes": "9" * 20}, "`splitBytes` must be at most"),
        ({**LEAST, "startingTimestamp": "9" * 20}, "startingTimestamp"),
        ({**LEAST, "endingOffsets": '{"flights":{"0":9999999999999999999}}'}, "endingOffsets"),
        ({**LEAST, "value.format": "avro", "value.schema": sys.executable}, "`value.schema`.*UTF-8"),
    ],
)
def test_invalid_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        parse_options(given)


def test_a_secret_never_shows() -> None:
    assert "canary" not in repr(StoreAddress(path="s3://b", access_key="a", secret_key="canary"))


@pytest.mark.parametrize(
    "keys",
    [{"accessKey": "a"}, {"secretKey": "s"}, {"sessionToken": "t"}, {"accessKey": "a", "sessionToken": "t"}],
)
def test_incomplete_keys_are_refused(keys: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="set"):
        parse_options({"path": "s3://bucket", "topic": "t", **keys})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "`startingTimestamp` 6 is after"),
        ({"startingTimestamp": "2025-03-01"}, "such as 1740787200000, not '2025-03-01'"),
    ],
)
def test_reversed_ranges_and_dates_as_text_are_errors(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_options({**LEAST, **given})


def test_counts_are_of_records_only() -> None:
    with pytest.raises(InvalidOption, match="`table` is not an option of count"):
        count("/bucket", table="partitions")


def test_bootstrap_addresses_are_checked_on_the_driver() -> None:
    given = {"kafka.bootstrap.servers": "localhost", "topic": "flights"}
    for parse in (parse_write_options, parse_stream_options):
        with pytest.raises(InvalidOption, match="'localhost' is not HOST:PORT, as in"):
            parse(given)


def test_a_streaming_write_may_have_a_name() -> None:
    given = {"kafka.bootstrap.servers": "b:9092", "topic": "copy", "queryname": "copy"}
    assert parse_write_options(given).topic == "copy"
