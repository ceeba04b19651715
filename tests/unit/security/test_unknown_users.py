"""Unknown users look like real ones: in SCRAM's first answer, and in what a check of their password costs."""

import hashlib

import pytest
from immutables import Map
from sasl_logins import verifier

from tierlog.broker.gateway import credentials
from tierlog.broker.gateway.credentials import ScramPasswords
from tierlog.broker.security.unknown_users import SAMPLE_MAX, UnknownUsers
from tierlog.metadata.scram import ScramMechanism, ScramVerifier
from tierlog.metadata.scram_users import ScramUsers

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
NAMES = [f"unknown-{number}" for number in range(400)]


def made(iterations: int, salt: bytes) -> ScramVerifier:
    return ScramVerifier(salt=salt, stored_key=b"", server_key=b"", iterations=iterations)


def unknown(users: ScramUsers) -> UnknownUsers:
    return UnknownUsers(lambda: users, b"secret")


def test_without_users_unknown_ones_have_the_defaults_of_kafka() -> None:
    found = unknown(Map()).verifier("eve", SHA_512)
    assert (found.iterations, len(found.salt), len(found.stored_key)) == (4096, 25, 64)
    assert found.salt.isalnum()
    assert unknown(Map()).best_verifier("eve")[0] is SHA_256


def test_unknown_user_has_the_iterations_and_the_kind_of_salt_of_the_real_ones() -> None:
    for salt in (b"8d2ksl30skd93ksl2kd83jskd1", bytes(64)):
        found = unknown(Map({"ada": Map({SHA_256: made(16_384, salt)})})).verifier("eve", SHA_256)
        assert (found.iterations, len(found.salt), found.salt.isalnum()) == (
            16_384,
            len(salt),
            salt.isalnum(),
        )


def test_choice_is_the_same_each_time_and_as_frequent_as_among_real_users() -> None:
    users: ScramUsers = Map(
        {
            f"user-{number}": Map({SHA_256: made(4096 if number % 4 else 8192, b"x" * 20)})
            for number in range(100)
        }
    )
    one, other = unknown(users), unknown(Map(dict(users)))
    assert [one.verifier(name, SHA_256) for name in NAMES] == [other.verifier(n, SHA_256) for n in NAMES]
    assert len({one.verifier(name, SHA_256).salt for name in NAMES}) == len(NAMES)
    rare = sum(one.verifier(name, SHA_256).iterations == 8192 for name in NAMES)
    assert 60 < rare < 140
    other_secret = UnknownUsers(lambda: users, b"another")
    assert any(
        one.verifier(n, SHA_256).iterations != other_secret.verifier(n, SHA_256).iterations for n in NAMES
    )


def test_new_user_changes_few_answers() -> None:
    users: ScramUsers = Map({f"user-{n}": Map({SHA_256: made(4096 + n % 2, b"x" * 20)}) for n in range(100)})
    after = users.set("new", Map({SHA_256: made(4096, b"x" * 20)}))
    before_and_after = [
        (unknown(users).verifier(n, SHA_256), unknown(after).verifier(n, SHA_256)) for n in NAMES[:200]
    ]
    assert sum(old != new for old, new in before_and_after) < 10


def test_user_has_the_same_mechanisms_for_logins_and_for_the_admin_api() -> None:
    users: ScramUsers = Map(
        {
            "ada": Map({SHA_256: made(5000, b"x")}),
            "bob": Map({SHA_256: made(6000, b"x"), SHA_512: made(7000, b"x")}),
        }
    )
    one = unknown(users)
    found = {
        (
            one.verifier(name, SHA_256).iterations,
            one.verifier(name, SHA_512).iterations,
            one.best_verifier(name)[1].iterations,
        )
        for name in NAMES
    }
    assert found == {(5000, 7000, 5000), (6000, 7000, 7000)}
    assert one.verifier("ada", SHA_512).iterations == 7000


def test_only_some_users_are_looked_at() -> None:
    seen = []

    class Counted(dict):  # type: ignore[type-arg]
        def items(self):  # type: ignore[no-untyped-def]
            seen.append(1)
            return super().items()

    many = {f"user-{n}": Counted({SHA_256: made(4096, b"x")}) for n in range(SAMPLE_MAX + 100)}
    one = unknown(Map(many))
    for name in NAMES[:3]:
        one.verifier(name, SHA_256)
    assert len(seen) == SAMPLE_MAX


@pytest.mark.parametrize("user", ["ada", "eve"])
async def test_password_of_an_unknown_user_is_hashed_as_often(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[tuple[str, int]] = []

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        hashed.append((name, iterations))
        return pbkdf2(name, password, salt, iterations)

    pbkdf2 = hashlib.pbkdf2_hmac
    users: ScramUsers = Map({"ada": Map({SHA_512: verifier("sha512", "lovelace", iterations=16_384)})})
    passwords = ScramPasswords(lambda: users, b"secret")
    monkeypatch.setattr(credentials.hashlib, "pbkdf2_hmac", counted)
    assert not await passwords.verify(user, "wrong")
    assert hashed == [("sha512", 16_384)]
