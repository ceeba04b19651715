"""`tierlog topic trim` deletes the oldest records, by offset or timestamp, once confirmed."""

import pytest
from cli_inline import call, json_output

from tierlog.testing import TierlogBroker


@pytest.fixture
def at(tierlog_session_broker: TierlogBroker) -> tuple[str, ...]:
    return ("--bootstrap", tierlog_session_broker.bootstrap)


def filled(name: str, at: tuple[str, ...]) -> str:
    """A topic of two partitions with four records each."""
    assert call("topic", "create", name, "-p", "2", *at).code == 0
    for partition in ("0", "1"):
        ended = call("produce", name, "--partition", partition, *at, stdin=b"a\nb\nc\nd\n")
        assert ended.code == 0, ended.stderr
    return name


def starts(name: str, at: tuple[str, ...]) -> list[int]:
    [topic] = json_output("topic", "describe", name, *at)
    return [row["log_start_offset"] for row in topic["partitions"]]


def test_records_before_an_offset_are_deleted_once_confirmed(at: tuple[str, ...]) -> None:
    name = filled("trimmed", at)
    [rows] = json_output("topic", "trim", name, "--offset", "3", "--dry-run", *at)
    assert [(row["before"], row["after"]) for row in rows] == [(0, 3), (0, 3)]
    refused = call("topic", "trim", name, "--offset", "3", *at)
    assert refused.code == 1 and "Delete 6 offsets of trimmed" in refused.stderr
    assert starts(name, at) == [0, 0]
    assert call("topic", "trim", name, "--offset", "3", "--partition", "1", "--yes", *at).code == 0
    assert starts(name, at) == [0, 3]
    read = call("consume", name, "--from-beginning", "--partition", "1", "--exit-at-end", *at)
    assert read.stdout == "d\n"


def test_an_offset_past_the_end_deletes_all_and_no_more(at: tuple[str, ...]) -> None:
    name = filled("trimmed-all", at)
    assert call("topic", "trim", name, "--offset", "1000", "--yes", *at).code == 0
    assert starts(name, at) == [4, 4]
    assert "nothing to delete" in call("topic", "trim", name, "--offset", "2", "--yes", *at).stderr


def test_records_before_a_time_are_deleted(at: tuple[str, ...]) -> None:
    name = filled("trimmed-by-time", at)
    assert json_output("topic", "trim", name, "--timestamp", "1000", "--dry-run", *at) == [[]]
    assert call("topic", "trim", name, "--timestamp", "2100-01-01T00:00:00Z", "--yes", *at).code == 0
    assert starts(name, at) == [4, 4]
