"""Figures of a round, computed from the times of acknowledgements."""

import random
import re
from pathlib import Path

import pytest
from chaos import number_of_rounds
from havoc import figures
from havoc.doctor import HEAD, RULES, UNNAMED, Found, note
from havoc.nodes import ChaosFailed
from havoc.rounds import check_faults, chosen
from havoc.stage import APART, FAULTS, TIERED, of_shape


def steady(begin: float, end: float, each_s: float = 0.1) -> list[float]:
    return [begin + number * each_s for number in range(int((end - begin) / each_s + 0.5))]


def test_unavailability_is_the_longest_wait_of_any_partition() -> None:
    acks = {0: steady(0, 20), 1: [*steady(0, 6), *steady(9, 20)]}
    assert figures.unavailable_s(acks, 5, 20) == pytest.approx(3.1)
    assert figures.unavailable_s({0: acks[0]}, 5, 20) == pytest.approx(0.1)


def test_waits_are_limited_to_the_round() -> None:
    assert figures.unavailable_s({0: steady(0, 6)}, 5, 20) == pytest.approx(14.1)
    assert figures.unavailable_s({0: []}, 5, 20) == 15
    assert figures.unavailable_s({}, 5, 20) == 15


def test_served_again_means_all_partitions() -> None:
    acks = {0: steady(0, 20), 1: [*steady(0, 6), *steady(12, 20)]}
    assert figures.served_again_s(acks, 10, 20) == pytest.approx(2.0)
    assert figures.served_again_s({**acks, 2: steady(0, 10)}, 10, 20) is None


def test_throughput_is_regained_when_each_partition_has_its_share() -> None:
    acks = {0: steady(0, 30), 1: [*steady(0, 6), *steady(12, 30)]}
    assert figures.rate(acks, 0, 5) == pytest.approx(20, rel=0.02)
    regained = figures.regained_s(acks, 10, 30, 20)
    assert regained is not None and 4.5 <= regained <= 5.5


def test_burst_of_one_partition_does_not_hide_others() -> None:
    acks = {0: steady(0, 30, 0.01), 1: steady(0, 6)}
    assert figures.regained_s(acks, 10, 30, 20) is None


def test_throughput_below_the_share_is_not_regained() -> None:
    assert figures.regained_s({0: steady(0, 30, 0.1)}, 10, 30, 12) is None
    assert figures.regained_s({0: steady(0, 30, 0.1)}, 10, 30, 10) == figures.WINDOW_S


def test_each_fault_runs_before_any_runs_again() -> None:
    drawn = chosen(list(FAULTS), 2 * len(FAULTS), random.Random(7))
    names = [fault.name for fault in drawn]
    assert set(names[: len(FAULTS)]) == set(names[len(FAULTS) :]) == set(FAULTS)
    assert names[: len(FAULTS)] != list(FAULTS)
    assert names == [fault.name for fault in chosen(list(FAULTS), 2 * len(FAULTS), random.Random(7))]


def test_some_faults_need_a_shape() -> None:
    together, apart, tiered = (set(of_shape(shape)) for shape in ((), (APART,), (TIERED,)))
    assert apart | tiered == set(of_shape((APART, TIERED))) == set(FAULTS)
    assert apart & tiered == together
    assert {"isolate-voters", "wipe-controller", "unheard-leader"} <= apart - together
    assert {"store-kill", "store-slow"} <= tiered - together
    check_faults(["isolate-voters", "kill-leader"], (APART,))
    with pytest.raises(ChaosFailed, match="isolate-voters is only for --apart"):
        check_faults(["isolate-voters", "kill-leader"], (TIERED,))


def test_the_documentation_lists_every_fault() -> None:
    """By shape, as the table has a row for those of one shape alone."""
    text = (Path(__file__).parents[2] / "docs/howto/chaos.md").read_text()
    table = text.partition("| fault | what is done | heal |")[2].partition("\n\n")[0]
    listed: dict[str, str] = {}
    only = ""
    for row in table.splitlines():
        cell = row.split("|")[1] if row else ""
        if match := re.match(r" with `(\w+)=1` too ", cell):
            only = match[1].lower()
        listed |= dict.fromkeys(re.findall(r"`([\w-]+)`", cell) if not match else (), only)
    assert listed == {name: fault.only for name, fault in FAULTS.items()}


def test_rounds_all_runs_each_fault_once() -> None:
    assert number_of_rounds("all") is None and number_of_rounds("7") == 7
    for shape in ((), (APART,), (TIERED,)):
        names = of_shape(shape)
        assert sorted(fault.name for fault in chosen(names, len(names), random.Random(7))) == sorted(names)


def test_doctor_names_every_fault_or_a_reason_says_why_not() -> None:
    assert RULES.keys() | UNNAMED.keys() == FAULTS.keys()
    assert not RULES.keys() & UNNAMED.keys()


def test_table_of_doctor_keeps_the_longest_time_of_each_fault(tmp_path: Path) -> None:
    table = tmp_path / "doctor.md"
    for seconds in (3.0, 12.5, 4.0):
        note(table, "kill-leader", Found("node", "node 1", seconds, is_needed=True))
    note(table, "disk-full", Found("disk-full", "node 2", 2.0, is_needed=True))
    note(table, "disk-full", Found(None, "", None, is_needed=True))
    note(table, "disk-full", Found("disk-full", "node 2", 2.5, is_needed=True))
    note(table, "loss", Found(None, "", None, is_needed=False))
    rows = [
        "| `disk-full` | not named | - |",
        "| `kill-leader` | `node` | 12.5 |",
        f"| `loss` | {UNNAMED['loss']} | - |",
    ]
    assert table.read_text(encoding="utf-8") == HEAD + "".join(f"{row}\n" for row in rows)
