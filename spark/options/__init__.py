"""Options of the data source `tierlog`: what users write in `.option(…)`, parsed once on the driver.

`table` names every option and parses one value. `read`, `stream` and `write` parse the options of one use.
Pure. Options that Spark's Kafka source has too keep their name and meaning.
"""

from tierlog.spark.options.read import (
    EARLIEST,
    LATEST,
    Bound,
    ReadOptions,
    StoreAddress,
    Table,
    parse_options,
)
from tierlog.spark.options.table import InvalidOption

__all__ = [
    "EARLIEST",
    "LATEST",
    "Bound",
    "InvalidOption",
    "ReadOptions",
    "StoreAddress",
    "Table",
    "parse_options",
]
