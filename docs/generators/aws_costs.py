"""Generates docs/explanation/aws-costs.md: the cost of a cluster on AWS, beside others.

`python docs/generators/aws_costs.py [PRICES.csv] > PAGE`. The prices, the load and the cost of tierlog are
those of `tierlog plan` (cli/capacity.py, cli/aws_prices.csv). Replace the table to compute with prices of
another region or of a contract.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tierlog.cli.capacity import (
    CONSUMERS,
    DISK_FILL,
    HOURS,
    LOCAL_HOURS,
    REPLICAS,
    Load,
    Prices,
    history_cost,
    read_prices,
    tierlog_cost,
    traffic_cost,
)

LOADS = (Load(5, 7), Load(50, 7), Load(50, 90), Load(50, 365), Load(200, 365))


def kafka(prices: Prices, load: Load) -> dict[str, float]:
    return {**_kafka_hosts(prices, load), "disks": _ebs(prices, load.retained_gb), "history": 0.0}


def kafka_tiered(prices: Prices, load: Load) -> dict[str, float]:
    return {
        **_kafka_hosts(prices, load),
        "disks": _ebs(prices, load.local_gb),
        "history": history_cost(prices, load),
    }


def msk(prices: Prices, load: Load) -> dict[str, float]:
    disks = load.retained_gb * REPLICAS / DISK_FILL * prices.usd("MSK broker storage")
    return {**_msk_hosts(prices, load), "disks": disks, "history": 0.0}


def msk_tiered(prices: Prices, load: Load) -> dict[str, float]:
    disks = load.local_gb * REPLICAS / DISK_FILL * prices.usd("MSK broker storage")
    history = load.retained_gb * prices.usd("MSK tiered storage")
    return {**_msk_hosts(prices, load), "disks": disks, "history": history}


SYSTEMS = {
    "tierlog": tierlog_cost,
    "Kafka on EBS": kafka,
    "Kafka on EBS, tiered": kafka_tiered,
    "MSK": msk,
    "MSK, tiered": msk_tiered,
}


def _kafka_hosts(prices: Prices, load: Load) -> dict[str, float]:
    host = "Kafka broker host m7g.xlarge"
    hosts = prices.hosts(host, load) * prices.usd(host) + 3 * prices.usd("Kafka controller host t4g.small")
    return {"hosts": hosts * HOURS, "traffic": traffic_cost(prices, load, replication=True)}


def _msk_hosts(prices: Prices, load: Load) -> dict[str, float]:
    """MSK charges neither for replication nor for controllers."""
    broker = "MSK broker kafka.m7g.xlarge"
    hosts = prices.hosts(broker, load) * prices.usd(broker)
    return {"hosts": hosts * HOURS, "traffic": traffic_cost(prices, load, replication=False)}


def _ebs(prices: Prices, gb: float) -> float:
    return gb * REPLICAS / DISK_FILL * prices.usd("EBS gp3")


def page(prices: Prices) -> str:
    return _PAGE.format(
        costs="\n".join(_costs(prices)),
        prices="\n".join(_prices(prices)),
        local=f"{LOCAL_HOURS:g}",
        consumers=CONSUMERS,
    )


def _costs(prices: Prices) -> Iterator[str]:
    for load in LOADS:
        yield f"### {load.mb_per_s:g} MB/s, kept for {load.days} days ({load.retained_gb / 1000:,.1f} TB)\n"
        yield "| | hosts | disks | history | traffic between zones | USD a month |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: |"
        for name, cost in SYSTEMS.items():
            parts = cost(prices, load)
            each = [parts[kind] for kind in ("hosts", "disks", "history", "traffic")]
            yield f"| {name} | {' | '.join(f'{usd:,.0f}' for usd in [*each, sum(each)])} |"
        yield ""


def _prices(prices: Prices) -> Iterator[str]:
    for row in prices.rows:
        checked = row["checked"] if row["checked"] != "no" else "to be checked"
        figure = row["usd"] or row["capacity"]
        yield f"| {row['item']} | {row['unit']} | {figure} | {row['as_of']} | {checked} |"


_PAGE = """\
# The cost of a cluster on AWS

Made by `docs/generators/aws_costs.py` from `cli/aws_prices.csv`. Replace the prices by those of your region
or contract and run it again: `python docs/generators/aws_costs.py prices.csv`. For a load of your own:
[`tierlog plan`](../howto/capacity.md).

**No figure here comes from a bill.** The prices are list prices on demand in us-east-1, recalled from 2025
and written down on 2026-11-29 without access to the price lists. Check each against the lists of AWS before
you decide by it. The rate of one host is an assumption, marked as such.

## Assumptions

- Rates are after compression. Three replicas in three zones, `acks=all`, {consumers} consumer groups that
  read near the end of the log.
- Producers connect to leaders in any zone. Consumers set `client.rack`, and read in their own zone without
  traffic between zones.
- Disks are planned to be 70 % full. With tiers, {local} hours are local, and the rest is in the object
  store once.
- tierlog: hosts of three brokers. [Three replicas cost 8 to 23 CPU seconds per GB](../benchmarks.md), in
  batches of 64 and 16 KiB; a host with three brokers is planned for 45 MB/s, between the two. TLS costs
  more ([security](security.md)).
- Kafka's and MSK's brokers are planned for the rate in the table, which is not measured here either. Kafka
  has fewer hosts than tierlog at the same rate: it uses less CPU per GB. Its tiers need a plugin, as AWS
  sells none for it outside of MSK.
- MSK does not charge for replication between zones, which is a large part of the costs of the others. Its
  express brokers are left out.
- Left out: people, support, data read back from the object store, discounts, load balancers, CloudWatch,
  KMS.

## A month

{costs}
Compare the columns rather than the sums:

- Months of history on three copies of disks cost many times the rest, with Kafka and MSK alike. With tiers,
  all systems keep it once.
- tierlog costs about as much as Kafka with tiers. Its hosts cost more, because NVMe comes with larger
  instances: the more hours are local, the larger the difference. NVMe buys latency and throughput of the
  disks, not a lower bill.
- Traffic between zones is most of the rest for both. MSK does not charge for replication, so that MSK with
  tiers costs least at 50 MB/s and a week, and more than the others with tiers when months are kept.

## Prices

| item | unit | USD, or capacity | as of | checked |
| --- | --- | ---: | --- | --- |
{prices}
"""


def main(*arguments: str) -> None:
    sys.stdout.write(page(read_prices(Path(arguments[0]) if arguments else None)))


if __name__ == "__main__":
    main(*sys.argv[1:])
