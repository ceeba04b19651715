"""The page of `make bench`: every figure has a row, measured or not."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from cases import CASES, FIGURES, PARTITIONS, PER_CPU, PROCESS_CASES
from page import bars_of, markdown, plot
from report import KAFKA, LABELS, PURE, TIERLOG, Report, load

MACHINE = {"cores": 2, "cpu": "some", "kernel": "6.1", "python": "3.11.7"}
CASE = "produce 16 KiB"  # its goal: 1.5 times Kafka's MB per CPU second
LAG = {"0.001": 90.0, "0.005": 98.0, "0.01": 99.0, "0.025": 100.0, "+Inf": 100.0}


def summary(cpu_s_per_gb: float) -> dict[str, list[float]]:
    return {"broker_cpu_s_per_gb": [cpu_s_per_gb] * 3, "mb_s": [100.0] * 3}


def report(kafka: float, tierlog: float) -> Report:
    made = Report(dict(MACHINE), rounds=1, seconds=4)
    made.add(CASE, KAFKA, CASES[CASE].figures, summary(kafka), {})
    made.add(CASE, TIERLOG, CASES[CASE].figures, summary(tierlog), LAG)
    return made


def row(page: str, start: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(("tierlog", "met"), [(2.0, "yes"), (4.0, "**no**")])
def test_a_row_shows_the_ratio_and_whether_the_goal_is_met(tierlog: float, met: str) -> None:
    page = markdown(report(kafka=4.0, tierlog=tierlog))
    cells = row(page, f"{CASE}: {PER_CPU.title}")
    assert cells[1:6] == ["250", f"{1000 / tierlog:.0f}", f"{4 / tierlog:.2f}", "1.5", met]


def test_lower_latency_is_better() -> None:
    figure = CASES["librdkafka end to end, 1,000/s"].figures[1]
    assert figure.ratio(ours=0.5, theirs=1.0) == 2.0
    assert figure.goal == pytest.approx(1 / 0.7)


def test_failed_case_has_a_row_with_its_reason() -> None:
    made = report(kafka=4.0, tierlog=2.0)
    made.at("produce 64 KiB", TIERLOG).failures.append("RuntimeError: the log ends hold 3")
    page = markdown(made)
    assert row(page, "produce 64 KiB: MB/s")[1:3] == ["not measured", "failed"]
    assert "- produce 64 KiB, compiled, 1 of 1 rounds: RuntimeError: the log ends hold 3" in page
    titles = [f"{case}: {figure.title}" for case, figures in FIGURES.items() for figure in figures]
    assert [title for title in titles if not row(page, f"{title} |")] == []


def test_page_has_the_loop_lag() -> None:
    page = markdown(report(kafka=4.0, tierlog=2.0))
    assert row(page, f"{CASE} |") == [CASE, "100", "2", "1", "0", "25 ms"]


def test_saved_report_is_continued(tmp_path: Path) -> None:
    file = tmp_path / "results" / "versus.json"
    report(kafka=4.0, tierlog=2.0).save(file)
    again = load(file)
    assert again == report(kafka=4.0, tierlog=2.0)
    assert again.whole(CASE, [KAFKA, TIERLOG]) and not again.whole(CASE, LABELS)
    again.at(CASE, PURE).failures.append("gone")
    assert not again.whole(CASE, LABELS)
    for name in PROCESS_CASES:
        again.at(name, KAFKA).failures.append("gone")
    again.forget(PARTITIONS)
    assert set(again.found) == {CASE}


def test_plot_is_drawn_from_an_incomplete_report(tmp_path: Path) -> None:
    plot(bars_of(report(kafka=4.0, tierlog=2.0)), tmp_path / "img" / "benchmarks.png")
    assert (tmp_path / "img" / "benchmarks.png").stat().st_size > 0


def test_unmeasured_goal_is_open_and_failed_case_misses_it() -> None:
    made = report(kafka=4.0, tierlog=2.0)
    made.at("produce 1 MiB", TIERLOG).failures.append("gone")
    page = markdown(made)
    met = [row(page, f"{case}: {PER_CPU.title}")[5] for case in (CASE, "produce 64 KiB", "produce 1 MiB")]
    assert met == ["yes", "?", "**no**"]
