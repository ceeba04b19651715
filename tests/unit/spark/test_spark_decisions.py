"""Decisions of streaming writes on a model of the coordinator: two drivers at once, lost tasks, late ones."""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tierlog.spark.live.produce import WriteFailed
from tierlog.spark.live.transactions import NO_DECISION, OPEN_STATE, BatchCommitter, Decision, Prepared

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> T:
    """The result of another thread, which has begun no task."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@dataclass
class Coordinator:
    """State and epoch by transactional id, and the stored decision."""

    ids: dict[str, tuple[str, int]] = field(default_factory=dict)
    decision: Decision = NO_DECISION

    def of(self, state: str) -> set[str]:
        return {name for name, (found, _) in self.ids.items() if found == state}


class ModelTransactions:
    """What `Transactions` does, without brokers. `before_end` and `before_begin` run once, before the first
    EndTxn and before the first InitProducerId of a task."""

    def __init__(self, coordinator: Coordinator, before_end: Callable[[], None] | None = None) -> None:
        self.coordinator = coordinator
        self._before_end = before_end
        self.before_begin: Callable[[], None] | None = None

    def begin(self, name: str, *, timeout_ms: int) -> Prepared:
        _, epoch = self.coordinator.ids.get(name, ("", 0))
        self.coordinator.ids[name] = "Empty", epoch + 1
        return Prepared(name, 1, epoch + 1)

    def begin_two_phase(self, name: str, found: Prepared | None) -> Prepared | None:
        hook, self.before_begin = self.before_begin, None
        if hook is not None:
            hook()
        state, epoch = self.coordinator.ids.get(name, ("", 0))
        expected = 0 if found is None else found.producer_epoch
        if state == "Empty" and epoch == expected + 1 and found is not None:
            return Prepared(name, 1, epoch)  # taken for a retry, as the coordinator does (KIP-360)
        return None if state == OPEN_STATE or epoch != expected else self.begin(name, timeout_ms=0)

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

    def tasks(self, batch_id: int, count: int) -> list[Prepared]:
        """Tasks that have written their rows, one after the other in this thread."""
        return [self.task(batch_id) for _ in range(count)]

    def task(self, batch_id: int) -> Prepared:
        begun = self.begin_task(batch_id)
        assert self._model.coordinator.ids[begun.transactional_id] == ("Empty", begun.producer_epoch)
        self._model.coordinator.ids[begun.transactional_id] = OPEN_STATE, begun.producer_epoch
        return begun


def test_driver_that_outlives_its_successors_start_aborts_nothing_of_it() -> None:
    coordinator = Coordinator()

    def successor() -> None:
        committer = ModelCommitter(coordinator)
        committer.commit(5, [])
        committer.decide(6, in_thread(lambda: committer.tasks(6, 3)))

    former = ModelCommitter(coordinator, before_end=successor)
    former.commit(5, former.tasks(5, 2))
    assert len(coordinator.of(OPEN_STATE)) == 3
    ModelCommitter(coordinator).commit(6, [])
    assert len(coordinator.of("CompleteCommit")) == 5


def test_transactions_of_lost_tasks_are_aborted_with_the_next_decision() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    lost = committer.tasks(1, 2)
    prepared = committer.tasks(1, 2)
    committer.commit(1, prepared)
    assert coordinator.of("CompleteAbort") == {each.transactional_id for each in lost}
    assert coordinator.of("CompleteCommit") == {each.transactional_id for each in prepared}


def test_batch_with_a_transaction_that_is_no_longer_open_is_not_decided() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    prepared = committer.tasks(1, 2)
    committer._model.end(prepared[1], commit=False)
    with pytest.raises(WriteFailed, match="no longer open"):
        committer.commit(1, prepared)
    assert coordinator.decision == NO_DECISION and not coordinator.of("CompleteCommit")


def test_one_transaction_that_cannot_be_aborted_does_not_keep_the_others() -> None:
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    prepared = committer.tasks(1, 3)
    committer._model.begin(prepared[0].transactional_id, timeout_ms=1)
    with pytest.warns(UserWarning, match="is Empty"):
        committer.abort(1, prepared)
    assert not coordinator.of(OPEN_STATE)


@pytest.mark.parametrize("decided", [False, True], ids=["prepared", "decided"])
def test_task_that_outlives_its_successor_leaves_the_successors_transaction(decided: bool) -> None:
    """Both are of one batch. The late one stands still between its look at the id and InitProducerId."""
    coordinator = Coordinator()
    late, driver = ModelCommitter(coordinator), ModelCommitter(coordinator)
    late.commit(1, [late.task(1)])  # the coordinator knows the first id of this thread
    successors: list[Prepared] = []

    def successor() -> None:
        successors.append(in_thread(lambda: driver.task(2)))
        if decided:
            driver.decide(2, successors)

    late._model.before_begin = successor
    begun = late.task(2)
    assert begun.transactional_id not in {each.transactional_id for each in successors}
    driver.commit(2, successors)
    assert successors[0].transactional_id in coordinator.of("CompleteCommit")


def test_two_tasks_that_run_at_once_have_no_id_in_common() -> None:
    """Not even before one of them has written: they would have one producer id and epoch."""
    coordinator = Coordinator()
    tasks = [ModelCommitter(coordinator) for _ in range(2)]
    for batch in (1, 2):
        begun = [tasks[0].begin_task(batch), in_thread(lambda batch=batch: tasks[1].begin_task(batch))]
        assert len({each.transactional_id for each in begun}) == 2


def test_driver_can_commit_a_batch_again_although_its_threads_have_gone_on() -> None:
    """Another task of the batch begins late, after the first commit. The driver dies before Spark has noted
    the batch, and the next one commits it again."""
    coordinator = Coordinator()
    committer = ModelCommitter(coordinator)
    prepared = committer.tasks(1, 2)
    committer.commit(1, prepared)
    committer.task(1)
    ModelCommitter(coordinator).commit(1, [])
    assert coordinator.of("CompleteCommit") == {each.transactional_id for each in prepared}


def test_thread_uses_its_ids_again_for_the_next_batch() -> None:
    committer = ModelCommitter(Coordinator())
    batches = []
    for batch in range(3):
        batches.append(committer.tasks(batch, 4))
        committer.commit(batch, batches[-1])
    assert len({each.transactional_id for prepared in batches for each in prepared}) == 4


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_has_ids_of_its_own() -> None:
    """As each Python worker of Spark is, of a process that may have loaded this module."""
    own = ModelCommitter(Coordinator()).begin_task(1).transactional_id
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, ModelCommitter(Coordinator()).begin_task(1).transactional_id.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as results:
        assert results.read().decode().rpartition("-")[0] != own.rpartition("-")[0]
    os.waitpid(child, 0)


def test_open_transactions_of_ids_in_the_former_form_are_found() -> None:
    """A query may continue from a checkpoint of an older version."""
    patterns: list[str] = []
    committer = ModelCommitter(Coordinator())
    committer._model.open_ids = lambda pattern: patterns.append(pattern) or []
    committer.commit(1, [])
    for found in ("query-1a2b3c4d-0-1-0", "query-0-1-0", committer.begin_task(2).transactional_id):
        assert re.fullmatch(patterns[0], found)
    for other in ("query-decision", "query2-1a2b3c4d-0-1-0"):
        assert not re.fullmatch(patterns[0], other)
