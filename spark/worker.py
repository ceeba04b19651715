"""Preparation of a Python worker of Spark, once for all tasks that it runs."""

import gc
import os
import sys
from functools import cache

import pyspark


@cache
def freeze_heap() -> None:
    """Exempt what is loaded from garbage collection. PySpark collects after every task, and the objects of
    numba and pyarrow would be visited each time: most of the CPU time of a scan."""
    gc.collect()
    gc.freeze()


@cache
def warn_of_tcp_sockets() -> None:
    """Say which setting makes this session faster, if it does not have it. Spark 4.0 has no such setting."""
    has_setting = not pyspark.__version__.startswith("4.0.")
    if has_setting and os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "false").lower() != "true":
        print(
            "tierlog: this session talks to its Python workers over TCP, which delays every task. "
            "Build it with tierlog.spark.session(), or set spark.python.unix.domain.socket.enabled=true",
            file=sys.stderr,
        )
