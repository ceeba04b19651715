"""Fetched batches: the checks of a follower before it appends what it fetched."""

from tierlog.base.safeguards import safeguard
from tierlog.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_batch, read_header
from tierlog.records.errors import RecordsError, RecordsFault


def check_replicated(
    records: memoryview, from_offset: int, last_epoch: int, leader_epoch: int
) -> list[tuple[int, BatchHeader]]:
    """Returns position and header of each valid batch, up to the first invalid or incomplete one. Raises
    RecordsError if there is none.

    Checks each batch's CRC and counts. Offsets and leader epochs, which the CRC does not cover, must not
    decrease, and no epoch may exceed the leader's. Where they decrease, the batch before may be the invalid
    one, so it is left out too. The first batch must end above `from_offset`; the log decides whether it may
    begin below it. `last_epoch` is the leader epoch of the follower's last record.
    """
    valid: list[tuple[int, BatchHeader]] = []
    at = 0
    try:
        while at + HEADER_SIZE <= len(records):
            length = read_header(records, at).batch_length
            if length >= HEADER_SIZE - LOG_OVERHEAD and at + length + LOG_OVERHEAD > len(records):
                break
            header = _checked(records, at)
            _check_order(header, valid[-1][1] if valid else None, from_offset, last_epoch, leader_epoch)
            valid.append((at, header))
            at += header.size
    except RecordsError:
        if len(valid) < 2:
            raise
        return valid[:-1]
    if not valid:
        raise RecordsError(RecordsFault.CORRUPT, f"{len(records)} bytes hold no complete batch")
    return valid


@safeguard("a follower checks the CRC of fetched batches")
def _checked(records: memoryview, at: int) -> BatchHeader:
    return check_batch(records, at)


def _check_order(
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
            f"a batch of leader epoch {header.leader_epoch} after {last_epoch}, in epoch {leader_epoch}",
        )
