"""Lines of the audit log: nothing in a name forges, splits or hides an entry."""

import json

import pytest

from tierlog.broker.audit.entries import (
    ACTION,
    CUT,
    RESOURCES_MAX,
    TEXT_CHARACTERS_MAX,
    in_parts,
    line_of,
)


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
