"""An executor needs few packages: all modules of the data source are imported while the others are hidden."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions

from tierlog.spark.package import EXECUTOR_DISTRIBUTIONS, _closure

IMPORT_ALL = """
import importlib, importlib.abc, json, pkgutil, sys

allowed = set(json.loads(sys.argv[1])) | set(sys.stdlib_module_names) | {"tierlog", "pyspark", "py4j"}
allowed |= set(sys.modules)

class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top not in allowed and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}: an executor does not have it", name=name)
        return None

sys.meta_path.insert(0, Hide())
imported = ["tierlog.spark"]
packages = [importlib.import_module("tierlog.spark")]
if importlib.util.find_spec("tierlog.client"):
    packages.append(importlib.import_module("tierlog.client"))
for package in packages:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        imported.append(module.name)

from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.options import StoreAddress
open_bucket(StoreAddress(path="s3://bucket/prefix", region="us-east-1", access_key="a", secret_key="b"))
print(json.dumps({"imported": imported, "loaded": sorted(name for name in sys.modules)}))
"""


def test_executors_import_nothing_but_what_they_install() -> None:
    distributions = set(_closure(EXECUTOR_DISTRIBUTIONS))
    tops = [top for top, owners in packages_distributions().items() if distributions & set(owners)]
    ended = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(tops)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert {"tierlog.spark.batch", "tierlog.spark.history.snapshot"} <= set(found["imported"])
    assert "boto3" in found["loaded"]
    heavy = {"aiohttp", "aioboto3", "typer", "structlog", "rich", "uvloop", "tierlog.cli", "tierlog.broker"}
    assert heavy & set(found["loaded"]) == set()
