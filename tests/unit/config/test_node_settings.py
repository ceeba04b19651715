"""Node settings: aliases, topic defaults, and error messages."""

import re

import pytest

from tierlog.config.definitions import InvalidSetting
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.sources import settings_from
from tierlog.config.topic import TOPIC_SETTINGS


@pytest.mark.parametrize(("hours", "ms"), [("168", 604_800_000), ("-1", -1)])
def test_hours_become_milliseconds(hours: str, ms: int) -> None:
    assert settings_from({"log.retention.hours": hours}).log_retention_ms == ms


def test_the_finer_unit_wins_within_one_source() -> None:
    assert settings_from({"log.retention.ms": "5", "log.retention.hours": "2"}).log_retention_ms == 5
    minutes_first = {"log.retention.minutes": "1", "log.retention.hours": "2"}
    assert settings_from(minutes_first).log_retention_ms == 60_000


def test_the_usual_name_wins_within_one_source() -> None:
    assert settings_from({"node.id": "4", "broker.id": "5"}).node_id == 4


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"num.partition": "1"}, "did you mean 'num.partitions'"),
        ({"num.partitions": "many"}, "num.partitions: 'many' is not an integer$"),
        ({"log.retention.ms": "1h"}, "'1h' is not an integer$"),
        ({"log.retention.hours": "1_0"}, "log.retention.hours: '1_0' is not an integer$"),
        ({"log.cleaner.min.cleanable.ratio": "half"}, "'half' is not a number$"),
        ({"log.preallocate": "yes"}, "'yes' is not true or false$"),
        ({"num.partitions": "0"}, "below the minimum, 1$"),
        ({"remote.cache.bytes": "1"}, "below the minimum, 16777216$"),
        ({"log.cleaner.io.buffer.load.factor": "0.05"}, "below the minimum, 0.1$"),
        ({"replica.selector.class": "x"}, r"'x' is not one of \(empty\), org"),
        ({"listeners": "OTHER://h:1"}, "add OTHER:PROTOCOL to listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://h:1,plaintext://h:2"}, "the name PLAINTEXT is used twice"),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:1"}, "port 1 is listed twice"),
        ({"listeners": "h:1"}, "not NAME://host:port"),
        ({"listeners": ""}, "at least one"),
        ({"listener.security.protocol.map": "A:TLS"}, "not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "A,B:SSL"}, "not a listener's name|not NAME:PROTOCOL"),
        ({"advertised.listeners": "SSL://h:1"}, "listeners has no SSL"),
        ({"inter.broker.listener.name": "INTERNAL"}, "listeners has no INTERNAL, only PLAINTEXT"),
        ({"listeners": "PLAINTEXT://h"}, "not host:port"),
        ({"listeners": "PLAINTEXT://h:\N{SUPERSCRIPT TWO}"}, "not host:port"),
        ({"advertised.listeners": "PLAINTEXT://h:0"}, "port 0"),
        ({"process.roles": "worker"}, "not one of broker, controller"),
        ({"process.roles": "broker"}, "a single role needs controller.quorum.voters and .secret"),
        ({"process.roles": "controller"}, "a single role needs controller.quorum.voters"),
        ({"process.roles": ""}, "broker, controller, or both"),
        (
            {
                "process.roles": "broker",
                "controller.quorum.voters": "1@h:1",
                "controller.quorum.secret": "s",
            },
            "names this node, 1, which is no controller",
        ),
        ({"group.consumer.session.timeout.ms": "44999"}, "not between group.consumer.min.session.timeout"),
        ({"group.consumer.max.heartbeat.interval.ms": "4999"}, "not between group.consumer.min.heartbeat"),
        (
            {
                "group.consumer.heartbeat.interval.ms": "45000",
                "group.consumer.max.heartbeat.interval.ms": "45000",
            },
            "group.consumer.heartbeat.interval.ms is not below group.consumer.session.timeout.ms",
        ),
        ({"group.consumer.assignors": "sticky"}, "not one of uniform, range"),
        ({"group.consumer.assignors": ""}, "at least one assignor is needed"),
        ({"group.consumer.migration.policy": "both"}, "not one of bidirectional"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "the classic protocol cannot be turned off"),
        ({"controller.quorum.voters": "1"}, "id@host:port"),
        ({"controller.quorum.voters": "\N{SUPERSCRIPT TWO}@h:1"}, "id@host:port"),
        ({"controller.quorum.voters": "2@h:1"}, "does not name this node"),
        ({"controller.quorum.voters": "1@h:1,2@h:2"}, "controller.quorum.secret"),
        ({"log.dirs": ""}, "at least one directory"),
        ({"controller.quorum.ssl.ca": "ca.crt"}, "set all three or none"),
        (
            {"admin.authentication": "basic", "admin.listener": "0.0.0.0:9644"},
            "basic would send secrets without encryption. Set controller.quorum.ssl.certificate",
        ),
        (
            {
                "admin.authentication": "bearer",
                "admin.listener": ":9644",
                "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys",
            },
            "or a loopback address in admin.listener",
        ),
        ({"broker.heartbeat.interval.ms": "2701"}, "above nine tenths of broker.session.timeout.ms"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "above"),
        ({"audit.log.topic": "audit"}, "needs audit.log.dir"),
        ({"audit.log.topic": "an audit", "audit.log.dir": "d"}, "cannot be a topic of its own"),
        ({"audit.log.topic": "__consumer_offsets", "audit.log.dir": "d"}, "cannot be a topic of its own"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(texts: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        settings_from(texts)


@pytest.mark.parametrize("address", ["127.0.0.1:9644", "http://localhost:0", "[::1]:0"])
def test_passwords_of_the_admin_api_need_no_tls_on_a_loopback_address(address: str) -> None:
    settings_from({"admin.authentication": "basic", "admin.listener": address})


def test_passwords_of_the_admin_api_need_no_loopback_address_with_tls() -> None:
    files = {f"controller.quorum.ssl.{one}": f"{one}.pem" for one in ("certificate", "key", "ca")}
    settings_from({"admin.authentication": "basic", "admin.listener": "0.0.0.0:9644", **files})


def test_voters_and_addresses() -> None:
    settings = settings_from(
        {
            "controller.quorum.voters": "1@a:1,2@b:2",
            "controller.quorum.secret": "s",
            "listeners": "PLAINTEXT://[::1]:0",
        }
    )
    assert settings.voters == {1: "http://a:1", 2: "http://b:2"}
    [listener] = settings.client_listeners
    assert (listener.host, listener.port) == ("::1", 0)


def test_topic_config_uses_node_defaults_and_overrides() -> None:
    settings = settings_from({"log.segment.bytes": "1000", "log.retention.ms": "5"})
    config = settings.topic_config({"retention.ms": "6"})
    assert (config.segment_bytes, config.retention_ms, config.segment_ms) == (1000, 6, 604_800_000)


def test_timestamps_and_preallocation_have_defaults_of_the_node() -> None:
    config = settings_from(
        {
            "log.message.timestamp.after.max.ms": "7",
            "log.message.timestamp.before.max.ms": "8",
            "log.preallocate": "true",
        }
    ).topic_config({})
    assert (config.message_timestamp_after_max_ms, config.message_timestamp_before_max_ms) == (7, 8)
    assert config.preallocate


def test_default_maximum_of_future_timestamps_is_an_hour_as_in_kafka_4() -> None:
    assert NodeSettings().topic_config({}).message_timestamp_after_max_ms == 3_600_000  # KIP-1030


def test_list_items_are_distinct() -> None:
    assert settings_from({"log.cleanup.policy": "compact, delete,compact"}).log_cleanup_policy == (
        "compact",
        "delete",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max.message.bytes", "99999999999"),
        ("segment.bytes", "2147483648"),
        ("retention.ms", "9223372036854775808"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\N{ARABIC-INDIC DIGIT THREE}"),
        ("max.message.bytes", "1_000"),
        ("min.cleanable.dirty.ratio", "0.1_0"),
        ("min.cleanable.dirty.ratio", "\N{FULLWIDTH DIGIT ONE}"),
    ],
)
def test_number_of_another_form_or_size_is_parsed_but_not_accepted(name: str, text: str) -> None:
    setting = TOPIC_SETTINGS[name]
    setting.parse(text)  # earlier versions stored it
    with pytest.raises(InvalidSetting, match=name):
        setting.accept(text)
    setting.accept(setting.text(setting.default))


@pytest.mark.parametrize(("text", "number"), [("3", 3), ("+3", 3), ("-1", -1), (" 007 ", 7)])
def test_integer_has_the_forms_of_kafka(text: str, number: int) -> None:
    assert TOPIC_SETTINGS["retention.ms"].accept(text) == number


@pytest.mark.parametrize("text", ["", "+", "1.0", "0x10", "1e3", "- 1"])
def test_other_forms_of_an_integer_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"retention.ms: .* is not an integer"):
        TOPIC_SETTINGS["retention.ms"].accept(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("+.5e-1f", 0.05),
        ("1d", 1.0),
        ("0x1.8p-1", 0.75),
        ("0x.8p0D", 0.5),
    ],
)
def test_double_has_the_forms_of_kafka(text: str, number: float) -> None:
    """Tried with Double.parseDouble of JDK 17."""
    setting = TOPIC_SETTINGS["min.cleanable.dirty.ratio"]
    assert setting.accept(text) == setting.parse(text) == number


@pytest.mark.parametrize(
    "text", ["", ".", "1e", "0x1", "1_0.0", "inf", "Infinity", "1e999", "0x1p99999", "1ff"]
)
def test_other_forms_of_a_double_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"min.cleanable.dirty.ratio"):
        TOPIC_SETTINGS["min.cleanable.dirty.ratio"].accept(text)


def test_error_says_how_throttled_replicas_are_written() -> None:
    with pytest.raises(InvalidSetting, match=r"'orders:1' is not partition:broker or \*$"):
        TOPIC_SETTINGS["leader.replication.throttled.replicas"].parse("0:1,orders:1")


def test_every_default_is_valid() -> None:
    NodeSettings().validate()
    for setting in NODE_SETTINGS.values():
        assert setting.parse(setting.text(setting.default)) == setting.default


def test_every_setting_says_when_to_change_it() -> None:
    verbs = "Raise|Lower|Set|Change|Turn|Leave|Disable|raise it|lower it|set it|sets it|Put it|To keep"
    advice = re.compile(rf"\b({verbs})\b")
    settings = NODE_SETTINGS | TOPIC_SETTINGS
    assert [name for name, setting in settings.items() if not advice.search(setting.doc)] == []
