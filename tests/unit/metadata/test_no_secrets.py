"""The quorum holds no secret, so its snapshots need no encryption (docs/explanation/security.md)."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tierlog.config.definitions import SettingType
from tierlog.config.dynamic import DYNAMIC_SETTINGS, why_not_dynamic
from tierlog.config.groups import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tierlog.config.kafka_names import INERT_SETTINGS
from tierlog.config.node import NODE_SETTINGS
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.records import AnyRecord

BYTES = {
    "ScramVerifier.salt": "is sent to every client that names the user",
    "ScramVerifier.stored_key": "verifies a password, which can only be guessed",
    "ScramVerifier.server_key": "proves the broker to clients, and tells the password only by guessing",
}
"""Fields of bytes in records, and why each is no secret that must be encrypted."""


def structs(kind: Any) -> Iterator[Any]:
    """The structs that values of a type have."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for field in msgspec.structs.fields(kind):
            yield from structs(field.type)
    elif not isinstance(kind, types.GenericAlias) or kind is not None:
        for part in typing.get_args(kind):
            yield from structs(part)


def test_fields_of_bytes_in_records_are_no_secrets() -> None:
    found = {
        f"{struct.__name__}.{field.name}"
        for struct in structs(AnyRecord)
        for field in msgspec.structs.fields(struct)
        if field.type in (bytes, bytes | None)
    }
    assert found == BYTES.keys()


def test_no_setting_that_the_quorum_keeps_is_a_password() -> None:
    kept = {name: NODE_SETTINGS[name] for name in DYNAMIC_SETTINGS}
    kept |= INERT_SETTINGS | TOPIC_SETTINGS | GROUP_SETTINGS | CLIENT_METRICS_SETTINGS
    assert [name for name, setting in kept.items() if setting.type is SettingType.PASSWORD] == []


@pytest.mark.parametrize("name", [n for n, s in NODE_SETTINGS.items() if s.type is SettingType.PASSWORD])
def test_passwords_of_nodes_cannot_be_set_while_they_run(name: str) -> None:
    assert why_not_dynamic(name) is not None
    assert why_not_dynamic(f"listener.name.clients.{name}") is not None


@pytest.mark.parametrize(
    "name",
    [
        "my.plugin.password",
        "password.encoder.secret",
        "s3.secret.key",
        "aws_access_key",
        "AccessKey",
        "vault.token",
        "client.credentials",
        "my.jaas.config",
        "tls-passphrase",
    ],
)
def test_unknown_names_that_sound_like_secrets_are_refused(name: str) -> None:
    assert "keeps no secrets" in str(why_not_dynamic(name))


@pytest.mark.parametrize(
    "name", ["my.own", "compass.direction", "tokens.per.second", "keyspace", "primary.key"]
)
def test_other_unknown_names_are_kept(name: str) -> None:
    assert why_not_dynamic(name) is None
