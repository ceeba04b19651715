"""Leader role of a replica: appends records of clients, and records what its followers fetch.

The controller assigns the role with a leader epoch. The core decides, the log writes. While this replica is
not the leader, appends are refused with NOT_LEADER_OR_FOLLOWER and other calls have no effect. If
flush.messages requires an fsync, the acknowledgement of acks=1 waits for it, but `append` does not: see
`acknowledgement`. One owner: the event loop. Called by the handlers, the coordinators and the AlterPartition
manager.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tierlog.base.safeguards import safeguard
from tierlog.base.types import NO_EPOCH
from tierlog.broker.replication.core.in_sync import IsrProposal
from tierlog.broker.replication.core.leader import ALL_IN_SYNC, LeaderCore
from tierlog.broker.replication.replica_state import ReplicaState
from tierlog.broker.storage.core.batch_validation import (
    RecordChecks,
    first_records_are_consistent,
    refusal,
    required_checks,
    stored_codec,
    validate_header,
)
from tierlog.broker.storage.core.producer_state import Duplicate, InvalidRecord, Rejection
from tierlog.broker.storage.core.record_validation import BatchValidation, ValidationResult
from tierlog.broker.storage.core.verification import VerificationGuard
from tierlog.protocol.errors import ErrorCode
from tierlog.records.batch import (
    BatchHeader,
    assign,
    check_batch,
    check_produced,
    read_header,
    set_log_append_time,
)
from tierlog.records.errors import RecordsError
from tierlog.records.markers import EndMarker
from tierlog.records.writer import encode_end_marker


class AppendResult(NamedTuple):
    """Offsets of the batch (for a duplicate, of its first copy). After an error they are -1, and the batch
    was not written; after KAFKA_STORAGE_ERROR it may have been. If `validation` is set, run it and append
    again.
    """

    error: ErrorCode
    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None = None
    bad_records: tuple[InvalidRecord, ...] = ()
    validation: BatchValidation | None = None


class LeaderRole:
    __slots__ = ("_core", "_log", "_replica")

    def __init__(self, replica: ReplicaState, core: LeaderCore) -> None:
        self._replica = replica
        self._log = replica.log
        self._core = core

    # -- produce --

    def append(
        self,
        records: memoryview,
        now_ms: int,
        *,
        acks: int = -1,
        from_client: bool = True,
        at_once: bool = True,
        validated: ValidationResult | None = None,
        guard: VerificationGuard | None = None,
        must_verify: bool = True,
    ) -> AppendResult:
        """Append one batch in place: offset and epoch are written into `records`, which must be writable.

        `from_client=False` is for coordinators, which build their batches in this process: only the CRC,
        leadership, the producer's epoch and its transaction are checked.

        A batch that would open a transaction needs a guard of `begin_verification`, unless `must_verify` is
        False (transaction.partition.verification.enable). With `at_once=False`, a batch whose records take
        long to validate is not written, and the result contains the validation to run. Call again with its
        result as `validated`; everything else is checked again."""
        config = self._log.config
        if self._replica.failed is not None:
            return self._refuse(Rejection(ErrorCode.KAFKA_STORAGE_ERROR, self._replica.failed))
        try:
            header = check_produced(records) if from_client else check_batch(records)
        except RecordsError as error:
            return self._refuse(refusal(error))
        verdict: Duplicate | Rejection | None = None
        if from_client:
            verdict = validate_header(header, config)
        verdict = verdict or self._core.decide_append(
            header,
            self._log.producers,
            acks=acks,
            from_client=from_client,
            guard=guard,
            must_verify=must_verify,
        )
        if verdict is not None:
            return self._result_of(verdict)
        try:
            must_validate = from_client and (
                validated is not None or self._must_validate_records(records, header, now_ms)
            )
        except RecordsError as error:
            return self._refuse(refusal(error))
        if must_validate or stored_codec(header, config) is not header.codec:
            if validated is None or validated.config != config:
                validation = BatchValidation(records, header, config, now_ms)
                if not (at_once or validation.fits_one_turn()):
                    return AppendResult(
                        ErrorCode.NONE, -1, -1, -1, self._log.log_start_offset, validation=validation
                    )
                validated = validation.at_once()
            verdict, records, header = validated.refused, validated.records, validated.header
        if verdict is not None:
            return self._result_of(verdict)
        return self._write(records, header, now_ms)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, first_sequence: int, *, supports_epoch_bump: bool = False
    ) -> VerificationGuard | Rejection | None:
        """Begin to verify that a transaction may be opened in this partition (KIP-890).

        With the guard, ask the transaction coordinator, and then append. None: the transaction is open, and
        the coordinator need not be asked. `supports_epoch_bump`: the request is of transaction protocol v2.
        The sequence is that of the first batch, or -1 for the group coordinator."""
        if not self._core.is_leader:
            return Rejection(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica is not the leader of the partition"
            )
        return self._log.producers.begin_verification(
            producer_id, producer_epoch, first_sequence, supports_epoch_bump=supports_epoch_bump
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndMarker,
        now_ms: int,
        *,
        transaction_version: int,
    ) -> AppendResult:
        """Append a marker that ends a transaction, as with acks=-1. A marker which the coordinator sends
        again is appended again, and ends nothing.

        Refused are markers of an older epoch (INVALID_PRODUCER_EPOCH) and of a former coordinator
        (TRANSACTION_COORDINATOR_FENCED).
        """
        if self._replica.failed is not None:
            return self._refuse(Rejection(ErrorCode.KAFKA_STORAGE_ERROR, self._replica.failed))
        refused = self._core.decide_marker(
            producer_id,
            producer_epoch,
            marker,
            self._log.producers,
            transaction_version=transaction_version,
        )
        if refused is not None:
            return self._refuse(refused)
        batch = encode_end_marker(
            producer_id,
            producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=now_ms,
        )
        return self._write(memoryview(batch), read_header(batch), now_ms)

    def close_for_load(self, offset: int) -> bool:
        """Refuse all appends from now on, because a bulk load is about to use the offsets from `offset` on.

        Returns False, and changes nothing, unless all in-sync replicas end there and no transaction is open.
        Appends are refused until this replica has a role in a later leader epoch, or `reopen`."""
        log, core = self._log, self._core
        is_open = log.producers.first_unstable_offset() is not None
        if is_open or log.log_end_offset != offset or not core.all_end_at(offset):
            return False
        self._set_closed()
        return True

    def _set_closed(self) -> None:
        self._core.is_closed = True

    def reopen(self) -> None:
        """Accept appends again: the load can no longer be committed."""
        self._core.is_closed = False

    def _must_validate_records(self, records: memoryview, header: BatchHeader, now_ms: int) -> bool:
        """Whether the header and the first records of a client's batch are not enough to validate it. Raises
        RecordsError."""
        config = self._log.config
        if required_checks(header, config, now_ms) is not RecordChecks.FIRST_RECORDS:
            return True
        agree = first_records_are_consistent(records, header)
        return not agree and config.message_timestamp_type == "CreateTime"

    def _write(self, records: memoryview, header: BatchHeader, now_ms: int) -> AppendResult:
        log, core = self._log, self._core
        if self._replica.log_dir.refusal is not None:
            return self._refuse(Rejection(ErrorCode.KAFKA_STORAGE_ERROR, self._replica.log_dir.refusal))
        config = log.config
        base_offset, append_time = log.log_end_offset, -1
        if config.message_timestamp_type == "LogAppendTime":
            set_log_append_time(records, 0, now_ms)
            header, append_time = read_header(records), now_ms
        assign(records, 0, base_offset, core.leader_epoch)
        try:
            log.append(records, header, base_offset, core.leader_epoch, now_ms)
        except OSError as error:
            return self._refuse(self._storage_error(error.strerror))
        self._replica.after_append()
        if self._replica.failed_end > base_offset:
            return self._refuse(self._storage_error(self._replica.failed))
        self._replica.bytes_in += len(records)
        last_offset = base_offset + header.last_offset_delta
        return AppendResult(ErrorCode.NONE, base_offset, last_offset, append_time, log.log_start_offset)

    def _result_of(self, verdict: Duplicate | Rejection) -> AppendResult:
        if isinstance(verdict, Rejection):
            return self._refuse(verdict)
        if self._log.log_end_offset > self._core.log_end_offset:
            # The first copy was written, and its flush is in progress or has failed.
            self._replica.after_append()
            if self.acknowledgement(verdict.last_offset + 1, 1):
                return self._refuse(self._storage_error(self._replica.failed))
        log_append_time = self._log.config.message_timestamp_type == "LogAppendTime"
        append_time = verdict.timestamp if log_append_time else -1
        return AppendResult(
            ErrorCode.NONE, verdict.base_offset, verdict.last_offset, append_time, self._log.log_start_offset
        )

    def _storage_error(self, what: str | None) -> Rejection:
        return Rejection(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._replica.name}: {what or 'not flushed'}")

    def _refuse(self, refused: Rejection) -> AppendResult:
        return AppendResult(
            refused.error, -1, -1, -1, self._log.log_start_offset, refused.message, refused.records
        )

    # -- acknowledgements and followers --

    def acknowledgement(
        self, end_offset: int, acks: int = ALL_IN_SYNC, leader_epoch: int | None = None
    ) -> ErrorCode | None:
        """NONE if a batch that ends at `end_offset`, appended in that leader epoch, is acknowledged, an error
        if it has failed, None while neither is known. Listeners are called when that may have changed.
        """
        core = self._core
        known = core.acknowledgement(end_offset, acks, leader_epoch)
        if known is not None:
            return known
        reached = core.high_watermark if acks == ALL_IN_SYNC else core.log_end_offset
        refused = self._replica.failed is not None or reached < end_offset <= self._replica.failed_end
        return ErrorCode.KAFKA_STORAGE_ERROR if refused else None

    def follower_fetched(
        self, follower: int, broker_epoch: int, offset: int, now_ms: int, log_start_offset: int = 0
    ) -> bool:
        """Record a fetch for which `read_for_follower` found no divergence: the follower has everything below
        `offset`. Returns whether the ISR may have to change: then call `isr_proposal`. `now_ms` is
        monotonic.
        """
        core = self._core
        known, reported = core.followers.get(follower), (broker_epoch, log_start_offset)
        state_changed = known is not None and reported != (known.broker_epoch, known.log_start_offset)
        moved = core.follower_fetched(follower, broker_epoch, offset, now_ms, log_start_offset)
        if moved or not core.may_commit or state_changed:
            # Requests may wait until enough in-sync replicas have a record, DeleteRecords for the log start
            # offset of a live follower.
            self._replica.notify()
        if core.repeated_fetch_offset is not None:
            at, core.repeated_fetch_offset = core.repeated_fetch_offset, None
            self._replica.suspect(at, f"broker {follower} fetches it repeatedly")
        return core.isr_due

    @property
    def low_watermark(self) -> int:
        """A leader's low watermark: no later leader serves a record below it. Listeners are called when it
        rises."""
        return self._core.low_watermark(self._log.log_start_offset)

    def has_nothing_for(self, offset: int, last_epoch: int) -> bool:
        """Whether `read_for_follower` would return neither records nor a divergence for a follower at
        `offset`. A quick check, which may return False even then.
        """
        log = self._log
        if offset != log.log_end_offset or not self._core.is_leader or self._replica.failed is not None:
            return False
        latest = log.epochs.latest
        return last_epoch == NO_EPOCH or (latest is not None and latest.epoch == last_epoch)

    def knows_follower(self, follower: int, broker_epoch: int) -> bool:
        return self._core.knows(follower, broker_epoch)

    def set_live(self, live: Mapping[int, int]) -> None:
        """Set the brokers which may be in sync: broker id to broker epoch."""
        before = self.low_watermark
        if self._core.set_live(live) or self.low_watermark > before:
            self._replica.notify()

    def isr_proposal(self, now_ms: int, lag_max_ms: int, live: Mapping[int, int]) -> IsrProposal | None:
        before = self._core.high_watermark
        proposal = self._core.isr_proposal(now_ms, lag_max_ms, live)
        if self._core.high_watermark > before:
            self._replica.notify()
        return proposal

    def on_isr_response(
        self,
        proposal: IsrProposal,
        error: ErrorCode,
        leader_epoch: int = NO_EPOCH,
        partition_epoch: int = NO_EPOCH,
    ) -> None:
        if self._core.on_isr_response(proposal, error, leader_epoch, partition_epoch):
            self._replica.notify()

    def on_isr_failure(self, proposal: IsrProposal) -> None:
        if self._core.on_isr_failure(proposal):
            self._replica.notify()


safeguard("a partition is closed to appends while a load is committed")(LeaderRole._set_closed)
safeguard("retention uses the timestamps of records instead of batch headers")(
    LeaderRole._must_validate_records
)
