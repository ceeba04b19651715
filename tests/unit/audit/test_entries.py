"""Lines of the audit log: nothing in a name forges, splits or hides an entry."""

import json
from typing import Any

import pytest

from tierlog.broker.audit.entries import (
    ACTION,
    CUT,
    RESOURCES_MAX,
    TEXT_CHARACTERS_MAX,
    VALUES_MAX,
    in_parts,
    line_of,
)
from tierlog.broker.audit.log import QUEUE_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    [
        'x\n{"event":"action","principal":"User:eve"}',
        "\r\n",
        "\u2028\u2029\x85\x0b\x0c",
        "\x1b[2K\x00",
        "\u202eadmin",
        "пользователь \U0001f600",
        '"},{"',
        "\ud800",
    ],
    ids=ascii,
)
def test_a_name_cannot_end_a_line_or_leave_its_field(name: str) -> None:
    entry = {"event": ACTION, "principal": f"User:{name}", "resources": [{"type": "TOPIC", "name": name}]}
    line = line_of(entry, 0, 1)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    assert len(line.decode().splitlines()) == 1
    found = json.loads(line)
    assert found["principal"] == f"User:{name}"
    assert found["resources"] == [{"type": "TOPIC", "name": name}]
    assert (found["time"], found["node"]) == ("1970-01-01T00:00:00.000Z", 1)


def test_long_names_are_cut_visibly() -> None:
    found = json.loads(line_of({"event": ACTION, "resources": [{"name": "x" * 32_000}]}, 0, 1))
    assert found["resources"][0]["name"] == "x" * TEXT_CHARACTERS_MAX + CUT


def test_requests_with_many_resources_have_several_entries() -> None:
    resources = [{"name": str(number)} for number in range(RESOURCES_MAX + 1)]
    parts = list(in_parts({"event": ACTION}, resources))
    assert [len(part["resources"]) for part in parts] == [RESOURCES_MAX, 1]
    assert list(in_parts({"event": ACTION}, [])) == []


def test_long_lists_make_more_entries_and_leave_nothing_out() -> None:
    """A line that the queue cannot hold would be lost, with all else that it has."""
    names = [str(number) + "\u4e00" * 1_000 for number in range(1_000)]
    quotas = dict.fromkeys(names[: VALUES_MAX + 1])
    resources: list[dict[str, Any]] = [
        {"name": "junk", "settings": names},
        {"name": "quota", "quotas": quotas},
        {"name": "real"},
    ]
    parts = list(in_parts({"event": ACTION}, resources))
    assert max(len(line_of(part, 0, 1)) for part in parts) < QUEUE_BYTES_MAX / 4
    found = [one for part in parts for one in part["resources"]]
    assert [name for one in found for name in one.get("settings", ())] == names
    assert [name for one in found for name in one.get("quotas", ())] == list(quotas)
    assert found[-1] == {"name": "real"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have_are_texts(value: float) -> None:
    line = line_of({"event": ACTION, "resources": [{"quotas": {"producer_byte_rate": value}}]}, 0, 1)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(line, parse_constant=refuse)
    assert found["resources"][0]["quotas"] == {"producer_byte_rate": str(value)}
