"""A Spark driver in a process of its own, which tests kill: copies a stream to Parquet files.

`python spark_stream_driver.py ARGUMENTS`, where ARGUMENTS is JSON: `options` of the source, `output`,
`checkpoint`, and `until_end`: whether to end with what is available. It prints one line per micro-batch.
"""

import json
import sys
import time

from tierlog.spark import session


def main(arguments: str) -> None:
    given = json.loads(arguments)
    spark = session("tierlog-stream", **{"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    stream = spark.readStream.format("tierlog").options(**given["options"]).load()
    writer = (
        stream.writeStream.format("parquet")
        .option("path", given["output"])
        .option("checkpointLocation", given["checkpoint"])
    )
    writer = (
        writer.trigger(availableNow=True)
        if given["until_end"]
        else writer.trigger(processingTime="0 seconds")
    )
    query = writer.start()
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != seen:
            seen = progress["batchId"]
            print(seen, flush=True)
        time.sleep(0.02)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
