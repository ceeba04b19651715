"""Transaction markers: the control records that end transactions (KIP-98).

Read by the log, the coordinators and compaction.
"""

from typing import NamedTuple

from tierlog.records.errors import RecordsError
from tierlog.records.record import iter_records
from tierlog.records.writer import COMMIT_MARKER

_CONTROL_RECORD_BYTES = 64 * 1024


class EndMarker(NamedTuple):
    """Content of a control record that ends a transaction."""

    committed: bool
    coordinator_epoch: int


def read_marker(batch: bytes | memoryview) -> EndMarker | None:
    """Read a control batch: the key is version and type, the value version and coordinator epoch (KIP-98).

    Returns None if the batch does not end a transaction. A malformed record with a valid CRC, which no log
    writer produces, also gives None.
    """
    try:
        record = next(iter(iter_records(batch, max_bytes=_CONTROL_RECORD_BYTES)), None)
    except RecordsError:
        return None
    if (
        record is None
        or record.key is None
        or record.value is None
        or len(record.key) < 4
        or len(record.value) < 6
    ):
        return None
    kind = int.from_bytes(record.key[2:4], "big")
    if kind > COMMIT_MARKER:
        return None
    return EndMarker(kind == COMMIT_MARKER, int.from_bytes(record.value[2:6], "big", signed=True))
