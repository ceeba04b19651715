"""The cost page is that of its price table, and other prices can be given."""

from pathlib import Path

import aws_costs
from docs_pages import ROOT

from tierlog.cli.capacity import Load, read_prices, tierlog_cost


def test_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs/explanation/aws-costs.md").read_text(encoding="utf-8")
    assert page == aws_costs.page(read_prices())


def test_prices_can_be_replaced(tmp_path: Path) -> None:
    other = tmp_path / "prices.csv"
    other.write_text(
        (ROOT / "cli/aws_prices.csv")
        .read_text(encoding="utf-8")
        .replace("S3 Standard,GB-month,0.023", "S3 Standard,GB-month,0.046")
    )
    load = Load(50, 365)
    before = tierlog_cost(read_prices(), load)["history"]
    after = tierlog_cost(read_prices(other), load)["history"]
    assert round(after - before) == round(load.retained_gb * 0.023)


def test_each_zone_has_a_host_and_disks_hold_the_local_part() -> None:
    prices = read_prices()
    assert prices.hosts("tierlog broker host i4g.xlarge", Load(1, 1)) == 3
    few, many = (tierlog_cost(prices, Load(rate, 365))["hosts"] for rate in (5, 200))
    assert many > 3 * few
