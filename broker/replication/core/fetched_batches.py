"""What a follower checks of what it fetched, before any of it is written."""

from tierlog.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError, RecordsFault


def check_replicated(
    records: memoryview, from_offset: int, last_epoch: int, leader_epoch: int
) -> list[tuple[int, BatchHeader]]:
    """Position and header of each whole batch before the first that cannot be right; one that is cut at the
    end is left out. Raises RecordsError if none is left.

    CRC and counts of each; offsets and epochs, which the CRC does not cover, may not go back, and no epoch
    may be above the leader's. Where they go back, the batch before may be the wrong one, and is left out too.
    `from_offset`: the first batch ends above it; the log decides whether it may also begin below it.
    `last_epoch`: of the last record at hand.
    """
    found: list[tuple[int, BatchHeader]] = []
    at = 0
    try:
        while at + HEADER_SIZE <= len(records):
            length = read_header(records, at).batch_length
            if length >= HEADER_SIZE - LOG_OVERHEAD and at + length + LOG_OVERHEAD > len(records):
                break
            header = check_batch(records, at)
            _check_follows(header, found[-1][1] if found else None, from_offset, last_epoch, leader_epoch)
            found.append((at, header))
            at += header.size
    except RecordsError:
        if len(found) < 2:
            raise
        return found[:-1]
    if not found:
        raise RecordsError(RecordsFault.CORRUPT, f"{len(records)} bytes hold no whole batch")
    return found


def _check_follows(
    header: BatchHeader, before: BatchHeader | None, from_offset: int, last_epoch: int, leader_epoch: int
) -> None:
    expected = from_offset if before is None else before.next_offset
    if header.last_offset < expected or (before is not None and header.base_offset < expected):
        raise RecordsError(
            RecordsFault.CORRUPT, f"a batch at offset {header.base_offset}, expected {expected}"
        )
    last_epoch = last_epoch if before is None else before.leader_epoch
    if not last_epoch <= header.leader_epoch <= leader_epoch:
        raise RecordsError(
            RecordsFault.CORRUPT,
            f"a batch of epoch {header.leader_epoch} after {last_epoch}, the leader has {leader_epoch}",
        )
