"""Options of the Spark source: accepted values, and errors that name the wrong option."""

import pytest

from tierlog.spark.options import EARLIEST, LATEST, InvalidOption, StoreAddress, parse_options

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
        ({**LEAST, "startingOffsets": "latest", "startingTimestamp": "1"}, "startingTimestamp"),
        ({**LEAST, "endingTimestamp": "yesterday"}, "endingTimestamp"),
        ({**LEAST, "includeHeaders": "yes"}, "includeHeaders"),
        ({**LEAST, "splitBytes": "0"}, "splitBytes"),
        ({**LEAST, "splitBytes": "8m"}, "splitBytes"),
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
