"""AlterUsers: what is stored, what is refused, and that a user changes completely or not at all."""

from typing import Any

import msgspec
import pytest
from immutables import Map

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import users
from tierlog.metadata.image_codec import decode_image, encode_image
from tierlog.metadata.scram import ScramMechanism, ScramVerifier
from tierlog.protocol.errors import ErrorCode

World = Any
SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def verifier(
    mechanism: ScramMechanism = SHA_256, iterations: int = 4096, salt: bytes = b"s"
) -> ScramVerifier:
    size = mechanism.key_size
    return ScramVerifier(salt=salt, stored_key=b"a" * size, server_key=b"b" * size, iterations=iterations)


def put(user: str, mechanism: int = SHA_256, of: ScramVerifier | None = None) -> c.CredentialChange:
    known = ScramMechanism(mechanism) if mechanism in tuple(ScramMechanism) else SHA_256
    return c.CredentialChange(user=user, mechanism=mechanism, verifier=of or verifier(known))


def remove(user: str, mechanism: int = SHA_256) -> c.CredentialChange:
    return c.CredentialChange(user=user, mechanism=mechanism, verifier=None)


def alter(world: World, *changes: c.CredentialChange) -> list[ErrorCode]:
    return [outcome.error for outcome in world.do(c.AlterUsers(changes=changes)).users]


@pytest.fixture
def secured(world: World) -> World:
    world.image = msgspec.structs.replace(world.image, format_version=3)
    return world


def test_credentials_are_set_changed_and_removed(secured: World) -> None:
    assert alter(secured, put("ada"), put("ada", SHA_512), put("bob")) == [ErrorCode.NONE] * 2
    assert set(secured.image.scram_users["ada"]) == {SHA_256, SHA_512}
    changed = verifier(iterations=8192)
    assert alter(secured, put("ada", of=changed), remove("bob")) == [ErrorCode.NONE] * 2
    assert secured.image.scram_users["ada"][SHA_256] == changed
    assert "bob" not in secured.image.scram_users
    assert decode_image(encode_image(secured.image)) == secured.image
    alter(secured, remove("ada"), remove("ada", SHA_512))
    assert secured.image.scram_users == Map()


def test_user_changes_completely_or_not_at_all(secured: World) -> None:
    assert alter(secured, put("ada"), remove("ada", SHA_512), put("bob")) == [
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.NONE,
    ]
    assert set(secured.image.scram_users) == {"bob"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (put(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("ada", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (put("ada", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (put("ada", of=verifier(iterations=4095)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("ada", of=verifier(iterations=16385)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("ada", of=verifier(salt=b"")), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("ada", of=verifier(SHA_512)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (put("a" * 256), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (remove("ada"), ErrorCode.RESOURCE_NOT_FOUND),
    ],
)
def test_what_is_refused(secured: World, change: c.CredentialChange, error: ErrorCode) -> None:
    assert alter(secured, change) == [error]
    assert not secured.image.scram_users


def test_credential_named_twice_is_refused(secured: World) -> None:
    assert alter(secured, put("ada"), put("ada")) == [ErrorCode.DUPLICATE_RESOURCE]
    assert not secured.image.scram_users


def test_users_need_format_3(world: World) -> None:
    world.image = msgspec.structs.replace(world.image, format_version=2)
    (outcome,) = world.do(c.AlterUsers(changes=(put("ada"),))).users
    assert outcome.error == ErrorCode.UNSUPPORTED_VERSION
    assert "raise tierlog.format to 3 first" in outcome.message


def test_number_of_users_is_bounded(secured: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "USERS_MAX", 1)
    assert alter(secured, put("ada"), put("bob")) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert alter(secured, put("ada", SHA_512)) == [ErrorCode.NONE]


def test_keys_are_not_in_texts() -> None:
    assert "aaaa" not in repr(put("ada"))
