"""A look at all records of a produced batch before it is appended, and its records under the topic's codec.

For batches of which the header does not tell enough (ADR 0004): compressed ones, those of compacted topics
or with a bound on the age of records, those whose timestamps are not plausible, and those that are stored
under another codec than they came in. Records are decompressed, looked at and compressed again piece by
piece, so memory stays small whatever a batch claims. What few records take is done where it is asked for; a
larger batch may take a second, and so it is a row of steps: work for a thread, and turns of the event loop
that belong to others. The header's largest timestamp is corrected, and attributes that are a broker's are
taken away; all other bytes stay as they came. What is found depends on the batch, the topic's settings and
the time alone: whether the partition is led here, and where the batch will stand, is for the leader to judge
when it appends. Called by the replica; the steps of large batches are driven by `runtime.examiner`.
"""

from collections.abc import Generator
from typing import NamedTuple

from tierlog.broker.storage.core.batch_validation import (
    RecordChecks,
    checks_for,
    decompressed_limit,
    kept_attributes,
    newest_allowed,
    oldest_allowed,
    refusal,
    require_plausible_count,
    stored_codec,
    whole_limit,
)
from tierlog.broker.storage.core.producer_state import BadRecord, Refused
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, BatchHeader, correct_header, read_header
from tierlog.records.codecs import Packer
from tierlog.records.errors import HeldWhole, RecordsError
from tierlog.records.record import record_pieces
from tierlog.records.unpacking import PIECE_BYTES, WHOLE_BYTES
from tierlog.records.walk import BadField, largest_timestamp, walk_fields, walk_structure
from tierlog.records.window import Step, Window, at_once
from tierlog.records.writer import with_section

RECORDS_AT_ONCE = 1_000
"""Records of a batch that may be walked within one turn of the event loop: half a millisecond."""

BYTES_AT_ONCE = PIECE_BYTES
"""Bytes of plain records that may be decompressed within one turn: gzip takes 0.4 ms for them."""

FIELDS_AT_ONCE = 200
"""Records within one turn where every field is looked at, and the bytes: there may be a header in two."""

FIELD_BYTES_AT_ONCE = 32 * 1024

PACKED_AT_ONCE = 16 * 1024
"""Plain bytes that may be compressed within one turn: gzip takes half a millisecond for them."""


class Examined(NamedTuple):
    """What was found. `records` is the batch as it is to be written, unless it is refused."""

    config: TopicConfig
    """The settings by which the batch was judged; with others it must be judged anew."""
    records: memoryview
    header: BatchHeader
    refused: Refused | None


class Examination:
    """Of one batch, whose header was checked. `records` holds exactly the batch, and is written to."""

    __slots__ = (
        "_checks",
        "_codec",
        "_config",
        "_header",
        "_now_ms",
        "_packer",
        "_records",
        "_refused",
        "_window",
        "must_be_alone",
    )

    def __init__(self, records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
        self._records, self._header, self._config, self._now_ms = records, header, config, now_ms
        checks = checks_for(header, config, now_ms)
        self._checks = RecordChecks.STRUCTURE if checks is RecordChecks.FIRST_RECORDS else checks
        codec = stored_codec(header, config)
        self._codec = None if codec is header.codec else codec
        self._packer: Packer | None = None
        self._window: Window | None = None
        self._refused: Refused | None = None
        self.must_be_alone = False
        """Nothing was found in the first steps: the codec holds more bytes at once than batches may beside
        each other. The steps are to be done once more, while no other such examination is.
        """

    @property
    def result(self) -> Examined:
        """After the last step."""
        return Examined(self._config, self._records, self._header, self._refused)

    def move_to(self, records: memoryview) -> None:
        """The same bytes, in a place of their own."""
        self._records, self._window = records, None

    def fits_a_turn(self) -> bool:
        """Whether all steps together take a millisecond or so. Decompresses as far as that goes."""
        fields = self._checks is RecordChecks.EVERY_RECORD
        most = FIELD_BYTES_AT_ONCE if fields else BYTES_AT_ONCE
        if self._codec is not None:
            most = PACKED_AT_ONCE
        most_records = FIELDS_AT_ONCE if fields else RECORDS_AT_ONCE
        if self._header.record_count > most_records or self._header.size > most:
            return False
        self._window = self._new_window()
        return self._window.prefetch(most)

    def at_once(self) -> Examined:
        """All steps one after another."""
        at_once(self.steps())
        if self.must_be_alone:
            at_once(self.steps())
        return self.result

    def steps(self) -> Generator[Step, None, None]:
        """What there is to do, each after the one before has been done."""
        window, self._window = self._window or self._new_window(), None
        try:
            require_plausible_count(self._header, self._config)
            if self._checks is RecordChecks.EVERY_RECORD:
                largest = yield from self._look_at_fields(window)
            else:
                largest = yield from walk_structure(window, self._header.record_count)
                if self._header.base_timestamp + largest > newest_allowed(self._config, self._now_ms):
                    yield from self._look_at_fields(self._new_window())  # which they are
            if self._refused is None:
                yield lambda: self._finish(largest)
        except HeldWhole as error:
            if self.must_be_alone:
                self._refused = refusal(error)
            self.must_be_alone = True
        except RecordsError as error:
            self._refused = refusal(error)

    def _new_window(self) -> Window:
        header, config = self._header, self._config
        whole_bytes = whole_limit(header, config) if self.must_be_alone else WHOLE_BYTES + header.size
        pieces = record_pieces(self._records, 0, header, decompressed_limit(header, config), whole_bytes)
        if self._codec is None:
            return Window(pieces)
        self._packer = Packer(self._codec, config.max_message_bytes - HEADER_SIZE)
        return Window(pieces, self._packer.add)

    def _look_at_fields(self, window: Window) -> Generator[Step, None, int]:
        config, header = self._config, self._header
        found: list[BadField] = []
        largest = yield from walk_fields(
            window,
            header.record_count,
            header.base_timestamp,
            needs_key="compact" in config.cleanup_policy,
            oldest=oldest_allowed(config, self._now_ms),
            newest=newest_allowed(config, self._now_ms),
            bad=found,
        )
        if found:
            bad = tuple(_bad_record(one, self._now_ms) for one in found)
            keyless = found[0].timestamp is None
            error = ErrorCode.INVALID_RECORD if keyless else ErrorCode.INVALID_TIMESTAMP
            self._refused = Refused(error, bad[0].message, bad)
        return largest

    def _finish(self, largest_delta: int) -> None:
        """The batch as it is to be written."""
        header = self._header
        newest = header.max_timestamp
        if self._config.message_timestamp_type == "CreateTime":
            newest = largest_timestamp(header, largest_delta)
        wanted = header._replace(attributes=kept_attributes(header), max_timestamp=newest)
        if self._packer is not None and self._codec is not None:
            try:
                section = self._packer.finish()
            except RecordsError as error:
                self._refused = refusal(error)
                return
            self._records = memoryview(with_section(wanted, section, self._codec))
        elif wanted != header:
            correct_header(self._records, 0, wanted)
        else:
            return
        self._header = read_header(self._records)


def _bad_record(found: BadField, now_ms: int) -> BadRecord:
    if found.timestamp is None:
        return BadRecord(found.number, "a compacted topic needs a key in every record")
    where = "future" if found.timestamp > now_ms else "past"
    return BadRecord(found.number, f"timestamp {found.timestamp} is too far in the {where}")
