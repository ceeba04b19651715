"""Spark data source: reads committed records of tiered segments directly from the bucket, without a broker.

It imports only formats, stores and record decoding, so that executors need few dependencies.
"""

from tierlog.spark.java import session

__all__ = ["session"]
