"""Replay: turns entries of the committed log and snapshots into the image, and stops at what it cannot read.

A record that a newer tierlog wrote is never skipped: the image would differ from that of the other nodes.
Called by voters, observers and the recovery of a quorum.
"""

import msgspec

from tierlog.metadata.evolve import apply_entry
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import UnknownSnapshotVersion, decode_image
from tierlog.metadata.raft.messages import CONFIGURATION, Entry
from tierlog.metadata.records import decode_records
from tierlog.metadata.versions import check_format, unreadable


def replay(image: ClusterImage, entry: Entry) -> ClusterImage:
    """The image after one entry of the log. Raises UnreadableMetadata."""
    if entry.kind == CONFIGURATION:
        return apply_entry(image, entry.index, ())
    try:
        records = decode_records(entry.payload)
    except msgspec.DecodeError as failure:
        raise unreadable(f"entry {entry.index} of the metadata log", failure) from failure
    after = apply_entry(image, entry.index, records)
    return after if after.format_version == image.format_version else check_format(after)


def image_of(snapshot: bytes | memoryview) -> ClusterImage:
    """The image in the data of a snapshot. Raises UnreadableMetadata."""
    try:
        return check_format(decode_image(snapshot))
    except (UnknownSnapshotVersion, msgspec.DecodeError) as failure:
        raise unreadable("a snapshot of the metadata", failure) from failure
