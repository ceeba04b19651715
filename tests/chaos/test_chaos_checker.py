"""The history checker reports exactly the violation in each hand-written bad history."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from havoc.anomalies import Kind
from havoc.checker import Verdict, check
from havoc.history import FINAL, Acked, AnyEvent, Ended, Read, Recorder, Sent, load, parse, value_of

HISTORIES = Path(__file__).parent / "histories"

BAD: dict[str, dict[Kind, int]] = {
    "lost": {Kind.LOST: 1},
    "lost-below-others": {Kind.LOST: 1, Kind.INCONSISTENT: 1},
    "doubled": {Kind.DOUBLED: 1},
    "reordered": {Kind.REORDERED: 1},
    "inconsistent-acknowledged": {Kind.INCONSISTENT: 1},
    "inconsistent-read": {Kind.INCONSISTENT: 2},
    "unsent": {Kind.UNSENT: 2},
    "unsent-to-this-partition": {Kind.UNSENT: 1},
    "vanished": {Kind.VANISHED: 1},
    "refused": {Kind.REFUSED: 1},
    "skipped": {Kind.SKIPPED: 2},
    "skipped-by-the-whole-group": {Kind.SKIPPED: 1},
    "backward": {Kind.BACKWARD: 1},
    "uncommitted": {Kind.UNCOMMITTED: 1},
    "broken": {Kind.BROKEN: 1},
    "torn": {Kind.TORN: 1},
    "lost-transaction": {Kind.LOST: 1},
    "aborted-in-the-log": {Kind.ABORTED: 1},
    "aborted-read": {Kind.ABORTED: 1},
    "reprocessed": {Kind.REPROCESSED: 1},
    "lost-offset-commit": {Kind.TORN: 1},
    "unprocessed": {Kind.SKIPPED: 1},
    "cyclic": {Kind.CYCLIC: 1},
}


def verdict_on(name: str) -> Verdict:
    return check(load(HISTORIES / f"{name}.jsonl"), min_acknowledged=1)


def found(verdict: Verdict) -> dict[str, int]:
    return {kind: count for kind, count in verdict.counts().items() if count}


def test_a_good_history_passes() -> None:
    """A record of unknown fate may turn up, and a group may continue with another member."""
    verdict = verdict_on("good")
    assert verdict.passed, verdict
    assert (verdict.acknowledged, verdict.read) == (2, 3)


def test_a_good_history_of_transactions_passes() -> None:
    """Markers and aborted records leave gaps, and a transaction of unknown fate may be committed."""
    verdict = verdict_on("good-transactions")
    assert verdict.passed, verdict
    assert (verdict.committed, verdict.read) == (1, 5)


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_history_is_flagged_with_its_anomaly(name: str) -> None:
    verdict = verdict_on(name)
    assert found(verdict) == BAD[name], verdict.anomalies
    assert not verdict.passed


def test_every_kind_of_anomaly_has_a_bad_history() -> None:
    of_copies = {Kind.DIFFERENT, Kind.DAMAGED}  # test_history_audit.py
    assert {kind for kinds in BAD.values() for kind in kinds} == set(Kind) - of_copies
    assert {path.stem for path in HISTORIES.iterdir()} == {*BAD, "good", "good-transactions"}


# --- histories that prove nothing


def healthy(count: int) -> list[AnyEvent]:
    values = [(number, value_of("p0", 0, number)) for number in range(count)]
    return [
        *(Sent(0.0, "p0", 0, number) for number, _ in values),
        *(Acked(0.1, "p0", 0, number, number) for number, _ in values),
        Read(0.2, "assigned/0", 0, tuple(values)),
        Ended(0.3, 0, count),
        Read(0.4, FINAL, 0, tuple(values)),
    ]


def without(history: Iterable[AnyEvent], kind: type, reader: str | None = None) -> list[AnyEvent]:
    return [
        event
        for event in history
        if not (isinstance(event, kind) and (reader is None or getattr(event, "reader", None) == reader))
    ]


def test_a_whole_history_is_valid() -> None:
    assert check(healthy(1000)).passed


def test_history_with_too_few_operations_is_invalid() -> None:
    verdict = check(healthy(999))
    assert not verdict.anomalies and not verdict.passed
    assert verdict.invalid == ("999 records were acknowledged, fewer than 1000",)


def test_an_empty_history_is_invalid() -> None:
    assert not check([]).passed


def test_history_without_reads_is_invalid() -> None:
    verdict = check(without(healthy(1000), Read, "assigned/0"))
    assert not verdict.passed and "consumers read 0 of 1000" in verdict.invalid[0]


def test_history_without_a_complete_final_reading_is_invalid() -> None:
    unread = check(without(healthy(1000), Ended))
    assert unread.invalid == ("partition 0 was not read in the end",)
    history = [*without(healthy(1000), Ended), Ended(0.3, 0, 1001)]
    assert check(history).invalid == ("only 1000 of 1001 offsets of partition 0 were read in the end",)


def test_recorded_history_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl")
    for event in healthy(3):
        recorder.write(event)
    recorder.close()
    assert list(load(tmp_path / "history.jsonl")) == healthy(3)
    assert list(parse(["", "\n"])) == []
