"""Manifest recovery: which of two manifests counts after the quorum was recovered."""

import uuid

from remote_segments import remote_segment

from tierlog.broker.remote.manifest_recovery import newer_manifest
from tierlog.metadata.image import RemotePartition
from tierlog.metadata.records import RemoteSegment
from tierlog.tiering.format.manifest import ManifestRoot

FIRST, SECOND, THIRD = remote_segment(0, 9), remote_segment(10, 19), remote_segment(20, 29)
RECOVERED = RemotePartition(entries=(FIRST, SECOND))


def root(*entries: RemoteSegment, index: int = 101, start: int = 0) -> ManifestRoot:
    return ManifestRoot(
        topic_id=uuid.UUID(int=1),
        partition=0,
        version=1,
        metadata_index=index,
        leader_epoch=0,
        log_start_offset=start,
        pages=(),
        entries=entries,
    )


def test_newer_manifest_of_the_bucket_counts() -> None:
    found = newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD), 100)
    assert found.entries == (FIRST, SECOND, THIRD)
    merged = remote_segment(0, 19, uuid=uuid.UUID(int=7))
    assert newer_manifest(RECOVERED, root(merged), 100).entries == (merged,)
    found = newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD, start=10), 100)
    assert (found.log_start_offset, found.entries) == (10, (SECOND, THIRD))
    assert newer_manifest(RECOVERED, root(start=25), 100) == RemotePartition(log_start_offset=25)


def test_recovered_manifest_counts_if_it_contains_that_of_the_bucket() -> None:
    assert newer_manifest(RECOVERED, None, 100) is RECOVERED
    assert newer_manifest(RECOVERED, root(FIRST, SECOND, THIRD, index=100), 100) is RECOVERED
    assert newer_manifest(RECOVERED, root(FIRST), 100) is RECOVERED  # the last entries of the log are newer
