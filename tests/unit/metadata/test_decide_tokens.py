"""Delegation tokens: what is stored, changed by its owner, refused, and removed by the controller."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import tokens
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.protocol.errors import ErrorCode

World = Any
DAY_MS = 86_400_000
TOKEN = DelegationToken(
    token_id="t1",
    owner="User:ada",
    requester="User:admin",
    renewers=("User:bob",),
    issued_ms=1_000,
    expires_ms=1_000 + DAY_MS,
    max_ms=1_000 + 7 * DAY_MS,
)


def create(world: World, token: DelegationToken = TOKEN, **changes: Any) -> ErrorCode:
    error: ErrorCode = world.do(c.CreateToken(token=replace(token, **changes))).error
    return error


def renew(world: World, by: str = "User:ada", now: int = 2_000, to: int = 5_000) -> Any:
    """The error, or when the token expires."""
    return alter(world, by, now, to, renews=True)


def expire(world: World, by: str = "User:ada", now: int = 2_000, to: int | None = None) -> Any:
    """The error, or when the token expires; None: it is gone."""
    return alter(world, by, now, to, renews=False)


def alter(world: World, by: str, now: int, to: int | None, *, renews: bool) -> Any:
    command = c.AlterToken(token_id="t1", principal=by, now_ms=now, expires_ms=to, renews=renews)
    error = world.do(command).error
    token = world.image.tokens.get("t1")
    return error or (token.expires_ms if token is not None else None)


@pytest.fixture
def secured(world: World) -> World:
    world.image = msgspec.structs.replace(world.image, format_version=3)
    return world


def test_token_is_created_renewed_and_removed(secured: World) -> None:
    assert create(secured) == ErrorCode.NONE
    assert secured.image.tokens["t1"] == TOKEN
    assert renew(secured, to=9_000) == 9_000
    assert secured.image.tokens["t1"] == replace(TOKEN, expires_ms=9_000)
    assert renew(secured, to=TOKEN.max_ms + 1) == TOKEN.max_ms
    assert expire(secured, to=TOKEN.max_ms + 1) == TOKEN.max_ms
    assert expire(secured, to=3_000) == 3_000
    assert expire(secured, now=2_500) is None
    assert not secured.image.tokens


def test_repeated_creation_changes_nothing_and_another_token_needs_another_id(secured: World) -> None:
    create(secured)
    before = secured.image.tokens
    assert create(secured) == ErrorCode.NONE
    assert create(secured, owner="User:eve") == ErrorCode.DUPLICATE_RESOURCE
    assert secured.image.tokens == before


def test_owner_requester_and_renewers_may_change_it(secured: World) -> None:
    create(secured)
    for number, principal in enumerate(("User:ada", "User:admin", "User:bob")):
        assert renew(secured, principal, to=3_000 + number) == 3_000 + number
        assert expire(secured, principal, to=4_000 + number) == 4_000 + number
    for stranger in ("User:eve", "", "User:", "User:ad", "bob"):
        assert renew(secured, stranger) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert expire(secured, stranger) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert expire(secured, stranger, to=3_000) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_expired_token_can_only_be_removed(secured: World) -> None:
    create(secured, expires_ms=1_500)
    assert renew(secured, now=1_500) == 5_000  # its last millisecond
    assert renew(secured, now=5_001) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(secured, now=5_001, to=9_000) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(secured, now=5_001) is None
    assert renew(secured) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert expire(secured) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_controller_removes_expired_tokens_some_at_once(
    secured: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "REMOVED_PER_COMMAND", 2)
    for number in range(5):
        create(secured, token_id=f"t{number}", expires_ms=2_000 + number)
    left = []
    for _ in range(3):
        secured.do(c.RemoveExpiredTokens(now_ms=2_004))
        left.append(sorted(secured.image.tokens))
    assert left == [["t2", "t3", "t4"], ["t4"], ["t4"]]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"owner": "Group:ada"}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"owner": "ada"}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"renewers": ("User:bob", "Group:x")}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        ({"renewers": tuple(f"User:{n}" for n in range(101))}, ErrorCode.POLICY_VIOLATION),
        ({"renewers": tuple(f"User:{n:0500}" for n in range(9))}, ErrorCode.POLICY_VIOLATION),
        ({"owner": "User:" + "x" * 1_020}, ErrorCode.POLICY_VIOLATION),
        ({"token_id": "x" * 65}, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_invalid_token_is_refused(secured: World, changes: dict[str, Any], error: ErrorCode) -> None:
    assert create(secured, **changes) == error
    assert not secured.image.tokens


def test_number_of_tokens_is_bounded_for_each_requester(
    secured: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKENS_OF_REQUESTER_MAX", 2)
    monkeypatch.setattr(tokens, "TOKENS_MAX", 3)
    assert create(secured, token_id="a") == create(secured, token_id="b") == ErrorCode.NONE
    assert create(secured, token_id="c") == ErrorCode.POLICY_VIOLATION
    assert create(secured, token_id="c", requester="User:eve") == ErrorCode.NONE
    assert create(secured, token_id="d", requester="User:bob") == ErrorCode.POLICY_VIOLATION


def test_tokens_need_format_3(world: World) -> None:
    reply = world.do(c.CreateToken(token=TOKEN))
    assert reply.error == ErrorCode.UNSUPPORTED_VERSION
    assert "raise tierlog.format to 3 first" in reply.message
