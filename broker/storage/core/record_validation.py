"""Batch validation: reads all records of a produced batch before the append, and converts them to the topic's
codec.

It handles batches whose header does not say enough (ADR 0004): compressed batches, batches of compacted
topics or of topics that limit record age, batches with implausible timestamps, and batches stored under
another codec. Records are decompressed, checked and compressed again piece by piece, so memory use stays
small whatever a batch claims. A small batch is validated at once. A larger batch may take a second, so its
validation is a series of steps, some of which run in a thread, and the event loop serves other requests
between them.

The header's maximum timestamp is corrected and attributes that only a broker may set are cleared; all other
bytes stay as received. The result depends only on the batch, the topic's settings and the time. The leader
checks leadership and offsets later, at the append. Called by the replica; `handlers.batch_validator` runs the
steps of large batches.
"""

from collections.abc import Generator
from typing import NamedTuple

from tierlog.broker.storage.core.batch_validation import (
    RecordChecks,
    decompressed_limit,
    kept_attributes,
    memory_limit,
    newest_allowed,
    oldest_allowed,
    refusal,
    require_plausible_count,
    required_checks,
    stored_codec,
)
from tierlog.broker.storage.core.producer_state import InvalidRecord, Rejection
from tierlog.config.topic import TopicConfig
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import HEADER_SIZE, BatchHeader, correct_header, read_header
from tierlog.records.codecs import Packer
from tierlog.records.errors import MemoryLimitExceeded, RecordsError
from tierlog.records.record import record_pieces
from tierlog.records.unpacking import MEMORY_BYTES_MAX, PIECE_BYTES
from tierlog.records.walk import BadField, largest_timestamp, walk_fields, walk_structure
from tierlog.records.window import Step, Window, run_all_steps
from tierlog.records.writer import with_section

RECORDS_PER_TURN = 1_000
"""Records walked per turn of the event loop: half a millisecond."""

BYTES_PER_TURN = PIECE_BYTES
"""Uncompressed bytes produced per turn: gzip takes 0.4 ms for them."""

FIELD_RECORDS_PER_TURN = 200
"""Records per turn where every field is validated. The limit on bytes applies too, as each record may have
many headers.
"""

FIELD_BYTES_PER_TURN = 32 * 1024

COMPRESSED_BYTES_PER_TURN = 16 * 1024
"""Uncompressed bytes that are compressed per turn: gzip takes half a millisecond for them."""


class ValidationResult(NamedTuple):
    """`records` is the batch as it will be written, unless it is rejected."""

    config: TopicConfig
    """Settings used for the validation. If the topic's settings differ at the append, the batch is validated
    again.
    """
    records: memoryview
    header: BatchHeader
    refused: Rejection | None


class BatchValidation:
    """Validation of one batch whose header has been checked. `records` holds exactly the batch and is
    modified in place.
    """

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
        "needs_exclusive_memory",
    )

    def __init__(self, records: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
        self._records, self._header, self._config, self._now_ms = records, header, config, now_ms
        checks = required_checks(header, config, now_ms)
        self._checks = RecordChecks.STRUCTURE if checks is RecordChecks.FIRST_RECORDS else checks
        codec = stored_codec(header, config)
        self._codec = None if codec is header.codec else codec
        self._packer: Packer | None = None
        self._window: Window | None = None
        self._refused: Rejection | None = None
        self.needs_exclusive_memory = False
        """Set if the first pass ended without a result because the codec needs more memory at once than
        batches validated in parallel may use. The steps must run again while no other such validation runs.
        """

    @property
    def result(self) -> ValidationResult:
        """The result, after the last step."""
        return ValidationResult(self._config, self._records, self._header, self._refused)

    def move_to(self, records: memoryview) -> None:
        """Use a copy of the batch in another buffer."""
        self._records, self._window = records, None

    def fits_one_turn(self) -> bool:
        """Whether all steps together take about a millisecond. Decompresses up to the limits for one turn."""
        fields = self._checks is RecordChecks.EVERY_RECORD
        most = FIELD_BYTES_PER_TURN if fields else BYTES_PER_TURN
        if self._codec is not None:
            most = COMPRESSED_BYTES_PER_TURN
        most_records = FIELD_RECORDS_PER_TURN if fields else RECORDS_PER_TURN
        if self._header.record_count > most_records or self._header.size > most:
            return False
        self._window = self._new_window()
        return self._window.prefetch(most)

    def at_once(self) -> ValidationResult:
        """Run all steps."""
        run_all_steps(self.steps())
        if self.needs_exclusive_memory:
            run_all_steps(self.steps())
        return self.result

    def steps(self) -> Generator[Step, None, None]:
        """The steps of the validation, each of which requires the previous ones."""
        window, self._window = self._window or self._new_window(), None
        try:
            require_plausible_count(self._header, self._config)
            if self._checks is RecordChecks.EVERY_RECORD:
                largest = yield from self._validate_fields(window)
            else:
                largest = yield from walk_structure(window, self._header.record_count)
                if self._header.base_timestamp + largest > newest_allowed(self._config, self._now_ms):
                    yield from self._validate_fields(self._new_window())  # finds the records that are too new
            if self._refused is None:
                yield lambda: self._finish(largest)
        except MemoryLimitExceeded as error:
            if self.needs_exclusive_memory:
                self._refused = refusal(error)
            self.needs_exclusive_memory = True
        except RecordsError as error:
            self._refused = refusal(error)

    def _new_window(self) -> Window:
        header, config = self._header, self._config
        memory_bytes = (
            memory_limit(header, config) if self.needs_exclusive_memory else MEMORY_BYTES_MAX + header.size
        )
        pieces = record_pieces(self._records, 0, header, decompressed_limit(header, config), memory_bytes)
        if self._codec is None:
            return Window(pieces)
        self._packer = Packer(self._codec, config.max_message_bytes - HEADER_SIZE)
        return Window(pieces, self._packer.add)

    def _validate_fields(self, window: Window) -> Generator[Step, None, int]:
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
            self._refused = Rejection(error, bad[0].message, bad)
        return largest

    def _finish(self, largest_delta: int) -> None:
        """Build the batch that will be written."""
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


def _bad_record(found: BadField, now_ms: int) -> InvalidRecord:
    if found.timestamp is None:
        return InvalidRecord(found.number, "a compacted topic needs a key in every record")
    where = "future" if found.timestamp > now_ms else "past"
    return InvalidRecord(found.number, f"timestamp {found.timestamp} is too far in the {where}")
