"""Decisions of streaming writes on a model of the coordinator: two drivers at once, lost tasks, late ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tierlog.spark.live.produce import WriteFailed
from tierlog.spark.live.transactions import NO_DECISION, OPEN_STATE, BatchCommitter, Decision, Prepared


@dataclass
class Coordinator:
    """State and epoch by transactional id, and the stored decision."""

    ids: dict[str, tuple[str, int]] = field(default_factory=dict)
    decision: Decision = NO_DECISION

    def of(self, state: str) -> set[str]:
        return {name for name, (found, _) in self.ids.items() if found == state}


class ModelTransactions:
    """What `Transactions` does, without brokers. `before_end` runs once, before the first EndTxn."""

    def __init__(self, coordinator: Coordinator, before_end: Callable[[], None] | None = None) -> None:
        self.coordinator = coordinator
        self._before_end = before_end

    def begin(self, name: str, *, timeout_ms: int, two_phase: bool = False) -> Prepared:
        _, epoch = self.coordinator.ids.get(name, ("", 0))
        self.coordinator.ids[name] = "Empty", epoch + 1
        return Prepared(name, 1, epoch + 1)

    def state(self, name: str) -> tuple[str, Prepared] | None:
        found = self.coordinator.ids.get(name)
        return found and (found[0], Prepared(name, 1, found[1]))

    def open_ids(self, pattern: str) -> list[str]:
        return sorted(self.coordinator.of(OPEN_STATE))

    def end(self, transaction: Prepared, *, commit: bool) -> None:
        hook, self._before_end = self._before_end, None
        if hook is not None:
            hook()
        state, epoch = self.coordinator.ids[transaction.transactional_id]
        ended = "CompleteCommit" if commit else "CompleteAbort"
        if (state, epoch) == (ended, transaction.producer_epoch + 1):
            return
        if (state, epoch) != (OPEN_STATE, transaction.producer_epoch):
            raise WriteFailed(f"{transaction.transactional_id} is {state}")
        self.coordinator.ids[transaction.transactional_id] = ended, epoch + 1


class ModelCommitter(BatchCommitter):
    def __init__(self, coordinator: Coordinator, before_end: Callable[[], None] | None = None) -> None:
        self._model: Any = ModelTransactions(coordinator, before_end)
        super().__init__(self._model, "query")

    def decision(self) -> Decision:
        return self._model.coordinator.decision

    def _store(self, fence: Prepared, decision: Decision) -> None:
        self._model.coordinator.decision = decision

    def tasks(self, run: str, partitions: Sequence[int], attempt: int = 0) -> list[Prepared]:
        """Tasks that have written their rows."""
        begun = [self.begin_task(run, partition, attempt) for partition in partitions]
        for each in begun:
            self._model.coordinator.ids[each.transactional_id] = OPEN_STATE, each.producer_epoch
        return begun


def test_driver_that_outlives_its_successors_start_aborts_nothing_of_it() -> None:
    coordinator = Coordinator()

    def successor() -> None:
        committer = ModelCommitter(coordinator)
        committer.commit(5, [])
        committer.decide(6, committer.tasks("second", [0, 1, 2]))

    former = ModelCommitter(coordinator, before_end=successor)
    former.commit(5, former.tasks("first", [0, 1]))
    assert len(coordinator.of(OPEN_STATE)) == 3
    ModelCommitter(coordinator).commit(6, [])
    assert len(coordinator.of("CompleteCommit")) == 5


def test_transactions_of_lost_tasks_are_aborted_with_the_next_decision() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    lost = committer.tasks("first", [0, 1])
    prepared = committer.tasks("second", [0, 1])
    committer.commit(1, prepared)
    assert coordinator.of("CompleteAbort") == {each.transactional_id for each in lost}
    assert coordinator.of("CompleteCommit") == {each.transactional_id for each in prepared}


def test_batch_with_a_transaction_that_is_no_longer_open_is_not_decided() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    prepared = committer.tasks("first", [0, 1])
    committer._model.end(prepared[1], commit=False)
    with pytest.raises(WriteFailed, match="no longer open"):
        committer.commit(1, prepared)
    assert coordinator.decision == NO_DECISION and not coordinator.of("CompleteCommit")


def test_one_transaction_that_cannot_be_aborted_does_not_keep_the_others() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    prepared = committer.tasks("first", [0, 1, 2])
    committer._model.begin(prepared[0].transactional_id, timeout_ms=1)
    with pytest.warns(UserWarning, match="is Empty"):
        committer.abort(1, prepared)
    assert not coordinator.of(OPEN_STATE)
