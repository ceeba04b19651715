"""`make bench-cluster`: its section of the page, and how failures are reported."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from cluster import Standing, measure_kill, publish
from cluster_cases import FIGURES, GAP, KILL_CASES, LED, LOAD_CASES
from cluster_page import bars_of, section
from failover import Sent, check
from page import BY_HAND, by_hand, plot, split
from report import KAFKA, TIERLOG, Report

MACHINE = {
    "cores": 2, "cpu": "some", "kernel": "6.1", "python": "3.11.7", "date": "1 May 2026", "commit": "abc",
    "made": "compiled",
}  # fmt: skip
PRODUCE, KILL = "produce 16 KiB, 3 partitions", "leader killed, default settings"


def report(kafka_cpu: float = 20.0, tierlog_cpu: float = 8.0, gap_s: float = 0.5) -> Report:
    made = Report(dict(MACHINE), rounds=1, seconds=3)
    for label, cpu in ((KAFKA, kafka_cpu), (TIERLOG, tierlog_cpu)):
        load = {"broker_cpu_s_per_gb": [cpu] * 3, "mb_s": [100.0] * 3}
        made.add(PRODUCE, label, LOAD_CASES[PRODUCE].figures, load, {})
    for label, gap in ((KAFKA, 9.5), (TIERLOG, gap_s)):
        kill = {"gap_s": [gap] * 3, "led_s": [gap] * 3}
        made.add(KILL, label, KILL_CASES[KILL].figures, kill, {})
    return made


def row(page: str, start: str) -> list[str]:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(("cpu", "ratio", "met"), [(8.0, "2.50", "yes"), (16.0, "1.25", "**no**")])
def test_ratio_is_compared_with_its_goal(cpu: float, ratio: str, met: str) -> None:
    cells = row(section(report(tierlog_cpu=cpu), kills=1), f"{PRODUCE}: CPU s per GB")
    assert cells[1:] == ["20", f"{cpu:g}", ratio, "2", met]


@pytest.mark.parametrize(("gap_s", "met"), [(3.0, "yes"), (3.1, "**no**")])
def test_bound_does_not_depend_on_kafka(gap_s: float, met: str) -> None:
    cells = row(section(report(gap_s=gap_s), kills=1), f"{KILL}: {GAP.title}")
    assert cells[4:] == ["≤ 3 s", met]


def test_every_figure_has_a_row_with_a_value_or_a_reason() -> None:
    made = report()
    made.at("librdkafka, 2,000 records/s", TIERLOG).failures.append("RuntimeError: 5 failed")
    made.at(KILL, TIERLOG).failures.append("TimeoutError: 12 of 2000 partitions are led after 60 s")
    page = section(made, kills=2)
    titles = [f"{case}: {figure.title}" for case, figures in FIGURES.items() for figure in figures]
    assert [title for title in titles if not row(page, f"{title} |")] == []
    assert row(page, "librdkafka, 2,000 records/s: p99 ms")[1:6] == [
        "not measured",
        "failed",
        "",
        "1.43",
        "**no**",
    ]
    assert row(page, f"{KILL}: {LED.title}")[5] == "**no**"
    assert f"- {KILL}, tierlog, once: TimeoutError: 12 of 2000" in page


def test_writers_of_the_page_keep_each_others_part() -> None:
    first, cluster = "# Benchmarks\n\ntext\n", section(report(), kills=1)
    assert split(first + cluster) == (first, cluster)
    assert split(first) == (first, "")


def test_interrupted_run_keeps_its_part_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# Benchmarks\n\ntext\n")
    for made in (Report(dict(MACHINE), rounds=1, seconds=3), report()):
        publish(made, 1, page)
    assert page.read_text() == "# Benchmarks\n\ntext\n" + section(report(), kills=1)
    assert (tmp_path / "img" / "benchmarks-cluster.png").stat().st_size > 0


def test_the_plot_shows_a_bound_as_the_ratio_it_takes(tmp_path: Path) -> None:
    bars = bars_of(report(gap_s=1.0))
    assert (f"{KILL}: {GAP.title}", pytest.approx(9.5 / 3), pytest.approx(9.5)) in bars
    plot(bars, tmp_path / "img" / "cluster.png")
    assert (tmp_path / "img" / "cluster.png").stat().st_size > 0


def test_acknowledged_records_must_be_in_the_log() -> None:
    sent = Sent(count=5, times=[(0.0, 0.1), (0.2, 0.3), (2.0, 2.5)], failures=["timed out"])
    assert sent.longest_gap_s() == pytest.approx(2.2)
    assert sent.longest_wait_s() == pytest.approx(0.5)
    check(sent, log_end=4)
    with pytest.raises(RuntimeError, match="3 acknowledged, the log holds 2"):
        check(sent, log_end=2)
    with pytest.raises(RuntimeError, match="the log holds 6"):
        check(sent, log_end=6)


def test_cluster_that_does_not_start_is_reported_in_its_row() -> None:
    def start():
        raise TimeoutError("not all brokers came together")

    made = report()
    measure_kill(KILL, Standing(TIERLOG, start), made)
    assert made.at(KILL, TIERLOG).failures == ["not all brokers came together"]
    assert not made.has(KILL, FIGURES[KILL], [TIERLOG], rounds=2)


def test_figures_measured_by_hand_are_kept() -> None:
    hand = f"\n{BY_HAND}\nfigures\n"
    assert split(f"single\n## Cluster\nof three\n{hand}") == ("single\n", "## Cluster\nof three\n")
    assert split(f"single\n{hand}") == ("single\n", "")
    assert by_hand(f"single\n{hand}") == hand
    assert by_hand("single\n") == ""
