"""Requests of the driver of a stream, against a broker that responds as a script says."""

import uuid

import pytest
from scripted_broker import broker

from tierlog.client import cluster
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tierlog.spark.live.positions import BrokerPositions, BrokerUnavailable
from tierlog.spark.options import InvalidOption
from tierlog.spark.options.stream import parse_stream_options

IDS = {name: uuid.UUID(int=number) for number, name in enumerate("abc", 1)}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "RETRY_PAUSE_S", 0.0)


def positions(address: str, **options: str) -> BrokerPositions:
    given = {"kafka.bootstrap.servers": address, "kafka.request.timeout.ms": "200", **options}
    parsed = parse_stream_options(given)
    assert parsed.live is not None
    return BrokerPositions(parsed.live, parsed)


def topics(port: int, names: str, code: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=1)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)],
        topics=[
            MetadataResponseTopic(name=name, topic_id=IDS[name], error_code=code, partitions=[partition])
            for name in names
        ],
    )


@pytest.mark.parametrize("selected", [{"subscribe": "a,b,c"}, {"subscribePattern": "[a-c]"}])
def test_topics_of_a_stream_are_looked_up_in_one_request(selected: dict[str, str]) -> None:
    calls = []

    def respond(api: str, port: int) -> MetadataResponse:
        calls.append(api)
        return topics(port, "cab")

    with broker(respond) as address:
        found = positions(address, **selected)
        assert [str(source) for source in found.sources()] == ["a-0", "b-0", "c-0"]
        assert calls == ["Metadata"]
        found.close()


def test_unknown_topic_is_an_error_at_once_unless_it_was_there_before() -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [ErrorCode.NONE, unknown, ErrorCode.NONE, unknown]

    def respond(_: str, port: int) -> MetadataResponse:
        return topics(port, "a", codes.pop(0))

    with broker(respond) as address:
        found = positions(address, subscribe="a")
        assert found.sources() == found.sources()  # the second look-up is repeated once
        found.close()
        with pytest.raises(InvalidOption, match="topic 'a' does not exist on the brokers"):
            positions(address, subscribe="a").sources()


def test_unreachable_brokers_are_named_with_the_option_to_check() -> None:
    with pytest.raises(BrokerUnavailable, match=r"cannot reach 127.0.0.1:1.*`kafka.bootstrap.servers`"):
        positions("127.0.0.1:1", subscribe="a").sources()
