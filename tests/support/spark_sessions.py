"""One Spark session for all tests of a process. Its Java process and Python workers take seconds to start."""

from typing import TYPE_CHECKING

import s3_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_shared: "list[SparkSession]" = []


def shared_session() -> "SparkSession":
    """The session of this process. Its Python workers have the credentials of the S3 servers."""
    from tierlog.spark import session  # here, because most integration tests need no Spark

    if _shared and _shared[0].sparkContext._jsc is None:  # a test has stopped it
        _shared.clear()
    if not _shared:
        workers = {f"spark.executorEnv.{name}": value for name, value in s3_servers.CREDENTIALS.items()}
        lean = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF"}
        made = session("tierlog-tests", **lean, **workers)
        made.sparkContext.setLogLevel("OFF")
        _shared.append(made)
    return _shared[0]


def end_shared_session() -> None:
    """Before a session of another kind: a process has one at a time."""
    while _shared:
        _shared.pop().stop()
