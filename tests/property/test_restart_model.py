"""A log that is opened from its restart point equals one that is read from its beginning, after random
appends, transactions, rolls, truncations, checkpoints and kills between any two file operations.
"""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from power_loss import Killed, PowerLoss
from restarted_log import NOW, append, checkpoint, end_transaction, open_log, restart_point, state_of

from tierlog.base.files import OsFiles
from tierlog.broker.storage.log import PartitionLog
from tierlog.config.topic import TopicConfig

PRODUCERS = (3, 4)

Operation = tuple[Any, ...]
CHECKPOINT = st.tuples(st.just("checkpoint"))
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 30), st.sampled_from([10, 5_000, 20_000])),
    st.tuples(st.just("produce"), st.integers(1, 4), st.sampled_from(PRODUCERS), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    *[CHECKPOINT] * 4,
    st.tuples(st.just("flush")),
    st.tuples(st.just("roll")),
    st.tuples(st.just("truncate"), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.integers(0, 5)),
)
LIVES = st.lists(
    st.tuples(
        st.lists(OPERATIONS, min_size=5, max_size=25),
        st.one_of(st.just(10_000), st.integers(20, 200)),
        st.integers(0, 80),
    ),
    min_size=2,
    max_size=4,
)


class Life:
    """A process that uses the log. `checkpointed`: the recovery point in the checkpoint file."""

    def __init__(self, log: PartitionLog, epoch: int, checkpointed: int) -> None:
        self.log, self.epoch, self.checkpointed = log, epoch, checkpointed

    def do(self, operation: Operation) -> None:
        log = self.log
        match operation:
            case "append", batches, after_ms, size:
                for _ in range(batches):
                    append(log, self.epoch, after_ms=after_ms, value=bytes(size))
            case "produce", batches, producer_id, transactional:
                for _ in range(batches):
                    self._produce(producer_id, transactional)
            case "end", producer_id, commit:
                if log.producers.get(producer_id) is not None:
                    end_transaction(log, self.epoch, producer_id, commit=commit)
            case ("checkpoint",):
                self.checkpointed = checkpoint(log)
                log.flusher.on_checkpointed(log.flusher.truncations)
            case ("flush",):
                log.flush()
            case ("roll",):
                log.roll(NOW)
            case "truncate", offsets, lowered:
                self._truncate(log.log_end_offset - offsets, lowered)
            case "delete", offsets:
                log.delete_local_before(log.log_end_offset - offsets, NOW)
            case "restart", offsets:
                self._restart(log.log_end_offset + offsets - 2)

    def _produce(self, producer_id: int, transactional: bool) -> None:
        known = self.log.producers.get(producer_id)
        is_open = known is not None and known.transaction_first_offset >= 0
        last = known.batches[-1].last_sequence if known is not None and known.batches else -1
        append(
            self.log,
            self.epoch,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=last + 1,
            transactional=transactional or is_open,
        )

    def _truncate(self, offset: int, lowered: bool) -> None:
        """As a follower does. The checkpoint is lowered before it fetches; one that becomes leader may be
        killed before that."""
        self.log.truncate_to(max(offset, self.log.log_start_offset), NOW)
        self._after_truncation(lowered)

    def _restart(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(max(offset, 0), NOW)
        self._after_truncation(lowered=True)

    def _after_truncation(self, lowered: bool) -> None:
        self.epoch += 1  # another leader
        if lowered:
            self.checkpointed = min(self.checkpointed, self.log.recovery_point)
            self.log.flusher.on_checkpointed(self.log.flusher.truncations)


def tear(directory: Path, count: int) -> None:
    """A batch that the killed process had begun to write."""
    path = max(directory.glob("*.log"), default=None)
    if path is not None and count and path.stat().st_size > count:
        content = path.read_bytes()
        path.write_bytes(content + content[:count])


@given(interval=st.sampled_from([0, 4096, 30_000]), lives=LIVES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_log_opened_from_its_restart_point_equals_one_that_is_read_whole(
    interval: int, lives: list[tuple[list[Operation], int, int]]
) -> None:
    config = TopicConfig(index_interval_bytes=interval, segment_bytes=100_000, file_delete_delay_ms=0)
    with tempfile.TemporaryDirectory() as home:
        run(Path(home), config, lives)


def run(home: Path, config: TopicConfig, lives: list[tuple[list[Operation], int, int]]) -> None:
    directory, copy = home / "t-0", home / "whole"
    directory.mkdir()
    epoch, checkpointed = 0, 0
    for operations, left, torn in lives:
        files = PowerLoss(directory, left)
        with suppress(Killed):
            log = open_log(directory, config, files, checkpointed, same_boot=True)
            life = Life(log, epoch, checkpointed)
            with suppress(Killed):
                for operation in operations:
                    life.do(operation)
                    log.check()
            epoch, checkpointed = life.epoch + 1, life.checkpointed
            log.close(clean=False)
        tear(directory, torn)
        states = []
        for same_boot in (False, True):
            shutil.copytree(directory, copy)
            again = open_log(copy, config, OsFiles(), checkpointed, same_boot=same_boot)
            again.check()
            states.append((state_of(again), again.was_damaged))
            assert same_boot or restart_point(copy) is None
            again.close(clean=False)
            shutil.rmtree(copy)
        assert states[0] == states[1]
