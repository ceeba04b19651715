"""Planning on the driver imports no decoder, because the first query of a session waits for it."""

import subprocess
import sys

import pytest

HEAVY = ("numba", "numpy", "pyarrow", "boto3")
SCRIPT = "import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"


@pytest.mark.parametrize("module", ["pyspark_tierlog", "tierlog.spark.batch"])
def test_modules_of_the_driver_import_no_decoder(module: str) -> None:
    script = SCRIPT.format(module=module, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
