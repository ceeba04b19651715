"""Aborted transactions of a Fetch response: their ends are the producers' control batches."""

from tierlog.protocol.messages.fetch import AbortedTransaction
from tierlog.records.batch import iter_batches
from tierlog.records.columnar import AbortedRange
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark.history.plan import MAX_OFFSET
from tierlog.spark.live.fetch import aborted_ranges


def batches(*rows: tuple[int, int, bool]) -> bytes:
    """Batches of one record by (offset, producer id, whether it is a control batch)."""
    return b"".join(
        bytes(
            encode_batch(
                [NewRecord(1, b"\x00\x00\x00\x00" if control else None, b"\x00" * 6)],
                base_offset=offset,
                producer_id=producer,
                transactional=True,
                control=control,
            )
        )
        for offset, producer, control in rows
    )


def test_each_aborted_transaction_ends_at_the_next_marker_of_its_producer() -> None:
    content = batches(
        (10, 7, False), (11, 8, False), (12, 7, True), (13, 7, False), (14, 8, True), (15, 7, True)
    )
    aborted = [
        AbortedTransaction(producer_id=7, first_offset=5),
        AbortedTransaction(producer_id=7, first_offset=13),
    ]
    assert aborted_ranges(aborted, list(iter_batches(content))) == [
        AbortedRange(7, 5, 12),
        AbortedRange(7, 13, 15),
    ]


def test_transaction_without_a_marker_in_the_response_ends_after_it() -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=5)]
    found = aborted_ranges(aborted, list(iter_batches(batches((10, 7, False), (11, 8, True)))))
    assert found == [AbortedRange(7, 5, MAX_OFFSET)]
