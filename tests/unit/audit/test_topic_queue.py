"""Queue of the audit topic: bounded, in order, and without entries about its own entries."""

from typing import Any

import pytest

from tierlog.broker.audit import topic_queue
from tierlog.broker.audit.topic_queue import QUEUE_FULL, STOPPED, TOO_LARGE, TopicQueue

LOGIN: dict[str, Any] = {"event": "denied_login"}


def queue_of(*lines: bytes) -> TopicQueue:
    queue = TopicQueue("audit")
    for line in lines:
        queue.add(LOGIN, line)
    return queue


def test_lines_leave_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_queue, "BATCH_BYTES", 4)
    queue = queue_of(b"1\n", b"2\n", b"3\n")
    assert queue.batch() == [b"1\n", b"2\n"]
    assert queue.batch() == [b"1\n", b"2\n"]  # they stay until they are written
    queue.on_written(queue.batch())
    assert queue.batch() == [b"3\n"] and queue.waiting_bytes == 2
    queue.on_written(queue.batch())
    assert queue.batch() == [] and queue.waiting_bytes == 0 and queue.written == 3
    assert queue.is_empty.is_set() and not queue.has_lines.is_set()


def test_lines_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_queue, "QUEUE_BYTES_MAX", 4)
    queue = queue_of(b"1\n", b"2\n", b"3\n")
    assert queue.batch() == [b"1\n", b"2\n"] and queue.dropped == {QUEUE_FULL: 1}


def test_smaller_batches_are_tried_until_one_line_is_too_large() -> None:
    queue = queue_of(b"1\n", b"2\n", b"3\n", b"4\n")
    sizes = []
    while lines := queue.batch():
        sizes.append(len(lines))
        if b"2\n" in lines:
            queue.on_too_large(lines)
        else:
            queue.on_written(lines)
    assert sizes == [4, 2, 1, 1, 1, 1]
    assert queue.written == 3 and queue.dropped == {TOO_LARGE: 1}


def test_batches_grow_again_when_the_topic_takes_them() -> None:
    queue = queue_of(*[b"x" * 1023 + b"\n"] * 8000)
    whole = len(queue.batch())
    while len(lines := queue.batch()) > 16:
        queue.on_too_large(lines)
    for _ in range(50):
        queue.on_written(queue.batch())
    assert whole // 2 < len(queue.batch()) <= whole


def test_refused_write_to_the_topic_itself_is_left_out() -> None:
    queue = queue_of()
    denied = {"event": "denied_access", "api": "Produce", "resource_name": "audit"}
    queue.add(denied, b"loop\n")
    queue.add({**denied, "resource_name": "other"}, b"1\n")
    queue.add({**denied, "api": "Fetch"}, b"2\n")
    assert queue.batch() == [b"1\n", b"2\n"] and not queue.dropped


def test_lines_that_a_stop_leaves_are_counted() -> None:
    queue = queue_of(b"1\n", b"2\n")
    queue.close()
    queue.add(LOGIN, b"3\n")
    assert queue.dropped == {STOPPED: 3} and queue.batch() == [] and queue.waiting_bytes == 0
