"""Named snapshots from Python: `create` and `end`, on the driver or in any script.

The options are those of `spark.read`: `path`, `subscribe` and so on. `option("table", "snapshots")` lists
them. Each raises InvalidOption.
"""

from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.history.held import BucketStore, ask
from tierlog.spark.history.snapshot import find_cluster, take_snapshot
from tierlog.spark.options import parse_options
from tierlog.tiering.format.keys import Keys
from tierlog.tiering.snapshots import Snapshots

DEFAULT_LEASE_MS = 24 * 3_600_000


def create(name: str, path: str, *, lease_ms: int = DEFAULT_LEASE_MS, **options: object) -> str:
    """Hold what the topics have now: `create("audit", "s3://bucket/prefix", subscribe="orders")`. Returns the
    id. `option("snapshot", "audit")` reads it, which renews the lease."""
    given = {key: str(value) for key, value in options.items()}
    parsed = parse_options({"path": path, "snapshotLeaseMs": str(lease_ms), **given})
    return take_snapshot(open_bucket(parsed.store), parsed, name)


def end(snapshot: str, path: str, **options: object) -> None:
    """End a snapshot, by its name or id: its objects may be deleted."""
    given = {key: str(value) for key, value in options.items()}
    parsed = parse_options({"path": path, "table": "snapshots", **given})
    bucket = open_bucket(parsed.store)
    ask(Snapshots(BucketStore(bucket), Keys(find_cluster(bucket, parsed.cluster))).end(snapshot))
