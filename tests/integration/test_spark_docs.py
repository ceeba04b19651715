"""The snippets of docs/howto/spark.md run, one after the other, as a reader would run them."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_bucket import BucketWriter

from tierlog.records.writer import NewRecord, encode_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "spark.md"
MARCH_MS = 1_740_787_200_000
HOUR_MS = 3_600_000


def test_snippets_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = BucketWriter(tmp_path)
    writer.topic("orders", 1)
    stamps = [MARCH_MS + (offset - 100) * HOUR_MS for offset in range(1_000)]
    records = [NewRecord(stamp, b"k%d" % (stamp % 7), b"v") for stamp in stamps]
    writer.segment("orders", 0, [encode_batch(records)])
    writer.commit("orders", 0)
    text = HOWTO.read_text(encoding="utf-8").replace("s3://bucket/prefix", str(tmp_path))
    names: dict[str, Any] = {"spark": spark}
    for snippet in re.findall(r"```python spark\n(.*?)```", text, re.DOTALL):
        exec(snippet, names)
    assert "1000" in capsys.readouterr().out
    assert names["march"].count() == 31 * 24
    assert names["joined"].count() == 1_000
