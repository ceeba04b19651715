"""Capacity of a cluster for a load: brokers, cores, disks, bytes in the object store, and cost.

Called by `tierlog plan`. Pure. Prices and assumptions are those of docs/explanation/aws-costs.md: both read
the table beside this module.
"""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

HOURS = 730.0
"""Hours of a month."""

ZONES = 3
REPLICAS = 3
CONSUMERS = 3
DISK_FILL = 0.7  # largest part of a disk that is planned to be full
LOCAL_HOURS = 6.0
PUTS_PER_GB = 130  # parts of 8 MiB, and the objects beside a segment
GB = 1_000_000_000
BROKERS_PER_HOST = 3
CORES_PER_HOST = 4
PARTITIONS_PER_BROKER_MAX = 4000  # an assumption, for restarts within seconds
CPU_SECONDS_PER_GB = (8.0, 23.0)
"""CPU time of three replicas for a GB of records, in batches of 64 and of 16 KiB (docs/benchmarks.md)."""

TABLE = "aws_prices.csv"
HOST, VOTER, NVME = "tierlog broker host i4g.xlarge", "tierlog voter host t4g.small", "NVMe of i4g.xlarge"


class InvalidPrices(ValueError):
    """The message names the row that is missing or wrong."""


@dataclass(frozen=True, slots=True)
class Load:
    """Records that arrive, after compression, and how long they are kept."""

    mb_per_s: float
    days: float
    local_hours: float = LOCAL_HOURS
    replicas: int = REPLICAS
    consumers: int = CONSUMERS

    @property
    def gb_per_month(self) -> float:
        return self.mb_per_s * 3600 * HOURS / 1000

    @property
    def retained_gb(self) -> float:
        return self.mb_per_s * 86_400 * self.days / 1000

    @property
    def local_gb(self) -> float:
        """GB on the disks of one replica, with history elsewhere."""
        return self.mb_per_s * 3600 * min(self.local_hours, self.days * 24) / 1000


class Prices:
    """Prices and capacities of items, from a table in CSV: item, unit, usd, capacity, as_of, checked."""

    def __init__(self, rows: Iterable[Mapping[str, str]]) -> None:
        self.rows = list(rows)

    def usd(self, item: str) -> float:
        return self._number(item, "usd")

    def capacity(self, item: str) -> float:
        return self._number(item, "capacity")

    def hosts(self, item: str, load: Load) -> int:
        """In each zone as many as in the others. The rates of the table are those with three replicas, and
        each further one costs as much as a follower of them."""
        rate = load.mb_per_s * max(1, load.replicas / REPLICAS)
        return ZONES * math.ceil(rate / self.capacity(item) / ZONES)

    def _number(self, item: str, column: str) -> float:
        for row in self.rows:
            if row.get("item") == item and row.get(column):
                try:
                    number = float(row[column])
                except ValueError:
                    raise InvalidPrices(f"{item}: {column} {row[column]!r} is not a number") from None
                if number <= 0 or not math.isfinite(number):
                    raise InvalidPrices(f"{item}: {column} must be above 0")
                return number
        raise InvalidPrices(f"no row has the item {item!r} and a value in the column {column}")


def read_prices(file: Path | None = None) -> Prices:
    """The table that comes with tierlog, or another of the same form. Raises OSError and ValueError."""
    text = (files("tierlog.cli") / TABLE if file is None else file).read_text(encoding="utf-8")
    return Prices(csv.DictReader(text.splitlines()))


def disk_hosts(prices: Prices, load: Load) -> int:
    """Hosts whose disks hold the local records, in each zone as many as in the others."""
    needed = load.local_gb * load.replicas / DISK_FILL / prices.capacity(NVME)
    return ZONES * math.ceil(needed / ZONES)


def tierlog_cost(prices: Prices, load: Load) -> dict[str, float]:
    """USD a month by kind."""
    hosts = max(prices.hosts(HOST, load), disk_hosts(prices, load))
    return {
        "hosts": (hosts * prices.usd(HOST) + 3 * prices.usd(VOTER)) * HOURS
        + prices.usd("NAT gateway") * HOURS,
        "disks": 3 * 20 * prices.usd("EBS gp3"),
        "history": history_cost(prices, load),
        "traffic": traffic_cost(prices, load, replication=True),
    }


def history_cost(prices: Prices, load: Load) -> float:
    puts = load.gb_per_month * PUTS_PER_GB / 1000 * prices.usd("S3 PUT requests")
    return load.retained_gb * prices.usd("S3 Standard") + puts


def traffic_cost(prices: Prices, load: Load, *, replication: bool) -> float:
    """Producers in any zone, replicas in other zones. Consumers read from a replica in their own."""
    followers = load.replicas - math.ceil(load.replicas / ZONES)  # in other zones than the leader
    copies = (ZONES - 1) / ZONES + (followers if replication else 0)
    return load.gb_per_month * copies * prices.usd("traffic between zones both directions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cluster for a load. Sizes in bytes; `cores_busy`: least and most cores that records keep busy."""

    hosts: int
    brokers: int
    voters: int
    cores: int
    cores_busy: tuple[float, float]
    limited_by: str
    disk_bytes: float
    disk_bytes_per_host: float
    store_bytes: float
    upload_bytes_per_s: float
    network_in_bytes_per_s_per_host: float
    network_out_bytes_per_s_per_host: float
    usd_per_month: dict[str, float]
    notes: tuple[str, ...]


def plan(load: Load, prices: Prices, partitions: int = 0) -> Plan:
    """`partitions`: with their replicas not yet counted; 0: few."""
    by_kind: dict[str, int] = {
        "rate": prices.hosts(HOST, load),
        "disks": disk_hosts(prices, load),
        "partitions": _hosts(partitions * load.replicas / PARTITIONS_PER_BROKER_MAX / BROKERS_PER_HOST),
    }
    limit = max(by_kind, key=lambda kind: by_kind[kind])
    hosts = by_kind[limit]
    cost = tierlog_cost(prices, load)
    extra = hosts - max(by_kind["rate"], by_kind["disks"])
    cost["hosts"] += extra * prices.usd(HOST) * HOURS
    low, high = (seconds * load.replicas / REPLICAS * load.mb_per_s / 1000 for seconds in CPU_SECONDS_PER_GB)
    rate = load.mb_per_s * 1e6
    return Plan(
        hosts=hosts,
        brokers=hosts * BROKERS_PER_HOST,
        voters=3,
        cores=hosts * CORES_PER_HOST,
        cores_busy=(low, high),
        limited_by=limit,
        disk_bytes=load.local_gb * load.replicas * GB,
        disk_bytes_per_host=load.local_gb * load.replicas * GB / hosts,
        store_bytes=load.retained_gb * GB,
        upload_bytes_per_s=rate,
        network_in_bytes_per_s_per_host=rate * load.replicas / hosts,
        network_out_bytes_per_s_per_host=rate * (load.replicas - 1 + load.consumers + 1) / hosts,
        usd_per_month=cost,
        notes=tuple(_notes(load, hosts)),
    )


def _hosts(needed: float) -> int:
    return ZONES * max(1, math.ceil(needed / ZONES))


def _notes(load: Load, hosts: int) -> Iterable[str]:
    yield "Prices are not checked against the lists of AWS, and the rate of a host is an assumption."
    each, more = load.mb_per_s / hosts, load.mb_per_s / (hosts - hosts / ZONES)
    yield f"While a zone is away, each host takes {more:.3g} MB/s of producers instead of {each:.3g}."
    if load.replicas < REPLICAS:
        yield "Fewer than three replicas: records are lost with the hosts that have them, before the upload."
    if load.local_hours > load.days * 24:
        yield "Everything is local: the retention is shorter than --local."
