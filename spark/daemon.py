"""Starts PySpark's daemon, which forks the Python workers, with everything loaded that a task needs: the
setting `spark.python.daemon.module` names this module.

Otherwise each new worker imports pyarrow and loads compiled loops for itself, which takes more than a second:
for every task of a query with a limit, because Spark ends a worker whose rows it no longer wants.
"""

from collections.abc import Callable
from typing import Any

import pyarrow  # noqa: F401  (PySpark imports it only in a worker)
from pyspark import daemon, worker  # noqa: F401

from tierlog.records.columnar import COLUMNS, decode_columns
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import batch as reader  # noqa: F401
from tierlog.spark.worker import freeze_heap


def load_compiled_loops() -> None:
    """Decode one record, with all columns."""
    record = NewRecord(0, b"key", b"value", [("name", b"value")])
    batch = bytes(encode_batch([record]))
    list(decode_columns(batch, COLUMNS))
    list(decode_columns(batch, COLUMNS, is_checked=True))


def without_broken_pipes(serve: Callable[[Any, bool], int]) -> Callable[[Any, bool], int]:
    """PySpark's loop of a worker, without its traceback when Spark closes the connection early: that is what
    happens to a task whose rows a limit no longer wants, as in every `show()`."""

    def serve_quietly(connection: Any, is_authenticated: bool) -> int:
        try:
            return serve(connection, is_authenticated)
        except BrokenPipeError:
            return 1  # ends the process

    return serve_quietly


if __name__ == "__main__":
    daemon.worker = without_broken_pipes(daemon.worker)  # type: ignore[assignment]  # names of parameters
    load_compiled_loops()
    freeze_heap()
    daemon.manager()
