"""`tierlog plan`: hosts for each limit, sizes and cost of a load."""

import json
import math
from pathlib import Path

import pytest
from cli_inline import call

from tierlog.cli.capacity import Load, plan, read_prices, tierlog_cost

ROOT = Path(__file__).parents[3]


def planned(*words: str) -> dict[str, object]:
    ended = call("plan", *words, "--json")
    assert ended.code == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout)
    return found


def test_history_is_kept_once_and_local_records_by_each_replica() -> None:
    found = plan(Load(100, 5 * 365, local_hours=6), read_prices())
    assert found.store_bytes == pytest.approx(100e6 * 86_400 * 5 * 365)
    assert found.disk_bytes == pytest.approx(100e6 * 3600 * 6 * 3)
    assert found.disk_bytes_per_host * found.hosts == pytest.approx(found.disk_bytes)
    assert found.disk_bytes_per_host < 0.7 * 937e9


@pytest.mark.parametrize(
    ("load", "partitions", "limit"),
    [
        (Load(400, 7, local_hours=1), 0, "rate"),
        (Load(50, 7, local_hours=100), 0, "disks"),
        (Load(1, 7), 100_000, "partitions"),
    ],
)
def test_the_largest_need_decides(load: Load, partitions: int, limit: str) -> None:
    found = plan(load, read_prices(), partitions)
    assert found.limited_by == limit
    assert found.hosts % 3 == 0 and found.brokers == 3 * found.hosts
    assert found.hosts * 45 >= load.mb_per_s


def test_more_replicas_need_more_hosts_and_traffic() -> None:
    three, six = (plan(Load(400, 7, local_hours=1, replicas=count), read_prices()) for count in (3, 6))
    assert six.limited_by == three.limited_by == "rate" and six.hosts == 2 * three.hosts
    traffic = [plan(Load(50, 7, replicas=count), read_prices()).usd_per_month["traffic"] for count in (3, 9)]
    assert traffic[1] / traffic[0] == pytest.approx((2 / 3 + 6) / (2 / 3 + 2))


def test_cost_is_that_of_the_page() -> None:
    """`docs/explanation/aws-costs.md` is made from the same table."""
    page = (ROOT / "docs/explanation/aws-costs.md").read_text(encoding="utf-8")
    cost = plan(Load(50, 365), read_prices()).usd_per_month
    assert f"{sum(cost.values()):,.0f} |" in page.partition("### 50 MB/s, kept for 365 days")[2]
    assert cost == tierlog_cost(read_prices(), Load(50, 365))


def test_hosts_for_partitions_cost_too() -> None:
    few, many = (plan(Load(5, 7), read_prices(), count) for count in (0, 100_000))
    prices = read_prices()
    extra = (many.hosts - few.hosts) * prices.usd("tierlog broker host i4g.xlarge") * 730
    assert many.usd_per_month["hosts"] - few.usd_per_month["hosts"] == pytest.approx(extra)


@pytest.mark.parametrize(
    ("rate", "mb_per_s"), [("100MB/s", 100), ("1.5GB/s", 1500), ("1MiB/s", 1.048576), ("500kB/s", 0.5)]
)
def test_rates_have_units(rate: str, mb_per_s: float) -> None:
    load = planned("--rate", rate, "--retention", "7d")["load"]
    assert isinstance(load, dict) and math.isclose(load["mb_per_s"], mb_per_s)


@pytest.mark.parametrize(
    ("retention", "days"), [("12h", 0.5), ("7d", 7), ("2w", 14), ("12m", 365), ("5y", 1825)]
)
def test_retentions_have_units(retention: str, days: float) -> None:
    load = planned("--rate", "1MB/s", "--retention", retention)["load"]
    assert isinstance(load, dict) and math.isclose(load["days"], days)


def test_other_prices_are_used_and_a_bad_table_is_named(tmp_path: Path) -> None:
    table = (ROOT / "cli/aws_prices.csv").read_text(encoding="utf-8")
    other = tmp_path / "prices.csv"
    other.write_text(table.replace("S3 Standard,GB-month,0.023", "S3 Standard,GB-month,0.046"))
    words = ("--rate", "50MB/s", "--retention", "1y", "--prices", str(other))
    usual = planned(*words[:4])["usd_per_month_total"]
    assert planned(*words)["usd_per_month_total"] > usual  # type: ignore[operator]
    for changed, message in (("0.023", "0"), ("0.023", "cheap"), ("S3 Standard", "S4")):
        other.write_text(table.replace(changed, message))
        ended = call("plan", *words)
        assert ended.code == 2 and "S3 Standard" in ended.stderr


def test_the_table_shows_the_limit_and_the_notes() -> None:
    ended = call("plan", "--rate", "100MB/s", "--retention", "5y")
    assert "limited by disks" in ended.stdout and "15.8 PB" in ended.stdout
    assert "not checked" in ended.stderr
