"""Replacements of the safeguards of the remote tier. See `safeguards`."""

from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from simulator.switches import Function, and_without, without
from tierlog.config.topic import MAX_LONG
from tierlog.records.batch import iter_batches
from tierlog.tiering.download import mark_batches
from tierlog.tiering.object_store import CorruptObject

# --- the remote tier


@without(
    "only the leader of the upload's epoch commits a remote segment",
    breaks="a deposed leader's upload is added to the manifest",
    of_tier=True,
)
def _(original: Function, *_: Any) -> None:
    return


@without(
    "local segments stay until the remote copy is committed",
    breaks="records are in neither tier",
    of_tier=True,
)
def _(original: Function, segments: Any, policy: Any, tiered_end: int, *rest: int) -> int:
    return original(segments, policy, MAX_LONG, *rest)


@without(
    "local segments stay until the bucket's manifest lists the copy",
    breaks="records that no disk has are missing from the bucket's manifest",
    of_tier=True,
)
def _(original: Function, root: Any) -> int:
    return MAX_LONG


@without(
    "a low disk drops only what the bucket's manifest lists",
    breaks="records are in neither tier",
    of_tier=True,
)
def _(original: Function, manager: Any, replica: Any) -> int:
    return MAX_LONG


@without(
    "segments are rolled in time for remote.log.copy.max.lag.ms",
    breaks="the loss of all brokers loses older records than allowed",
    of_tier=True,
)
def _(original: Function, *_: Any) -> bool:
    return False


@without(
    "a remote chunk is verified before it is served",
    breaks="a consumer gets wrong bytes from the bucket",
    of_tier=True,
)
def _(original: Function, name: str, index: Any, key: Any, content: Any) -> Any:
    return mark_batches(content)


@without(
    "a remote chunk may have gaps between its offsets",
    breaks="records of a compacted topic are unreadable",
    of_tier=True,
)
def _(original: Function, name: str, index: Any, key: Any, content: Any) -> Any:
    """As if every offset had to be there."""
    headers = [header for _, header in iter_batches(bytes(content))]
    if any(two.base_offset != one.next_offset for one, two in pairwise(headers)):
        raise CorruptObject(f"{name}: offsets are missing")
    return original(name, index, key, content)


@without(
    "only committed records are uploaded", breaks="the manifest lists records that may be lost", of_tier=True
)
def _(original: Function, view: Any) -> int:
    return MAX_LONG


@without(
    "an upload is verified before it is committed",
    breaks="the manifest lists an incomplete object",
    of_tier=True,
)
async def _(original: Function, *_: Any) -> None:
    return


@without("abandoned uploads are deleted", breaks="orphaned objects stay in the bucket", of_tier=True)
def _(original: Function, image: Any, record: Any) -> Any:
    return replace(original(image, record), delete_queue=image.delete_queue)


@without(
    "segments below the log start are deleted", breaks="orphaned objects stay in the bucket", of_tier=True
)
def _(original: Function, image: Any, record: Any) -> Any:
    return replace(original(image, record), delete_queue=image.delete_queue)


@without(
    "the objects of a deleted topic are deleted", breaks="orphaned objects stay in the bucket", of_tier=True
)
def _(original: Function, *_: Any) -> list[Any]:
    return []


@without(
    "a manifest cannot list a page whose deletion has begun",
    breaks="the manifest lists a deleted object",
    of_tier=True,
)
def _(original: Function, image: Any, uuid: Any) -> bool:
    return False


@without(
    "the deletion grace period uses quorum time", breaks="a clock jump deletes objects early", of_tier=True
)
def _(original: Function, clock: Any, offset_ms: int) -> int:
    return clock.now_ms()


@without(
    "objects stay for the grace after they have left the manifest",
    breaks="a reader's object is deleted",
    of_tier=True,
)
def _(original: Function, now_ms: int, grace_ms: int) -> int:
    return now_ms


@and_without(
    "the storage cleaner waits for the grace",
    row="objects stay for the grace after they have left the manifest",
)
def _(original: Function, *_: Any) -> float:
    return 0.0


@without(
    "interrupted copies are abandoned",
    breaks="the objects of an interrupted copy stay in the bucket",
    of_tier=True,
)
def _(original: Function, *_: Any) -> Any:
    return iter(())


# --- merging and compaction in the bucket


@without("replaced segments are deleted", breaks="orphaned objects stay in the bucket", of_tier=True)
def _(original: Function, *_: Any) -> list[Any]:
    return []


@without(
    "compaction keeps the last record of each key", breaks="the last value of a key is lost", of_tier=True
)
def _(original: Function, kept: Any, record: Any, expired: bool) -> bool:
    return record.offset >= kept.keys.end_offset


@without(
    "a tombstone stays for delete.retention.ms",
    breaks="a consumer never sees that a key was deleted",
    of_tier=True,
)
def _(original: Function, *_: Any) -> bool:
    return True


# --- tiering off and on


@without(
    "switching tiering off needs remote.log.delete.on.disable",
    breaks="remote data is deleted without consent",
    of_tier=True,
)
def _(original: Function, *_: Any) -> None:
    return


@without(
    "objects of a dropped remote log are deleted", breaks="orphaned objects stay in the bucket", of_tier=True
)
def _(original: Function, image: Any, record: Any) -> Any:
    return replace(original(image, record), delete_queue=image.delete_queue)


@without(
    "what is remote is deleted once tiering is off",
    breaks="objects of an untiered topic stay in the bucket",
    of_tier=True,
)
def _(original: Function, *_: Any) -> Any:
    return iter(())


# --- snapshots of readers


@without(
    "deletions of what a snapshot holds are not marked",
    breaks="a reader's object is deleted",
    of_tier=True,
)
def _(original: Function, *_: Any) -> Any:
    return lambda line: False


@and_without(
    "the storage cleaner keeps what a snapshot holds",
    row="deletions of what a snapshot holds are not marked",
)
def _(original: Function, cleaner: Any, batch: Any) -> Any:
    return batch


@without(
    "a lease ends after its time has passed on the storage cleaner's clock",
    breaks="a reader's lease ends early",
    of_tier=True,
)
def _(original: Function, lease: Any, passed_ms: int) -> int:
    return int(lease.lease_ms)


# --- bulk loads


@without(
    "a partition is closed to appends while a load is committed",
    breaks="an acknowledged record and a loaded one have the same offset",
    of_tier=True,
)
def _(original: Function, *_: Any) -> None:
    return


@without(
    "a bulk load starts a leader epoch",
    breaks="a leader does not notice that its next offsets are used",
    of_tier=True,
)
def _(original: Function, *_: Any) -> Any:
    return ()


@without(
    "a leader's log does not end before the remote log",
    breaks="a new leader uses the offsets of a bulk load again",
    of_tier=True,
)
def _(original: Function, *_: Any) -> bool:
    return False


@without("a load that is repeated adds nothing", breaks="all records of a load are there twice", of_tier=True)
def _(original: Function, *_: Any) -> bool:
    return False


@and_without("a leader knows the loads that were committed", row="a load that is repeated adds nothing")
def _(original: Function, *_: Any) -> None:
    return
