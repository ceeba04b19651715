"""Pure parts of `tierlog group`: plans of a reset, files of offsets, lag rows, and assignments."""

import pytest

from tierlog.base.types import TopicPartition
from tierlog.cli import group_files, group_lag, group_watch
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.group_lag import Ends
from tierlog.cli.group_offsets import Reset, To, new_offsets, parse_duration, parse_topic, plan
from tierlog.cli.groups import Committed, assigned_partitions

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = Ends(start={T0: 5, T1: 0}, end={T0: 20, T1: 8}, stable={T0: 18, T1: 8})
COMMITTED = {T0: Committed(10, metadata="note")}


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        (Reset(To.EARLIEST), {T0: 5, T1: 0}),
        (Reset(To.LATEST), {T0: 20, T1: 8}),
        (Reset(To.OFFSET, 7), {T0: 7, T1: 7}),
        (Reset(To.CURRENT), {T0: 10, T1: 8}),
        (Reset(To.DATETIME, 1000), {T0: 12, T1: 8}),
        (Reset(To.DURATION, 1000), {T0: 12, T1: 8}),
        (Reset(To.FILE, offsets={T0: 1, T1: 2}), {T0: 1, T1: 2}),
    ],
)
def test_new_offsets(reset: Reset, expected: dict[TopicPartition, int]) -> None:
    assert new_offsets(reset, [T0, T1], COMMITTED, ENDS, {T0: 12, T1: -1}) == expected


def test_shift_needs_a_committed_offset() -> None:
    assert new_offsets(Reset(To.SHIFT, -3), [T0], COMMITTED, ENDS, {}) == {T0: 7}
    with pytest.raises(CliError, match="t-1") as raised:
        new_offsets(Reset(To.SHIFT, -3), [T0, T1], COMMITTED, ENDS, {})
    assert raised.value.code == ExitCode.NOT_FOUND


def test_plan_moves_offsets_into_the_range_of_their_partition() -> None:
    below, above = plan("g", {T0: 4, T1: 9}, COMMITTED, ENDS)
    assert (below["committed_offset"], below["new_offset"], below["lag"]) == (10, 5, 15)
    assert below["note"] == "4 is below the log start"
    assert (above["committed_offset"], above["new_offset"], above["lag"]) == (None, 8, 0)
    assert above["note"] == "9 is above the log end"
    assert [row["note"] for row in plan("g", {T0: 5, T1: 8}, COMMITTED, ENDS)] == ["", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", 5_400_000),
        ("36h", 129_600_000),
        ("7d", 604_800_000),
        ("15s", 15_000),
        ("PT1H30M", 5_400_000),
        ("P1DT12H", 129_600_000),
        ("PT0.5S", 500),
    ],
)
def test_parse_duration(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1", "-1h", "1w", "P1Y", "P1H", "1.5h", "²h"])
def test_invalid_duration_is_a_usage_error(text: str) -> None:
    with pytest.raises(CliError) as raised:
        parse_duration(text)
    assert raised.value.code == ExitCode.USAGE and "P1DT12H" in raised.value.hint


def test_parse_topic() -> None:
    assert parse_topic("orders") == ("orders", None)
    assert parse_topic("orders:2,0,2") == ("orders", [0, 2])
    for bad in ("", ":1", "orders:", "orders:x", "orders:1,", "orders:-1", "orders:²"):
        with pytest.raises(CliError):
            parse_topic(bad)


OFFSETS = {"g": {T0: Committed(3, metadata="ä"), T1: Committed(4)}, "h": {T0: Committed(5)}}


def test_json_file_keeps_offsets_and_metadata() -> None:
    assert group_files.parse(group_files.json_text(OFFSETS), "f") == OFFSETS


def test_csv_file_is_that_of_kafkas_tool() -> None:
    one = {"g": OFFSETS["g"]}
    assert group_files.csv_text(one) == "t,0,3\nt,1,4\n"
    assert group_files.csv_text(OFFSETS) == "g,t,0,3\ng,t,1,4\nh,t,0,5\n"
    assert group_files.parse("t,0,3\nt,1,4\n", "f") == {None: {T0: Committed(3), T1: Committed(4)}}
    named = group_files.parse('"g","t",0,3\r\n"h","t",0,5\r\n', "f")
    assert named == {"g": {T0: Committed(3)}, "h": {T0: Committed(5)}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t",
        "t,0",
        "t,0,x",
        "t,0,-1",
        "t,2147483648,0",
        "t,0,9223372036854775808",
        "{",
        "[]",
        "{}",
        '{"groups": 5}',
        '{"groups": [{"group": "g"}]}',
        '{"groups": [{"group": "g", "offsets": []}]}',
        '{"groups": [{"group": 1, "offsets": [{"topic": "t", "partition": 0, "offset": 1}]}]}',
        '{"groups": [{"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": true}]}]}',
        '{"groups": [{"group": "g", "offsets": [{"topic": "t", "partition": "0", "offset": 1}]}]}',
    ],
)
def test_bad_file_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(CliError, match=r"offsets\.json") as raised:
        group_files.parse(text, "offsets.json")
    assert raised.value.hint
    assert "indices" not in raised.value.message  # a word of Python's


def test_rows_of_partitions_with_an_offset_or_a_member() -> None:
    owner = {"member_id": "m", "client_id": "c", "host": "h"}
    rows = group_lag.partition_rows(COMMITTED, {T1: owner}, ENDS, {T0: 1_000}, now_ms=5_000)
    assert [(row["committed_offset"], row["lag"], row["lag_ms"]) for row in rows] == [
        (10, 10, 4_000),
        (None, None, None),
    ]
    assert [row["member_id"] for row in rows] == [None, "m"]
    assert [row["last_stable_offset"] for row in rows] == [18, 8]
    assert "last_stable_offset" in group_watch.lag_columns(rows)
    assert "last_stable_offset" not in group_watch.lag_columns(rows[1:])


def test_group_that_has_read_everything_is_not_behind() -> None:
    [row] = group_lag.partition_rows({T1: Committed(8)}, {}, ENDS, {}, now_ms=5_000)
    assert (row["lag"], row["lag_ms"]) == (0, 0)
    [row] = group_lag.partition_rows({T1: Committed(8)}, {}, Ends({}, {}, {}), {}, now_ms=5_000)
    assert (row["lag"], row["lag_ms"]) == (None, None)


def test_assignment_of_a_classic_member() -> None:
    assignment = bytes.fromhex("0001 00000001 0001 74 00000002 00000001 00000000 ffffffff")
    assert assigned_partitions(assignment) == [T0, T1]
    assert assigned_partitions(b"") == assigned_partitions(b"mine") == []
