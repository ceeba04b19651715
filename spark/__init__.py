"""Spark data source: reads committed records of tiered segments directly from the bucket, without a broker.

It imports only formats, stores and record decoding, so that executors need few dependencies.
"""

from typing import TYPE_CHECKING, Any

from tierlog.spark.java import session

if TYPE_CHECKING:
    from tierlog.spark.bulk_load import load
    from tierlog.spark.tables import count, hot_keys, replicate, salt

__all__ = ["count", "hot_keys", "load", "replicate", "salt", "session"]


def __getattr__(name: str) -> Any:
    """Import what needs PySpark when it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tierlog.spark import bulk_load, tables

    return getattr(bulk_load if name == "load" else tables, name)
