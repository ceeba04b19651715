"""Delegation tokens of a broker: HMACs, look-ups by them, verifiers of logins, and what is shown of them."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from typing import Any

import pytest
from immutables import Map

from tierlog.broker.security import delegation_tokens
from tierlog.broker.security.delegation_tokens import DelegationTokens
from tierlog.metadata.delegation_tokens import DelegationToken
from tierlog.metadata.scram import MECHANISMS
from tierlog.protocol.sasl.scram import keys_of, salted_password

KEY = b"canary-of-sixteen-bytes"


class Broker:
    def __init__(self, key: bytes = KEY, *others: bytes) -> None:
        self.known: Map[str, DelegationToken] = Map()
        self.now_ms = 1_000
        self.tokens = DelegationTokens(key, lambda: self.known, lambda: self.now_ms, secrets.randbits, others)

    def add(self, token_id: str = "", expires_ms: int = 5_000) -> str:
        token_id = token_id or self.tokens.new_id()
        token = DelegationToken(
            token_id=token_id,
            owner="User:ada",
            requester="User:ada",
            renewers=(),
            issued_ms=0,
            expires_ms=expires_ms,
            max_ms=9_000,
        )
        self.known = self.known.set(token_id, token)
        return token_id


def test_hmac_is_kafkas() -> None:
    expected = hmac.new(KEY, b"AAAAAAAAAAAAAAAAAAAAAA", hashlib.sha512).digest()
    assert Broker().tokens.hmac_of("AAAAAAAAAAAAAAAAAAAAAA") == expected


def test_ids_are_those_of_kafkas_uuids_and_no_options() -> None:
    drawn = iter([0xF8 << 120, (1 << 128) - 1, 255])
    tokens = DelegationTokens(KEY, Map, lambda: 0, lambda bits: next(drawn))
    assert tokens.new_id() == "_____________________w"  # the first would begin with -
    assert tokens.new_id() == "AAAAAAAAAAAAAAAAAAAA_w"
    many = {Broker().tokens.new_id() for _ in range(1_000)}
    assert len(many) == 1_000
    assert {len(one) for one in many} == {22}


async def test_token_is_found_by_its_hmac_of_each_accepted_key() -> None:
    """As while the key of a cluster changes: every broker takes the HMACs of every other one."""
    new = b"canary-of-the-new-key"
    before, between, after = Broker(KEY, new), Broker(new, KEY), Broker(new)
    token_id = before.add()
    between.known = after.known = before.known
    for one in (before, between):
        for other in (before, between, after):
            value = other.tokens.hmac_of(token_id)
            assert await one.tokens.find(value) == before.known[token_id]
    assert await after.tokens.find(before.tokens.hmac_of(token_id)) is None
    assert "canary" not in repr(between.tokens)
    between.known = Map()
    assert await between.tokens.find(before.tokens.hmac_of(token_id)) is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_accepted_keys_share_a_salt_and_unknown_tokens_have_as_many_verifiers(mechanism: Any) -> None:
    broker = Broker(KEY, b"canary-of-another-key")
    token_id = broker.add()
    known, unknown = (broker.tokens.verifiers(one, mechanism) for one in (token_id, "unknown"))
    assert len({one.salt for one in known}) == 1 and len({one.stored_key for one in known}) == 2
    assert len(unknown) == 2


async def test_token_is_found_by_its_hmac_until_it_is_removed() -> None:
    broker = Broker()
    ids = [broker.add() for _ in range(3)]
    for token_id in ids:
        value = broker.tokens.hmac_of(token_id)
        assert await broker.tokens.find(value) == broker.known[token_id]
        for other in (value[:-1], value + b"x", b"", bytes(64)):
            assert await broker.tokens.find(other) is None
    broker.known = broker.known.delete(ids[0])
    assert await broker.tokens.find(broker.tokens.hmac_of(ids[0])) is None
    assert await broker.tokens.find(broker.tokens.hmac_of(ids[1])) == broker.known[ids[1]]


async def test_many_tokens_are_found_while_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "INDEXED_PER_TURN", 2)
    broker = Broker()
    ids = [broker.add() for _ in range(9)]
    values = {token_id: broker.tokens.hmac_of(token_id) for token_id in ids}
    looks = [asyncio.ensure_future(broker.tokens.find(values[token_id])) for token_id in ids]
    await asyncio.sleep(0)
    removed, added = ids[0], broker.add()
    broker.known = broker.known.delete(removed)
    found = [None if one is None else one.token_id for one in await asyncio.gather(*looks)]
    assert found == [None, *ids[1:]]
    last = await broker.tokens.find(broker.tokens.hmac_of(added))
    assert last == broker.known[added]


def test_verifier_checks_the_hmac_in_base64() -> None:
    broker = Broker()
    token_id = broker.add()
    password = base64.b64encode(broker.tokens.hmac_of(token_id)).decode()
    for mechanism in MECHANISMS:
        [verifier] = verifiers = broker.tokens.verifiers(token_id, mechanism)
        salted = salted_password(mechanism.hash_name, password, verifier.salt, verifier.iterations)
        keys = keys_of(mechanism.hash_name, salted)
        assert (keys.stored_key, keys.server_key) == (verifier.stored_key, verifier.server_key)
        assert broker.tokens.verifiers(token_id, mechanism) is verifiers


def test_unknown_and_expired_tokens_look_like_valid_ones() -> None:
    broker = Broker()
    token_id = broker.add()
    for mechanism in MECHANISMS:
        [known] = broker.tokens.verifiers(token_id, mechanism)
        [unknown] = Broker().tokens.verifiers(token_id, mechanism)
        broker.now_ms = 5_001
        [expired] = broker.tokens.verifiers(token_id, mechanism)
        broker.now_ms = 5_000
        assert unknown.salt == expired.salt == known.salt
        assert unknown.iterations == expired.iterations == known.iterations
        assert known.stored_key not in (unknown.stored_key, expired.stored_key)
        assert len(known.stored_key) == len(unknown.stored_key)


def test_kept_verifiers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "VERIFIERS_MAX", 2)
    broker = Broker()
    for token_id in [broker.add() for _ in range(4)]:
        broker.tokens.verifiers(token_id, MECHANISMS[0])
    assert len(broker.tokens._verifiers) == 2


async def test_another_key_means_other_hmacs_and_no_key_no_tokens() -> None:
    other = Broker(b"another of sixteen bytes")
    token_id = other.add()
    assert await other.tokens.find(Broker().tokens.hmac_of(token_id)) is None
    assert other.tokens.enabled
    assert not Broker(b"").tokens.enabled


async def test_text_of_the_object_has_no_secrets() -> None:
    broker = Broker()
    token_id = broker.add()
    await broker.tokens.find(broker.tokens.hmac_of(token_id))
    [verifier] = broker.tokens.verifiers(token_id, MECHANISMS[0])
    shown = f"{broker.tokens!r} {verifier!r} {broker.known!r}"
    assert "canary" not in shown
    assert "_ids" not in shown
    assert repr(verifier.stored_key) not in shown
