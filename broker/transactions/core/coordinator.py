"""Transaction coordinator core: the transactional ids of one `__transaction_state` partition.

All events pass `handle(event, now_ms)`; its effects must be performed in order. Each change of a transaction
is decided in transaction.py, appended, and counts once its record is durable. Until then, and while markers
are being written, other requests of the same id wait here: Kafka answers CONCURRENT_TRANSACTIONS, and its
clients then pause for longer than the wait takes. `replay` and `finish_replay` rebuild the core from its
partition; a prepared transaction then writes its markers again. Owned by a shard (`coordinators.shard`).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tierlog.base.safeguards import safeguard
from tierlog.base.types import require
from tierlog.broker.coordinators.core.effects import Appended, AppendTimedOut, Effect, TimerFired
from tierlog.broker.coordinators.core.stored import StoredRecord
from tierlog.broker.coordinators.core.turn import AfterAppend, PendingWrites, Turn, response_error
from tierlog.broker.storage.core.producer_state import NO_PRODUCER_ID
from tierlog.broker.transactions.core.events import (
    AddPartitions,
    EndTransaction,
    Event,
    ExpireIds,
    InitProducerId,
    MarkersWritten,
    PartitionsResponse,
    ProducerResponse,
    Request,
    TimerKey,
    TimerKind,
    WriteMarkers,
)
from tierlog.broker.transactions.core.formats import decode_key, decode_value, encode_key, encode_value
from tierlog.broker.transactions.core.states import TransactionState
from tierlog.broker.transactions.core.transaction import (
    NO_TIMEOUT_MS,
    Transaction,
    check_producer,
    completed,
    ended,
    fenced,
    initialized,
    kept,
    with_partitions,
)
from tierlog.protocol.errors import ErrorCode

WAIT_MS = 2_000
"""Time that requests wait for a change of the same id. Then they fail with CONCURRENT_TRANSACTIONS."""

COMPLETE_RETRY_MS = 500
"""Pause after the end of a transaction, with all markers written, could not be stored."""

OBSERVED_IDLE_MS = 24 * 3_600_000
"""An id expires by the wall clock only after this coordinator has seen it unused for so long: a clock that
jumps must not take the ids of live producers. Not more, because a coordinator that moves begins again."""

MAX_WAITING = 100
"""Requests of one id that may wait. Leaders of partitions add them at the same time (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The node's settings with these names, with `_` for `.`."""

    transaction_max_timeout_ms: int = 15 * 60_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    expiration_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    abort_retry_ms: int = 1_000  # a tenth of transaction.abort.timed.out.transaction.cleanup.interval.ms
    two_phase_commit: bool = False  # transaction.two.phase.commit.enable


@dataclass(slots=True)
class _Id:
    """A transactional id. `current`: durable. `pending`: appended, and not durable yet. `has_markers`: all
    markers of its prepared transaction are written. `idle_rounds`: rounds of expiration since it changed."""

    current: Transaction | None = None
    pending: Transaction | None = None
    has_markers: bool = False
    idle_rounds: int = 0
    waiting: deque[Request] = field(default_factory=deque)

    @property
    def is_changing(self) -> bool:
        return self.pending is not None or (self.current is not None and self.current.state.is_prepared)


class Coordinator:
    def __init__(self, settings: TransactionSettings) -> None:
        self._settings = settings
        self._ids: dict[str, _Id] = {}
        self._writes = PendingWrites()

    # ---- events ----

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        turn = Turn(now_ms, self._writes)
        match event:
            case Appended():
                self._writes.appended(event, turn)
            case AppendTimedOut():
                self._writes.timed_out(event, turn)
            case MarkersWritten():
                self._markers_written(event, turn)
            case TimerFired():
                self._timer_fired(event.key, turn)
            case ExpireIds():
                self._expire(turn)
            case _:
                self._request(event, turn)
        return turn.effects

    # ---- replay ----

    def replay(
        self,
        record_key: bytes | memoryview,
        value: bytes | memoryview | None,
        producer_id: int = NO_PRODUCER_ID,
    ) -> None:
        """Apply one record of the partition, oldest first; none belongs to a transaction. Raises FormatError
        if the record is unusable."""
        transactional_id = decode_key(record_key)
        if transactional_id is None:
            return
        if value is None:
            self._ids.pop(transactional_id, None)
        else:
            self._ids[transactional_id] = _Id(decode_value(transactional_id, value))

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """This topic has no markers."""

    @safeguard("a new coordinator writes the markers of decided transactions")
    def finish_replay(self, now_ms: int, topics: None) -> list[Effect]:
        """Call this after the last record. Open transactions get the rest of their timeout: at most all of
        it, should the clocks of two coordinators differ."""
        turn = Turn(now_ms, self._writes)
        for each in self._ids.values():
            if each.current is not None:
                self._follow_state(each.current, turn)
        return turn.effects

    # ---- requests ----

    def may_refuse(self, request: Request) -> bool:
        """Whether a request may be refused while too many wait: it starts something."""
        return not isinstance(request, EndTransaction)

    def _request(self, request: Request, turn: Turn) -> None:
        each = self._ids.setdefault(request.transactional_id, _Id())
        if each.is_changing:
            self._wait(each, request, turn)
            return
        match request:
            case InitProducerId():
                self._init_producer_id(each, request, turn)
            case AddPartitions():
                self._add_partitions(each, request, turn)
            case EndTransaction():
                self._end(each, request, turn)
        self._remove_if_unused(request.transactional_id)

    def _wait(self, each: _Id, request: Request, turn: Turn) -> None:
        if len(each.waiting) >= MAX_WAITING:
            self._fail(request, ErrorCode.CONCURRENT_TRANSACTIONS, turn)
            return
        if not each.waiting:
            turn.set_timer(TimerKey(TimerKind.WAITING, request.transactional_id), WAIT_MS)
        each.waiting.append(request)

    def _fail(self, request: Request, error: ErrorCode, turn: Turn) -> None:
        is_addition = isinstance(request, AddPartitions)
        turn.reply(
            request.token, PartitionsResponse(error=error) if is_addition else ProducerResponse(error=error)
        )

    def _resume(self, transactional_id: str, turn: Turn) -> None:
        """Handle the requests that waited, until one changes the id again."""
        each = self._ids.get(transactional_id)
        if each is None or not each.waiting or each.is_changing:
            return
        turn.cancel_timer(TimerKey(TimerKind.WAITING, transactional_id))
        waiting, each.waiting = each.waiting, deque()
        for request in waiting:
            self._request(request, turn)

    def _init_producer_id(self, each: _Id, request: InitProducerId, turn: Turn) -> None:
        error, timeout_ms = self._timeout(request)
        if error != ErrorCode.NONE:
            self._fail(request, error, turn)
            return
        known = each.current
        if known is None and request.spare_producer_id == NO_PRODUCER_ID:
            # The id expired while the request waited. Its retry brings a producer id.
            self._fail(request, ErrorCode.CONCURRENT_TRANSACTIONS, turn)
            return
        if known is None:
            known = Transaction(
                transactional_id=request.transactional_id,
                producer_id=request.spare_producer_id,
                producer_epoch=-1,
                timeout_ms=timeout_ms,
                updated_ms=turn.now_ms,
            )
            request = replace(request, expected=None)
        elif known.state is TransactionState.ONGOING and not request.keep:
            if request.expected not in (None, known.client):
                self._fail(request, ErrorCode.PRODUCER_FENCED, turn)
                return
            self._fence(each, known, request, turn)
            return
        decide = kept if known.state is TransactionState.ONGOING else initialized
        decided = decide(known, request.expected, timeout_ms, request.spare_producer_id, turn.now_ms)
        if isinstance(decided, ErrorCode):
            self._fail(request, decided, turn)
        else:
            self._append(each, decided, turn, _producer_reply(request, decided))

    def _fence(self, each: _Id, known: Transaction, request: InitProducerId, turn: Turn) -> None:
        """Abort the open transaction. The request waits for its end, and then gets another epoch."""

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error != ErrorCode.NONE and request in each.waiting:
                each.waiting.remove(request)
                self._fail(request, response_error(error), turn)

        self._append(each, fenced(known, request.spare_producer_id, turn.now_ms), turn, stored)
        self._wait(each, request, turn)

    def _timeout(self, request: InitProducerId) -> tuple[ErrorCode, int]:
        if request.two_phase_commit and not self._settings.two_phase_commit:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TIMEOUT_MS  # as Kafka
        if request.two_phase_commit:
            return ErrorCode.NONE, NO_TIMEOUT_MS
        if 0 < request.timeout_ms <= self._settings.transaction_max_timeout_ms:
            return ErrorCode.NONE, request.timeout_ms
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT, request.timeout_ms

    def _add_partitions(self, each: _Id, request: AddPartitions, turn: Turn) -> None:
        known = each.current
        error = check_producer(known, request.producer_id, request.producer_epoch)
        if error != ErrorCode.NONE or known is None:
            self._fail(request, error, turn)
            return
        if known.is_kept:
            # Records of this epoch would lie outside of the transaction, and its client only ends it.
            self._fail(request, ErrorCode.INVALID_TXN_STATE, turn)
            return
        is_ongoing = known.state is TransactionState.ONGOING
        missing = request.partitions - known.partitions if is_ongoing else request.partitions
        if request.verify_only or not missing:
            turn.reply(request.token, PartitionsResponse(failed=frozenset(missing)))
            return
        decided = with_partitions(known, request.partitions, request.client_version, turn.now_ms)

        def stored(turn: Turn, error: ErrorCode) -> None:
            turn.reply(request.token, PartitionsResponse(error=response_error(error)))

        self._append(each, decided, turn, stored)

    def _end(self, each: _Id, request: EndTransaction, turn: Turn) -> None:
        known = each.current
        if known is None:
            self._fail(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING, turn)
            return
        decided = ended(
            known,
            request.producer_id,
            request.producer_epoch,
            commit=request.commit,
            client_version=request.client_version,
            spare_producer_id=request.spare_producer_id,
            now_ms=turn.now_ms,
        )
        if isinstance(decided, Transaction):
            self._append(each, decided, turn, _producer_reply(request, decided))
        elif decided == ErrorCode.NONE:
            _producer_reply(request, known)(turn, decided)
        else:
            self._fail(request, decided, turn)

    # ---- markers, timeouts, expiry ----

    def _markers_written(self, event: MarkersWritten, turn: Turn) -> None:
        each = self._ids.get(event.transactional_id)
        known = None if each is None else each.current
        producer = event.producer_id, event.producer_epoch
        if each is None or known is None or each.pending is not None or not known.state.is_prepared:
            return
        if producer == (known.producer_id, known.producer_epoch):
            each.has_markers = True
            self._append(each, completed(known, turn.now_ms), turn)

    def _timer_fired(self, key: TimerKey, turn: Turn) -> None:
        each = self._ids.get(key.transactional_id)
        if each is None:
            return
        if key.kind is TimerKind.WAITING:
            waiting, each.waiting = each.waiting, deque()
            for request in waiting:
                self._fail(request, ErrorCode.CONCURRENT_TRANSACTIONS, turn)
        elif each.pending is not None:
            turn.set_timer(key, self._settings.abort_retry_ms)
        elif each.current is not None and key.kind is TimerKind.TRANSACTION:
            if each.current.state is TransactionState.ONGOING:
                self._abort(each, each.current, turn)
        elif each.current is not None and each.current.state.is_prepared and each.has_markers:
            self._append(each, completed(each.current, turn.now_ms), turn)

    @safeguard("an open transaction is aborted after its timeout")
    def _abort(self, each: _Id, known: Transaction, turn: Turn) -> None:
        key = TimerKey(TimerKind.TRANSACTION, known.transactional_id)

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                turn.set_timer(key, self._settings.abort_retry_ms)

        # If this takes the last epoch, the next InitProducerId brings a new producer id: the timer has none.
        self._append(each, fenced(known, NO_PRODUCER_ID, turn.now_ms), turn, stored)

    def _expire(self, turn: Turn) -> None:
        age_ms = self._settings.transactional_id_expiration_ms
        interval_ms = self._settings.expiration_interval_ms
        for transactional_id, each in list(self._ids.items()):
            known = each.current
            if known is None or each.is_changing or known.state is TransactionState.ONGOING:
                continue
            observed_ms = each.idle_rounds * interval_ms
            each.idle_rounds += 1
            if observed_ms >= min(age_ms, OBSERVED_IDLE_MS) and turn.now_ms - known.updated_ms >= age_ms:
                self._delete(transactional_id, each, known, turn)

    def _delete(self, transactional_id: str, each: _Id, known: Transaction, turn: Turn) -> None:
        each.pending = known

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error == ErrorCode.REQUEST_TIMED_OUT:
                return  # the deletion may still become durable
            each.pending = None
            if error == ErrorCode.NONE:
                each.current = None
            self._resume(transactional_id, turn)
            self._remove_if_unused(transactional_id)

        turn.append([StoredRecord(encode_key(transactional_id), None)], stored)

    # ---- changes ----

    @safeguard("an outcome is durable before its markers are written")
    @safeguard("an end of a transaction is durable before it is acknowledged")
    @safeguard("an added partition is durable before its batch is appended")
    def _append(
        self,
        each: _Id,
        decided: Transaction,
        turn: Turn,
        then: AfterAppend | None = None,
    ) -> None:
        """Append a change. It counts once it is durable: then `then` replies, and requests that waited
        follow."""
        transactional_id = decided.transactional_id
        each.pending, before = decided, each.current

        def stored(turn: Turn, error: ErrorCode) -> None:
            if error != ErrorCode.REQUEST_TIMED_OUT:  # otherwise the change may still become durable
                each.pending = None
                if error == ErrorCode.NONE:
                    each.current, each.has_markers, each.idle_rounds = decided, False, 0
            if then is not None:
                then(turn, error)
            if each.pending is not None:
                return
            if error == ErrorCode.NONE:
                self._follow_state(decided, turn, before)
            elif each.current is not None and each.current.state.is_prepared:
                turn.set_timer(TimerKey(TimerKind.RETRY, transactional_id), COMPLETE_RETRY_MS)
            self._resume(transactional_id, turn)
            self._remove_if_unused(transactional_id)

        record = StoredRecord(encode_key(transactional_id), encode_value(decided))
        turn.append([record], stored)

    def _follow_state(self, transaction: Transaction, turn: Turn, before: Transaction | None = None) -> None:
        """Begin the work that a durable state requires: write markers, or set a timer. The timer of an open
        transaction runs on when partitions are added: its age by the wall clock may jump."""
        key = TimerKey(TimerKind.TRANSACTION, transaction.transactional_id)
        timeout_ms, state = transaction.timeout_ms, transaction.state
        has_timer = before is not None and (before.state, before.timeout_ms) == (state, timeout_ms)
        if transaction.state.is_prepared:
            turn.cancel_timer(key)
            turn.effects.append(_markers(transaction))
        elif state is TransactionState.ONGOING and not transaction.has_timeout:
            turn.cancel_timer(key)
        elif state is TransactionState.ONGOING and not has_timer:
            age_ms = max(turn.now_ms - transaction.started_ms, 0)
            turn.set_timer(key, max(timeout_ms - age_ms, 0))

    def _remove_if_unused(self, transactional_id: str) -> None:
        each = self._ids.get(transactional_id)
        if each is not None and each.current is None and each.pending is None and not each.waiting:
            del self._ids[transactional_id]

    # ---- queries ----

    def needs_producer_id(self, transactional_id: str) -> bool:
        """Whether a request must bring an unused producer id."""
        known = self.find(transactional_id)
        return known is None or known.is_exhausted

    def transactions(self) -> Iterator[Transaction]:
        """The durable state of every transactional id."""
        return (each.current for each in self._ids.values() if each.current is not None)

    def find(self, transactional_id: str) -> Transaction | None:
        each = self._ids.get(transactional_id)
        return None if each is None else each.current

    def check(self) -> None:
        """Raises InvariantViolation if an invariant of the coordinator does not hold."""
        for transactional_id, each in self._ids.items():
            for known in (each.current, each.pending):
                if known is not None:
                    require(
                        known.transactional_id == transactional_id, f"{transactional_id} has another's state"
                    )
            require(not each.waiting or each.is_changing, f"requests of {transactional_id} wait for nothing")
            if each.current is not None and each.current.state is TransactionState.ONGOING:
                require(bool(each.current.partitions), f"{transactional_id} is open without partitions")
            if each.current is not None and each.current.is_kept:
                is_open = each.current.state is TransactionState.ONGOING or each.current.state.is_prepared
                require(is_open, f"{transactional_id} keeps no transaction, but the epoch for it")


def _producer_reply(request: InitProducerId | EndTransaction, decided: Transaction) -> AfterAppend:
    """Reply with the producer id and epoch for the next transaction of the client."""

    def stored(turn: Turn, error: ErrorCode) -> None:
        if error != ErrorCode.NONE:
            response = ProducerResponse(error=response_error(error))
        else:
            producer_id, epoch = decided.client
            response = ProducerResponse(producer_id=producer_id, producer_epoch=epoch)
            if decided.state is TransactionState.ONGOING:
                response = replace(
                    response,
                    ongoing_producer_id=decided.producer_id,
                    ongoing_producer_epoch=decided.producer_epoch,
                )
        turn.reply(request.token, response)

    return stored


def _markers(transaction: Transaction) -> WriteMarkers:
    return WriteMarkers(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        commit=transaction.state is TransactionState.PREPARE_COMMIT,
        client_version=transaction.client_version,
        partitions=transaction.partitions,
    )
