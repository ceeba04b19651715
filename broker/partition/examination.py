"""A look at all records of a produced batch before it is appended, and its records under the topic's codec.

For batches of which the header does not tell enough (ADR 0004): compressed ones, those of compacted topics
or with a bound on the age of records, and those that are stored under another codec than they came in. What
few records take is done where it is asked for; a larger batch may take a second, and so it is a row of steps:
work for a thread, and turns of the event loop that belong to others. Nothing here changes a byte of the batch
that came, and what is found depends on the batch, the topic's settings and the time alone: whether the
partition is led here, and where the batch will stand, is for the leader to judge when it appends. Called by
the replica; the steps of large batches are driven by `runtime.examiner`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tierlog.broker.partition.producers import BadRecord, Refused
from tierlog.broker.partition.validation import (
    RecordChecks,
    checks_age,
    checks_for,
    decompressed_limit,
    refusal,
    stored_codec,
)
from tierlog.broker.records.batch import BatchHeader, read_header
from tierlog.broker.records.errors import RecordsError, RecordsFault
from tierlog.broker.records.record import records_section
from tierlog.broker.records.walk import BadField, walk_fields, walk_structure
from tierlog.broker.records.writer import under_codec
from tierlog.broker.settings.topic import TopicConfig
from tierlog.broker.wire.errors import ErrorCode

RECORDS_AT_ONCE = 1_000
"""Records of a batch that may be walked within one turn of the event loop: half a millisecond."""

BYTES_AT_ONCE = 128 * 1024
"""Bytes of plain records that may be decompressed within one turn: gzip takes 0.4 ms for them."""

FIELDS_AT_ONCE = 200
"""Records within one turn where every field is looked at, and the bytes: there may be a header in two."""

FIELD_BYTES_AT_ONCE = 32 * 1024

PACKED_AT_ONCE = 16 * 1024
"""Plain bytes that may be compressed within one turn: gzip takes half a millisecond for them."""

_EVER = -(2**63)

Step = Callable[[], None] | None
"""What may run in a thread; or None: others have their turn."""


class Examined(NamedTuple):
    """What was found. `records` is the batch as it is to be written, unless it is refused."""

    config: TopicConfig
    """The settings by which the batch was judged; with others it must be judged anew."""
    records: memoryview
    header: BatchHeader
    refused: Refused | None


class Examination:
    """Of one batch, whose header was checked. `records` holds exactly the batch."""

    __slots__ = (
        "_checks",
        "_codec",
        "_config",
        "_found",
        "_header",
        "_now_ms",
        "_plain",
        "_records",
        "_refused",
    )

    def __init__(self, records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
        self._records, self._header, self._config, self._now_ms = records, header, config, now_ms
        self._checks = checks_for(header, config)
        codec = stored_codec(header, config)
        self._codec = None if codec is header.codec else codec
        self._plain: bytes | None = None
        self._found: list[BadField] = []
        self._refused: Refused | None = None

    @property
    def result(self) -> Examined:
        """After the last step."""
        return Examined(self._config, self._records, self._header, self._refused)

    def move_to(self, records: memoryview) -> None:
        """The same bytes, in a place of their own."""
        self._records = records

    def fits_a_turn(self) -> bool:
        """Whether all steps together take a millisecond or so. Decompresses as far as that goes."""
        fields = self._checks is RecordChecks.EVERY_RECORD
        most = FIELD_BYTES_AT_ONCE if fields else BYTES_AT_ONCE
        if self._codec is not None:
            most = PACKED_AT_ONCE
        most_records = FIELDS_AT_ONCE if fields else RECORDS_AT_ONCE
        if self._header.record_count > most_records or self._header.size > most:
            return False
        try:
            self._unpack_to(most)
        except RecordsError as error:
            if error.fault is RecordsFault.TOO_LARGE:
                return False
            self._refused = refusal(error)
        return True

    def at_once(self) -> Examined:
        """All steps one after another."""
        for step in self.steps():
            if step is not None:
                step()
        return self.result

    def steps(self) -> Iterator[Step]:
        """What is left to do, each after the one before has been done."""
        if self._plain is None and self._refused is None:
            yield self._unpack
        if self._refused is None:
            yield from self._look()
        if self._refused is None and self._codec is not None:
            yield self._pack
        self._plain = None

    def _unpack(self) -> None:
        try:
            self._unpack_to(decompressed_limit(self._config))
        except RecordsError as error:
            self._refused = refusal(error)

    def _unpack_to(self, most: int) -> None:
        self._plain = bytes(records_section(self._records, 0, self._header, most))

    def _look(self) -> Iterator[Step]:
        header, plain = self._header, self._plain or b""
        try:
            if self._checks is RecordChecks.EVERY_RECORD:
                yield from self._look_at_fields(plain)
            else:
                yield from walk_structure(plain, header.record_count)
        except RecordsError as error:
            self._refused = refusal(error)

    def _look_at_fields(self, plain: bytes) -> Iterator[Step]:
        config, header = self._config, self._header
        oldest = self._now_ms - config.message_timestamp_before_max_ms if checks_age(config) else _EVER
        yield from walk_fields(
            plain,
            header.record_count,
            header.base_timestamp,
            needs_key="compact" in config.cleanup_policy,
            oldest=oldest,
            bad=self._found,
        )
        if self._found:
            bad = tuple(map(_bad_record, self._found))
            keyless = self._found[0].timestamp is None
            error = ErrorCode.INVALID_RECORD if keyless else ErrorCode.INVALID_TIMESTAMP
            self._refused = Refused(error, bad[0].message, bad)

    def _pack(self) -> None:
        if self._codec is None or self._plain is None:
            return
        self._records = memoryview(under_codec(self._header, self._plain, self._codec))
        self._header = read_header(self._records)
        if self._header.size > self._config.max_message_bytes:
            self._refused = Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {self._header.size} bytes as stored"
            )


def _bad_record(found: BadField) -> BadRecord:
    if found.timestamp is None:
        return BadRecord(found.number, "a compacted topic needs a key in every record")
    return BadRecord(found.number, f"timestamp {found.timestamp} is too far in the past")
