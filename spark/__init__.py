"""Spark reads the tiered segments straight from the bucket: committed records, no broker in the path.

Imports only formats, stores and record decoding, so that an executor installs little.
"""

from tierlog.spark.java import session

__all__ = ["session"]
