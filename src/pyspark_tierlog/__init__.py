"""PySpark imports modules named pyspark_… and registers their DefaultSource: format("tierlog")."""

from tierlog.spark.source import TierlogSource as DefaultSource  # noqa: F401
