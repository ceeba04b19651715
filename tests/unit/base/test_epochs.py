"""Leader epoch cache: end offsets, truncation, and the checkpoint file's text."""

import pytest

from tierlog.base.leader_epochs import UNKNOWN_END, EpochEnd, LeaderEpochs, MalformedEpochs


@pytest.fixture
def epochs() -> LeaderEpochs:
    return LeaderEpochs([(2, 10), (4, 20), (7, 30)])


@pytest.mark.parametrize(
    ("requested", "end"),
    [
        (-1, UNKNOWN_END),
        (1, EpochEnd(1, 10)),
        (2, EpochEnd(2, 20)),
        (3, EpochEnd(2, 20)),
        (4, EpochEnd(4, 30)),
        (6, EpochEnd(4, 30)),
        (7, EpochEnd(7, 99)),
        (8, UNKNOWN_END),
    ],
)
def test_end_of_an_epoch(epochs: LeaderEpochs, requested: int, end: EpochEnd) -> None:
    assert epochs.end_offset_for(requested, 99) == end


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 4), (1000, 7)])
def test_epoch_of_an_offset(epochs: LeaderEpochs, offset: int, epoch: int) -> None:
    assert epochs.epoch_of(offset) == epoch


def test_assign(epochs: LeaderEpochs) -> None:
    assert not epochs.assign(7, 40)
    assert epochs.assign(8, 40)
    assert epochs.assign(9, 40)  # epoch 8 wrote nothing
    assert epochs.entries[-1] == (9, 40) and (8, 40) not in epochs.entries
    epochs.check()


def test_covering(epochs: LeaderEpochs) -> None:
    assert epochs.covering(15, 30) == ((2, 10), (4, 20))
    assert epochs.covering(20, 21) == ((4, 20),)
    assert epochs.covering(0, 11) == ((2, 10),)


def test_truncation(epochs: LeaderEpochs) -> None:
    assert epochs.truncate_from_end(30) and epochs.entries == ((2, 10), (4, 20))
    assert not epochs.truncate_from_end(30)
    assert epochs.truncate_from_start(15) and epochs.entries == ((2, 15), (4, 20))
    assert epochs.truncate_from_start(25) and epochs.entries == ((4, 25),)
    assert not epochs.truncate_from_start(25)
    assert not epochs.truncate_from_start(5)


def test_text(epochs: LeaderEpochs) -> None:
    assert epochs.encode() == b"0\n3\n2 10\n4 20\n7 30\n"
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries
    assert LeaderEpochs.decode(b"0\n0\n").entries == ()


@pytest.mark.parametrize(
    "text", [b"", b"1\n0\n", b"0\n2\n1 1\n", b"0\n1\n1\n", b"0\n1\nx 1\n", b"0\n2\n1 5\n2 5\n", b"\xff\n"]
)
def test_a_malformed_text_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedEpochs):
        LeaderEpochs.decode(text)


def test_truncated_checkpoint_is_refused(epochs: LeaderEpochs) -> None:
    """Also within its last number: it is written without an fsync."""
    for end in range(len(epochs.encode())):
        with pytest.raises(MalformedEpochs):
            LeaderEpochs.decode(epochs.encode()[:end])


def test_repaired_batches_restore_a_missing_start_only() -> None:
    epochs = LeaderEpochs([(2, 9)])
    assert epochs.restore([(0, 2), (0, 3), (1, 5), (2, 7)])
    assert epochs.entries == ((0, 2), (1, 5), (2, 7))
    assert not epochs.restore([(0, 2), (1, 6), (2, 8)])
    assert not LeaderEpochs([(0, 4)]).restore([(1, 1)])
    assert LeaderEpochs().restore([(3, 1)])


def test_record_before_the_first_known_epoch_is_of_an_earlier_one() -> None:
    """A start after a crash may take a flipped epoch of a log's first batch for the right one, and the next
    leader removes it from the cache: the batch must count as damaged (simulator seed 3071)."""
    epochs = LeaderEpochs([(2, 4), (3, 35)])
    assert epochs.allows(0, 3) and epochs.allows(1, 3)
    assert epochs.allows(2, 3), "the log start may have moved within the epoch"
    assert not epochs.allows(3, 3)
    assert not epochs.allows(65536, 3)
    assert LeaderEpochs().allows(65536, 3)
