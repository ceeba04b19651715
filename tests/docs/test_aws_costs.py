"""The cost page is that of its price table, and other prices can be given."""

from pathlib import Path

import aws_costs
from docs_pages import ROOT


def test_page_is_made_from_the_table() -> None:
    page = (ROOT / "docs/explanation/aws-costs.md").read_text(encoding="utf-8")
    assert page == aws_costs.page(aws_costs.Prices(aws_costs.PRICES))


def test_prices_can_be_replaced(tmp_path: Path) -> None:
    other = tmp_path / "prices.csv"
    other.write_text(
        aws_costs.PRICES.read_text(encoding="utf-8").replace(
            "S3 Standard,GB-month,0.023", "S3 Standard,GB-month,0.046"
        )
    )
    load = aws_costs.Load(50, 365)
    before = aws_costs.tierlog(aws_costs.Prices(aws_costs.PRICES), load)["history"]
    after = aws_costs.tierlog(aws_costs.Prices(other), load)["history"]
    assert round(after - before) == round(load.retained_gb * 0.023)


def test_each_zone_has_a_host_and_disks_hold_the_local_part() -> None:
    prices = aws_costs.Prices(aws_costs.PRICES)
    assert prices.hosts("tierlog broker host i4g.xlarge", aws_costs.Load(1, 1)) == 3
    few, many = (aws_costs.tierlog(prices, aws_costs.Load(rate, 365))["hosts"] for rate in (5, 200))
    assert many > 3 * few
