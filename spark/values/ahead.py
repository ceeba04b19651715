"""Compiles the kernels of records and values ahead: `python -m tierlog.spark.values.ahead DIRECTORY`."""

import sys
from pathlib import Path

import numpy as np

from tierlog.records.kernel_cache import save_kernels
from tierlog.spark.values import kernels, protobuf_kernels
from tierlog.spark.values.avro import Program
from tierlog.spark.values.protobuf import MessageReader
from tierlog.spark.values.protobuf_schema import MESSAGE, STRING, Field

DECIMAL = '{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}'


def main(directory: Path) -> int:
    """Returns the number of files of code."""
    data, starts = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    data.flags.writeable = False
    Program(DECIMAL).decode(data, starts, starts + 1)
    MessageReader(Field("", 0, MESSAGE, fields=[Field("text", 1, STRING)])).decode(data, starts, starts + 1)
    kernels.find_json(data, starts, starts + 1, np.zeros(1, np.bool_))
    protobuf_kernels.skip_indexes(data, starts.copy(), starts + 1)
    return save_kernels(directory, (kernels, protobuf_kernels))


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]))}\n")
