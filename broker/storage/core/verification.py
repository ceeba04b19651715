"""Verification of transactions (KIP-890): which batches may open a transaction in a partition.

Before the first batch of a transaction is appended, the transaction coordinator must confirm that the
partition belongs to the transaction. A transaction of which the coordinator does not know would never get a
marker, and would hold the last stable offset forever. A verification begins before the coordinator is asked,
and its guard is passed on to the append. If the transaction's marker is appended in between, the guard is no
longer valid, and the late batch cannot open a transaction again.

A verification also remembers the lowest sequence seen. If a batch fails before it is verified, the producer's
later batches have to wait for its retry.

Owned by the producer state of the partition, which ends a verification when a transactional batch or a marker
of the producer is appended. Only a leader uses it; nothing of it is stored."""

VERIFICATIONS_MAX = 10_000
"""Verifications kept in a partition, about 2 MB. A client can begin many with invented producer ids. Above
the limit the oldest is dropped: its batch is refused with INVALID_TXN_STATE, as it would be after a
restart."""


class VerificationGuard:
    """Identifies one verification. Guards are compared by identity."""

    __slots__ = ()


class Verification:
    __slots__ = ("age_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, epoch: int, sequence: int, supports_epoch_bump: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        """Whether the producer uses transaction protocol v2: each of its transactions has an epoch of its own
        and starts at sequence 0."""
        self.age_ms = -1  # before the first call of `Verifications.expire`


class Verifications:
    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: dict[int, Verification] = {}  # by producer id, the most recently used last

    def __len__(self) -> int:
        return len(self._pending)

    def begin(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """Begin a verification, or join the one that the producer has begun in this epoch."""
        pending = self._pending.pop(producer_id, None)
        if pending is None or epoch > pending.epoch:
            pending = Verification(epoch, sequence, supports_epoch_bump)
        elif epoch == pending.epoch:
            pending.lowest_sequence = min(pending.lowest_sequence, sequence)
        self._pending[producer_id] = pending
        if len(self._pending) > VERIFICATIONS_MAX:
            del self._pending[next(iter(self._pending))]
        return pending.guard

    def get(self, producer_id: int) -> Verification | None:
        return self._pending.get(producer_id)

    def is_valid(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        pending = self._pending.get(producer_id)
        return pending is not None and pending.guard is guard

    def end(self, producer_id: int) -> None:
        """Invalidate the producer's guard: its transaction is open in the log now, or has ended."""
        self._pending.pop(producer_id, None)

    def expire(self, passed_ms: int, after_ms: int) -> None:
        """Drop verifications which began `after_ms` ago and led to no append."""
        for pending in self._pending.values():
            pending.age_ms = 0 if pending.age_ms < 0 else pending.age_ms + passed_ms
        self._pending = {id_: one for id_, one in self._pending.items() if one.age_ms < after_ms}
