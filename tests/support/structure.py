"""Validates the structure of a batch's records at once, which a broker does in steps."""

from tierlog.records.batch import read_header
from tierlog.records.codecs import Buffer
from tierlog.records.record import record_pieces
from tierlog.records.walk import largest_timestamp, walk_structure
from tierlog.records.window import Window, run_all_steps


def count_check(batch: Buffer, *, max_bytes: int) -> int:
    """The largest timestamp. Raises RecordsError."""
    header = read_header(batch, 0)
    window = Window(record_pieces(batch, 0, header, max_bytes))
    return largest_timestamp(header, run_all_steps(walk_structure(window, header.record_count)))
