"""Options of streams, with the names of Kafka, librdkafka and Spark's Kafka source."""

import pytest

from tierlog.spark.options import InvalidOption
from tierlog.spark.options.stream import parse_stream_options

LIVE = {"topic": "flights", "kafka.bootstrap.servers": "a:1,b:2"}


def test_brokers_alone_path_alone_or_both() -> None:
    live = parse_stream_options(LIVE)
    assert live.live is not None and live.live.bootstrap == "a:1,b:2" and not live.has_history
    path = parse_stream_options({"topic": "flights", "path": "/bucket"})
    assert path.live is None and path.has_history
    both = parse_stream_options({**LIVE, "path": "/bucket"})
    assert both.live is not None and both.has_history


def test_limits_of_triggers() -> None:
    given = {**LIVE, "MAXOFFSETSPERTRIGGER": "500", "minOffsetsPerTrigger": "100", "maxTriggerDelay": "30s"}
    options = parse_stream_options(given)
    assert (options.max_offsets, options.min_offsets, options.max_trigger_delay_ms) == (500, 100, 30_000)
    assert parse_stream_options(LIVE).max_trigger_delay_ms == 15 * 60_000
    assert parse_stream_options({**LIVE, "maxTriggerDelay": "2 min"}).max_trigger_delay_ms == 120_000


def test_names_of_librdkafka_are_accepted() -> None:
    given = {
        "topic": "flights",
        "kafka.metadata.broker.list": "a:1",
        "kafka.socket.timeout.ms": "500",
        "kafka.fetch.message.max.bytes": "1000",
    }
    live = parse_stream_options(given).live
    assert live is not None and (live.bootstrap, live.timeout_s, live.fetch_bytes) == ("a:1", 0.5, 1000)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"kafka.security.protocol": "TLS"}, "kafka.security.protocol: 'TLS' is not one of"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
        ({"kafka.ssl.protocl": "TLSv1.3"}, "unknown option kafka.ssl.protocl"),
        ({"kafka.isolation.level": "read_uncommitted"}, "must be read_committed"),
        ({"kafka.bootstrap.server": "a:1"}, "Did you mean `kafka.bootstrap.servers`"),
        ({"endingOffsets": "latest"}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "must not be larger"),
        ({"maxTriggerDelay": "soon"}, "duration like 15m"),
        ({"kafka.request.timeout.ms": "9999999999"}, r"`kafka\.request\.timeout\.ms` must be at most"),
    ],
)
def test_invalid_options_are_named(more: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        parse_stream_options({**LIVE, **more})


def test_a_place_to_read_from_is_required() -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
        parse_stream_options({"topic": "flights"})
