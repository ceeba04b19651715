"""Delegation tokens in Kafka and in tierlog: the same requests, and the same answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_process import KafkaProcess, free_ports
from token_sides import KEY, SETTINGS, LoginFailed, Side, TokenClient
from waiting import until

from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.protocol.errors import ErrorCode
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow, pytest.mark.timeout(240)]

HOUR_MS = 3_600_000
Answers = dict[str, Any]


class Pair:
    """Kafka and tierlog with the same settings."""

    def __init__(self, classpath: str, directory: Path, settings: dict[str, str]) -> None:
        client, controller, sasl = free_ports(3)
        (directory / "kafka").mkdir()
        more = "".join(f"{name}={value}\n" for name, value in settings.items())
        more += (
            f"listeners=PLAINTEXT://127.0.0.1:{client},SASL://127.0.0.1:{sasl},"
            f"CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{client},SASL://127.0.0.1:{sasl}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT\n"
            + "".join(
                f"listener.name.sasl.{mechanism}.sasl.jaas.config="
                "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
                for mechanism in ("scram-sha-256", "scram-sha-512")
            )
        )
        self._kafka = KafkaProcess(classpath, directory / "kafka", more=more, ports=(client, controller))
        sasl_of_tierlog, client_of_tierlog = free_ports(2)
        own = {
            "listeners": f"SASL://127.0.0.1:{sasl_of_tierlog},PLAINTEXT://127.0.0.1:{client_of_tierlog}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
        }
        self._broker = TierlogBroker(directory / "tierlog", settings | own)
        self._broker.start()
        self.kafka = Side(f"127.0.0.1:{sasl}", self._kafka.bootstrap)
        self.tierlog = Side(f"127.0.0.1:{sasl_of_tierlog}", f"127.0.0.1:{client_of_tierlog}")

    def close(self) -> None:
        self._broker.stop()
        self._kafka.stop()


@pytest.fixture(scope="module")
def pair(java_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = SETTINGS | {"delegation.token.secret.key": KEY}
    made = Pair(java_classpath, tmp_path_factory.mktemp("tokens"), settings)
    yield made
    made.close()


@pytest.fixture
def pair_without_key(java_classpath: str, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(java_classpath, tmp_path, SETTINGS)
    yield made
    made.close()


def shown(answer: Any) -> Any:
    """An answer without what differs from token to token: ids by their length, times by how far they are from
    the first one, in minutes."""
    if hasattr(answer, "tokens"):
        tokens = [token_shown(token) for token in answer.tokens]
        return ErrorCode(answer.error_code).name, sorted(tokens, key=repr)
    if hasattr(answer, "token_id"):
        return ErrorCode(answer.error_code).name, token_shown(answer)
    known = answer.expiry_timestamp_ms
    return ErrorCode(answer.error_code).name, known if known <= 0 else "a time"


def token_shown(token: Any) -> Any:
    values = {name: getattr(token, name) for name in token.__dataclass_fields__}
    values.pop("throttle_time_ms", None)
    values["token_id"] = len(values["token_id"])
    values["hmac"] = len(bytes(values["hmac"]))
    times = {name: value for name, value in values.items() if "timestamp" in name}
    first = next(value for name, value in times.items() if "issue" in name)
    for name, value in times.items():
        values[name] = value if value < 0 else (value - first) // 60_000
    if "renewers" in values:
        values["renewers"] = sorted((one.principal_type, one.principal_name) for one in values["renewers"])
    return values


def created(side: Side) -> Answers:
    answers: Answers = {}
    with side.user("ada") as ada:
        for version in (1, 2, 3):
            answers[f"v{version}"] = shown(ada.create(version))
        for lifetime_ms in (0, -7, 90 * 60_000, 30 * 24 * HOUR_MS, 1 << 62):
            answers[f"for {lifetime_ms}"] = shown(ada.create(lifetime_ms=lifetime_ms))
        answers["renewers"] = shown(ada.create(renewers=("User:bob", "User:ada")))
        answers["a group renews"] = shown(ada.create(renewers=("User:bob", "Group:x")))
        answers["own name"] = shown(ada.create(owner="ada"))
        answers["empty owner"] = shown(ada.create(owner=""))
        answers["of bob"] = shown(ada.create(owner="bob"))
    return answers


def test_creations(pair: Pair) -> None:
    assert created(pair.tierlog) == created(pair.kafka)


def changed(side: Side) -> Answers:
    answers: Answers = {}
    with side.user("ada") as ada, side.user("bob") as bob, side.user("eve") as eve:
        made = ada.create(renewers=("User:bob",), lifetime_ms=10 * HOUR_MS)
        hmac = bytes(made.hmac)
        _wait_for(side, made)
        for name, user in {"ada": ada, "bob": bob, "eve": eve}.items():
            for version in (1, 2):
                answers[f"{name} renews v{version}"] = shown(user.renew(hmac, HOUR_MS, version))
        renewed = ada.renew(hmac, HOUR_MS)
        answers["an hour"] = (renewed.expiry_timestamp_ms - made.issue_timestamp_ms) // HOUR_MS
        renewed = ada.renew(hmac, 100 * HOUR_MS)
        answers["to the maximum"] = renewed.expiry_timestamp_ms == made.max_timestamp_ms
        for value in (b"", b"unknown", hmac[:-1], hmac + b"x"):
            answers[f"renews {len(value)} bytes"] = shown(ada.renew(value))
            answers[f"expires {len(value)} bytes"] = shown(ada.expire(value))
        answers["eve expires"] = shown(eve.expire(hmac))
        answers["eve expires later"] = shown(eve.expire(hmac, HOUR_MS))
        for version in (1, 2):
            later = bob.expire(hmac, 2 * HOUR_MS, version)
            answers[f"bob expires v{version}"] = shown(later)
            answers[f"in hours v{version}"] = (later.expiry_timestamp_ms - made.issue_timestamp_ms) // HOUR_MS
        later = bob.expire(hmac, 100 * HOUR_MS)
        answers["expires at the maximum"] = later.expiry_timestamp_ms == made.max_timestamp_ms
        answers["expires in 0 ms"] = shown(ada.expire(hmac, 0))
        until(  # a renewal in the same millisecond would make it valid again
            lambda: shown(ada.expire(hmac, 0))[0] == "DELEGATION_TOKEN_EXPIRED", "the token has expired"
        )
        answers["renews an expired one"] = shown(ada.renew(hmac))
        answers["eve renews an expired one"] = shown(eve.renew(hmac))
        answers["expires an expired one"] = shown(ada.expire(hmac, HOUR_MS))
        answers["eve expires an expired one"] = shown(eve.expire(hmac, HOUR_MS))
        answers["removes an expired one"] = shown(ada.expire(hmac))
        _wait_until_gone(side, made)
        answers["removes it again"] = shown(ada.expire(hmac))
        answers["renews a removed one"] = shown(ada.renew(hmac))
    return answers


def test_changes(pair: Pair) -> None:
    assert changed(pair.tierlog) == changed(pair.kafka)


def described(side: Side) -> Answers:
    answers: Answers = {}
    _remove_all(side)
    with (
        side.user("admin") as admin,
        side.user("ada") as ada,
        side.user("bob") as bob,
        side.user("eve") as eve,
    ):
        mine = ada.create(renewers=("User:bob",))
        bobs = bob.create()
        adas = admin.create(owner="ada")
        for made in (mine, bobs, adas):
            _wait_for(side, made)
        users = {"admin": admin, "ada": ada, "bob": bob, "eve": eve}
        for name, user in users.items():
            for version in (1, 2, 3):
                answers[f"{name} all v{version}"] = shown(user.describe(everyone=True, version=version))
            answers[f"{name} none"] = shown(user.describe())
            for owner in ("ada", "bob", "admin", "nobody"):
                answers[f"{name} of {owner}"] = shown(user.describe(owner))
            answers[f"{name} of both"] = shown(user.describe("ada", "bob"))
        side.allow("eve", AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, bobs.token_id)
        until(lambda: len(eve.describe(everyone=True).tokens) == 1, "the ACL is applied")
        answers["eve may describe one"] = shown(eve.describe(everyone=True))
        side.allow("eve", AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:ada")
        until(lambda: len(eve.describe(everyone=True).tokens) == 3, "the ACL is applied")
        answers["eve may describe those of ada"] = shown(eve.describe("ada"))
        side.allow("eve", AclOperation.CREATE_TOKENS, ResourceType.USER, "User:ada")
        until(lambda: not eve.create(owner="ada").error_code, "the ACL is applied")
        answers["eve creates for ada"] = shown(eve.create(owner="ada"))
        answers["eve creates for bob"] = shown(eve.create(owner="bob"))
    return answers


def test_descriptions_and_access(pair: Pair) -> None:
    assert described(pair.tierlog) == described(pair.kafka)


def all_requests(client: TokenClient) -> list[Any]:
    found = [shown(client.create(renewers=("User:bob", "Group:x")))]
    for version in (1, 2, 3):
        found.append(shown(client.create(version, owner="bob" if version == 3 else None)))
        found.append(shown(client.describe(everyone=True, version=version)))
    for version in (1, 2):
        found.append(shown(client.renew(b"x", version=version)))
        found.append(shown(client.expire(b"x", version=version)))
    return found


def logins(side: Side) -> Answers:
    answers: Answers = {}
    with side.user("ada") as ada:
        made = ada.create(lifetime_ms=5 * HOUR_MS)
        token_id, hmac = made.token_id, bytes(made.hmac)
        _wait_for(side, made)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            with side.by_token(token_id, hmac, mechanism) as job:
                answers[f"{mechanism} session"] = job.lifetime_ms // 60_000
                answers[f"{mechanism} requests"] = all_requests(job)
        wrong = {
            "wrong HMAC": (token_id, hmac[:-1] + b"x", True),
            "unknown id": (token_id[::-1], hmac, True),
            "no extension": (token_id, hmac, False),
            "a user": ("ada", b"ada", True),
        }
        for name, (user, password, extension) in wrong.items():
            answers[name] = refusal(side, user, password, extension=extension)
        ada.expire(hmac)
        _wait_until_gone(side, made)
        answers["a removed token"] = refusal(side, token_id, hmac)
    with side.anonymous() as anonymous:
        answers["PLAINTEXT"] = all_requests(anonymous)
    return answers


def refusal(side: Side, token_id: str, hmac: bytes, *, extension: bool = True) -> str:
    with pytest.raises(LoginFailed) as refused:
        side.by_token(token_id, hmac, extension=extension)
    return str(refused.value)


def test_logins(pair: Pair) -> None:
    assert logins(pair.tierlog) == logins(pair.kafka)


def stricter(side: Side) -> Answers:
    with side.user("ada") as ada, side.user("admin") as admin:
        made = ada.create()
        _wait_for(side, made)
        job = side.by_token(made.token_id, made.hmac)
        answers = {"a super user expires": shown(admin.expire(bytes(made.hmac)))[0]}
        ada.expire(bytes(made.hmac))
        _wait_until_gone(side, made)
        try:
            all_requests(job)
            answers["a session by a removed token"] = "continues"
        except OSError:
            answers["a session by a removed token"] = "ends"
        job.wire.close()
    return answers


def test_tokens_end_sooner_than_in_kafka(pair: Pair) -> None:
    assert stricter(pair.kafka) == {
        "a super user expires": "DELEGATION_TOKEN_OWNER_MISMATCH",
        "a session by a removed token": "continues",
    }
    assert stricter(pair.tierlog) == {
        "a super user expires": "NONE",
        "a session by a removed token": "ends",
    }


def disabled(side: Side) -> Answers:
    with side.user("ada") as ada, side.user("admin") as admin, side.anonymous() as anonymous:
        return {
            "ada": all_requests(ada),
            "admin": all_requests(admin),
            "PLAINTEXT": all_requests(anonymous),
            "login": refusal(side, "AAAAAAAAAAAAAAAAAAAAAA", b"x"),
        }


def test_without_a_key(pair_without_key: Pair) -> None:
    assert disabled(pair_without_key.tierlog) == disabled(pair_without_key.kafka)


def _known(side: Side) -> set[str]:
    with side.user("admin") as admin:
        return {token.token_id for token in admin.describe(everyone=True).tokens}


def _wait_for(side: Side, made: Any) -> None:
    """Kafka's broker learns of a change of the controller later."""
    until(lambda: made.token_id in _known(side), "the broker knows the token")


def _wait_until_gone(side: Side, made: Any) -> None:
    until(lambda: made.token_id not in _known(side), "the broker knows that the token is gone")


def _remove_all(side: Side) -> None:
    with side.user("admin") as admin:
        for token in admin.describe(everyone=True).tokens:
            with side.user(token.token_requester_principal_name) as requester:
                assert not requester.expire(bytes(token.hmac)).error_code
    until(lambda: not _known(side), "all tokens are gone")
