"""Batch continuity: which headers may follow each other, and which of two contradicting ones is wrong."""

import pytest

from tierlog.base.leader_epochs import LeaderEpochs
from tierlog.broker.storage.core.continuity import HeaderRules, consistent_prefix
from tierlog.records.batch import BatchHeader, read_header
from tierlog.records.writer import NewRecord, encode_batch

PLAIN = read_header(encode_batch([NewRecord(1, None, b"v")] * 10))
NOTHING = LeaderEpochs()
KNOWN = LeaderEpochs([(3, 0), (5, 20)])


def batch(base_offset: int, epoch: int) -> BatchHeader:
    """A batch of ten records."""
    return PLAIN._replace(base_offset=base_offset, leader_epoch=epoch)


def taken(rules: HeaderRules, *batches: tuple[int, int]) -> int:
    """Number of accepted batches, given as (base offset, leader epoch)."""
    return len(list(consistent_prefix(((None, batch(*one)) for one in batches), batches[0][0], rules)))


def test_contiguous_batches_are_accepted() -> None:
    for epochs in (KNOWN, NOTHING):
        rules = HeaderRules(gaps=False, epochs=epochs, end_offset=40)
        assert taken(rules, (0, 3), (10, 3), (20, 5), (30, 5)) == 4
    assert taken(HeaderRules(gaps=True, epochs=KNOWN), (0, 3), (20, 5), (100, 5)) == 3
    assert taken(HeaderRules(gaps=False, epochs=KNOWN), (0, -1), (10, 3)) == 2, "one without an epoch"


@pytest.mark.parametrize("wrong", [1 << 62, (1 << 20) + 10, 8, 11])
def test_batches_end_before_a_wrong_offset(wrong: int) -> None:
    rules = HeaderRules(gaps=False, epochs=KNOWN)
    assert taken(rules, (0, 3), (wrong, 3), (20, 5)) == 1


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        (((0, 3), ((1 << 20) + 10, 3), (20, 3), (30, 3)), 1),  # the second contradicts the batches after it
        (((0, 3), (40, 3), (35, 3), (50, 3)), 1),
        (((0, 3), (40, 3), (2, 3), (60, 3)), 2),  # the third contradicts all others
        (((0, 3), (10, 3), (60, 3)), 2),  # beyond the end
    ],
)
def test_gap_in_a_compacted_log_is_accepted_if_the_next_batch_agrees(
    batches: tuple[tuple[int, int], ...], count: int
) -> None:
    assert taken(HeaderRules(gaps=True, epochs=NOTHING, end_offset=60), *batches) == count


@pytest.mark.parametrize("wrong", [1 << 25, 4, 2, -7, -(1 << 31)])
def test_leader_epoch_must_match_the_epoch_cache(wrong: int) -> None:
    assert taken(HeaderRules(gaps=False, epochs=KNOWN), (0, 3), (10, wrong), (20, 5)) == 1


@pytest.mark.parametrize(
    ("epochs", "count"),
    [
        ((3, 1 << 25, 3, 3), 1),
        ((3, 4, 3, 5), 1),
        ((3, 3, 5, 4), 2),  # one of the last two is wrong: neither is accepted
        ((3, 5, 5, 3), 3),  # two agree, so the last one is wrong
        ((3, 3, 3, 1 << 25), 4),  # no later batch contradicts it
    ],
)
def test_unknown_leader_epoch_is_accepted_unless_the_next_batch_contradicts(
    epochs: tuple[int, ...], count: int
) -> None:
    batches = [(10 * number, epoch) for number, epoch in enumerate(epochs)]
    assert taken(HeaderRules(gaps=False, epochs=KNOWN, epochs_end=5), *batches) == count
