"""Anomalies: what a history, or the copies of a log, may show that tierlog promises never to do."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    LOST = "lost"  # acknowledged, and not in the log
    DOUBLED = "doubled"  # at two offsets
    REORDERED = "reordered"  # not in its producer's order
    INCONSISTENT = "inconsistent"  # two records at one offset
    UNSENT = "unsent"  # no producer sent it to this partition
    VANISHED = "vanished"  # a consumer read it, and it is gone: it was above the high watermark
    REFUSED = "refused"  # in the log although the producer got a definite error
    SKIPPED = "skipped"  # in the log, but a reader skipped it, or its group never got it
    BACKWARD = "backward"  # a reader got an offset again without a seek
    UNCOMMITTED = "uncommitted"  # a group went back below its committed offset
    TORN = "torn"  # a part of a transaction: of its records, or its records without its offsets
    ABORTED = "aborted"  # a record of an aborted transaction was read
    REPROCESSED = "reprocessed"  # two committed transactions were made from it
    CYCLIC = "cyclic"  # transactions read from each other
    BROKEN = "broken"  # see history.Broken
    DIFFERENT = "different"  # two copies of a log do not agree (audit.py)
    DAMAGED = "damaged"  # a copy cannot be read, or has a gap (audit.py)


class Anomaly(NamedTuple):
    kind: Kind
    partition: int
    what: str
