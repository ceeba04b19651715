"""Spark data source: reads committed records of tiered segments directly from the bucket, without a broker.

It imports only formats, stores and record decoding, so that executors need few dependencies.
"""

from typing import TYPE_CHECKING, Any

from tierlog.spark.java import session

if TYPE_CHECKING:
    from tierlog.spark.tables import count, hot_keys, replicate, salt

__all__ = ["count", "hot_keys", "replicate", "salt", "session"]


def __getattr__(name: str) -> Any:
    """Import `tables` when it is used, because it needs PySpark."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tierlog.spark import tables

    return getattr(tables, name)
