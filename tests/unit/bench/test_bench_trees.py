"""The table of `make bench-trees`: ratios of two trees, the worst of them, and what failed."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from cases import CASES
from report import Report
from trees import AFTER, BEFORE, document, table

PRODUCE, PACED, IDLE = "produce 16 KiB", "produce 16 KiB at 52 MB/s", "memory after the load"


def measured() -> Report:
    report = Report({"cores": 2}, rounds=2, seconds=1)
    for label, cpu_s, mb_s, ms in ((BEFORE, 2.0, 100.0, 4.0), (AFTER, 1.0, 90.0, 2.0)):
        summary = {"broker_cpu_s_per_gb": [cpu_s] * 3, "mb_s": [mb_s] * 3}
        report.add(PRODUCE, label, CASES[PRODUCE].figures, summary, {})
        latencies = {f"p{n}_ms": [ms] * 3 for n in (50, 99, 999)}
        report.add(PACED, label, CASES[PACED].figures, latencies, {})
    report.at(IDLE, AFTER).failures.append("not done within 120 s")
    return report


def test_table_has_a_ratio_for_each_figure_the_worst_and_the_failures() -> None:
    lines = table(measured()).splitlines()
    assert "| produce 16 KiB: MB per CPU second | 500 | 1,000 | 2.00 |" in lines
    assert "| produce 16 KiB: MB/s | 100 | 90 | 0.90 |" in lines
    assert "| produce 16 KiB at 52 MB/s: p99 ms | 4 | 2 | 2.00 |" in lines, "less is better"
    assert "| memory after the load: resident MiB | not measured | failed |  |" in lines
    assert lines[-2:] == [
        "worst: 0.90, produce 16 KiB: MB/s",
        "failed: memory after the load, after, 1 of 2 rounds: not done within 120 s",
    ]


def test_json_has_the_values_of_each_round() -> None:
    found = json.loads(json.dumps(document(measured())))
    [rate] = [each for each in found["figures"] if each["figure"] == "MB/s"]
    assert (rate["before"], rate["after"], rate["ratio"], rate["better"]) == ([100.0], [90.0], 0.9, "more")
    assert found["worst"] == rate
    assert found["failures"] == [{"case": IDLE, "tree": AFTER, "reasons": ["not done within 120 s"]}]


def test_nothing_measured_has_no_worst_ratio() -> None:
    report = Report({}, rounds=1, seconds=1)
    report.at(IDLE, BEFORE).failures.append("the broker ended")
    assert "worst" not in table(report)
    assert document(report)["worst"] is None
