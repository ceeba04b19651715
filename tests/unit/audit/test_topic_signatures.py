"""Signatures of batches for the audit topic: only a client with the quorum's secret may write."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tierlog.base.types import TopicPartition
from tierlog.broker.handlers.audit_topic import SIGNATURE, may_write, signed_batch
from tierlog.broker.handlers.context import RequestContext
from tierlog.config.node import NodeSettings
from tierlog.records.batch import assign, check_batch, seal
from tierlog.records.record import iter_records
from tierlog.records.writer import NewRecord, encode_batch

WHERE = TopicPartition("_tierlog.audit", 0)
LINES = [b'{"node":1}\n', b'{"node":2}\n']


def settings(secret: str = "s" * 32) -> NodeSettings:
    return cast(
        NodeSettings, SimpleNamespace(controller_quorum_secret=secret, node_id=7, inter_broker_listener="B")
    )


def allowed(
    batch: Any, *, listener: str = "B", where: TopicPartition = WHERE, secret: str = "s" * 32
) -> bool:
    context = SimpleNamespace(connection=SimpleNamespace(listener=listener), access=None)
    return may_write(settings(secret), cast(RequestContext, context), where, batch)


def test_signed_batch_is_valid_and_has_the_lines() -> None:
    batch = signed_batch(settings(), WHERE, LINES, 1_000)
    check_batch(batch)
    records = list(iter_records(batch, max_bytes=1_000))
    assert [one.value for one in records] == [line.rstrip() for line in LINES]
    assert [[name for name, _ in one.headers] for one in records] == [[], [SIGNATURE]]
    assert allowed(batch) and allowed(memoryview(batch))


def test_signature_stays_when_a_leader_assigns_offsets() -> None:
    batch = signed_batch(settings(), WHERE, LINES, 1_000)
    assign(batch, 0, 500, 3)
    assert allowed(batch)


@pytest.mark.parametrize("at", [21, 30, 60, 70, -40, -1])
def test_changed_batch_is_refused(at: int) -> None:
    batch = signed_batch(settings(), WHERE, LINES, 1_000)
    batch[at] ^= 1
    seal(batch, 0, len(batch))
    assert not allowed(batch)


def test_batch_of_another_place_secret_or_listener_is_refused() -> None:
    batch = signed_batch(settings(), WHERE, LINES, 1_000)
    assert not allowed(batch, where=TopicPartition(WHERE.topic, 1))
    assert not allowed(batch, where=TopicPartition("other", 0))
    assert not allowed(batch, secret="t" * 32)
    assert not allowed(batch, listener="CLIENTS")
    assert not allowed(signed_batch(settings(""), WHERE, LINES, 1_000), secret="")


@pytest.mark.parametrize("batch", [None, b"", bytes(40), bytes(53), bytes(200)])
def test_anything_else_is_refused(batch: bytes | None) -> None:
    assert not allowed(batch)
    assert not allowed(encode_batch([NewRecord(1, None, b"x")]))
