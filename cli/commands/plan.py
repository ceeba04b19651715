"""`tierlog plan`: the cluster that a load needs, and its cost."""

import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.errors import usage
from tierlog.cli.options import Json, finite
from tierlog.cli.output import print_json, print_rows, print_status

if TYPE_CHECKING:
    from tierlog.cli.capacity import Plan

_RATE = re.compile(r"([0-9.]+)\s*([kKMGT]?)(i?)B/s")
_TIME = re.compile(r"([0-9.]+)\s*(h|d|w|m|y)")
_FACTORS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0, "m": 365 / 12, "y": 365.0}
RATE_MAX, DAYS_MAX = 1e6, 36_500.0


def plan(
    rate: Annotated[
        str, typer.Option("--rate", metavar="100MB/s", help="Records that arrive, after compression.")
    ],
    retention: Annotated[
        str, typer.Option("--retention", metavar="5y", help="How long records are kept: h, d, w, m or y.")
    ],
    local: Annotated[
        str, typer.Option("--local", metavar="6h", help="How long records stay on the brokers' disks, too.")
    ] = "6h",
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=9, help="Replicas.")] = 3,
    consumers: Annotated[
        int, typer.Option("--consumers", min=0, max=1000, help="Groups that read near the end of the log.")
    ] = 3,
    partitions: Annotated[
        int, typer.Option("--partitions", min=0, max=10_000_000, help="Partitions of all topics. 0: few.")
    ] = 0,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices", exists=True, dir_okay=False, help="CSV with other prices. Default: those of the docs."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Calculate brokers, cores, disks, bytes in the object store, and the cost on AWS for a load.

    The assumptions are those of docs/explanation/aws-costs.md. Measure with your own records before you buy.
    """
    from tierlog.cli.capacity import Load, read_prices
    from tierlog.cli.capacity import plan as planned

    load = Load(
        mb_per_s=_rate(rate),
        days=_days(retention, "--retention"),
        local_hours=_days(local, "--local") * 24,
        replicas=replicas,
        consumers=consumers,
    )
    try:
        found = planned(load, read_prices(prices), partitions)
    except (OSError, ValueError) as wrong:
        hint = "The table has the columns item, unit, usd, capacity, as_of and checked: cli/aws_prices.csv"
        raise usage(f"{prices}: {wrong}", hint=hint) from None
    if as_json:
        total = sum(found.usd_per_month.values())
        print_json({"load": asdict(load), **asdict(found), "usd_per_month_total": total})
        return
    title = f"{load.mb_per_s:g} MB/s, kept for {retention}, {local} of it local"
    print_rows({"what": "what", "value": "needed", "why": "how"}, _rows(found), title=title)
    for note in found.notes:
        print_status(note)


def _rows(found: "Plan") -> list[dict[str, Any]]:
    usd, hosts = found.usd_per_month, found.hosts
    low, high = found.cores_busy
    return [
        _row("hosts", f"{hosts}", f"i4g.xlarge, the same number in 3 zones; limited by {found.limited_by}"),
        _row("brokers", f"{found.brokers}", f"{found.brokers // hosts} on each host: one process a core"),
        _row("voters", f"{found.voters}", "t4g.small, apart from the brokers"),
        _row("cores", f"{found.cores}", f"records keep {low:.1f} to {high:.1f} busy, by the size of batches"),
        _row("disks", _size(found.disk_bytes), f"{_size(found.disk_bytes_per_host)} on each host, NVMe"),
        _row("object store", _size(found.store_bytes), "once, after the first retention has passed"),
        _row("uploads", _speed(found.upload_bytes_per_s), "by leaders, each record once"),
        _row("network into a host", _speed(found.network_in_bytes_per_s_per_host), "producers, replication"),
        _row(
            "network out of a host",
            _speed(found.network_out_bytes_per_s_per_host),
            "replication, consumers, uploads",
        ),
        *(_row(f"cost: {kind}", f"{cost:,.0f} USD", "a month") for kind, cost in usd.items()),
        _row("cost", f"{sum(usd.values()):,.0f} USD", "a month"),
    ]


def _row(what: str, value: str, why: str) -> dict[str, str]:
    return {"what": what, "value": value, "why": why}


def _rate(text: str) -> float:
    """MB/s."""
    found = _RATE.fullmatch(text.strip())
    number = _number(found[1]) if found else 0.0
    if found:
        factor = _FACTORS[found[2].replace("K", "k")]
        power = round(math.log10(factor) / 3)
        number *= (1024**power if found[3] else factor) / 1e6
    if not 0 < number <= RATE_MAX:
        raise usage(f"invalid --rate {text!r}", hint="For example: --rate 100MB/s, 1.5GB/s or 800KiB/s")
    return number


def _days(text: str, option: str) -> float:
    found = _TIME.fullmatch(text.strip())
    days = _number(found[1]) * _DAYS[found[2]] if found else 0.0
    if not 0 < days <= DAYS_MAX:
        raise usage(f"invalid {option} {text!r}", hint=f"For example: {option} 7d, 6h, 3m (months) or 5y")
    return days


def _number(text: str) -> float:
    try:
        return finite(float(text))
    except ValueError:
        return 0.0


def _size(count: float) -> str:
    """In powers of ten, as disks and object stores are sold."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1e6:,.1f} MB"


def _speed(count: float) -> str:
    return f"{count / 1e6:,.0f} MB/s"
