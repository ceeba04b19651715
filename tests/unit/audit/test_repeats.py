"""Repeated denials become counts, and a stranger cannot cause more than a bounded number of entries."""

from typing import Any

from tierlog.broker.audit.entries import DENIED_ACCESS, DENIED_LOGIN
from tierlog.broker.audit.repeats import CLIENTS_MAX, KEYS_MAX, KEYS_PER_CLIENT_MAX, Repeats

WINDOW_MS = 60_000


def denial(client: str = "10.0.0.1", name: str = "flights", **more: Any) -> dict[str, Any]:
    return {"event": DENIED_ACCESS, "client": client, "resource_name": name, **more}


def test_first_denial_is_written_at_once_and_later_ones_as_a_count() -> None:
    repeats = Repeats(WINDOW_MS)
    assert repeats.add(denial(), 0) == denial() | {"count": 1}
    assert [repeats.add(denial(), now) for now in range(1, 1001)] == [None] * 1000
    assert repeats.due(WINDOW_MS - 1) == []
    assert repeats.due(WINDOW_MS) == [denial() | {"count": 1000, "first": "1970-01-01T00:00:00.000Z"}]
    assert repeats.add(denial(), WINDOW_MS) == denial() | {"count": 1}


def test_denial_without_repeats_has_one_entry() -> None:
    repeats = Repeats(WINDOW_MS)
    repeats.add(denial(), 0)
    assert repeats.due(WINDOW_MS) == repeats.all() == []


def test_names_that_clients_give_themselves_do_not_distinguish_denials() -> None:
    repeats = Repeats(WINDOW_MS)
    assert repeats.add(denial(client_id="one"), 0) is not None
    assert repeats.add(denial(client_id="two"), 0) is None


def test_client_that_varies_names_gets_one_collapsed_count() -> None:
    repeats = Repeats(WINDOW_MS)
    written = [repeats.add(denial(name=str(number)), 0) for number in range(10_000)]
    entries = [entry for entry in written if entry is not None]
    assert len(entries) == KEYS_PER_CLIENT_MAX + 1
    collapsed = {"event": DENIED_ACCESS, "client": "10.0.0.1", "collapsed": "client"}
    assert entries[-1] == collapsed | {"count": 1}
    assert repeats.add(denial("10.0.0.2"), 0) is not None  # another client is not affected
    [ended] = repeats.due(WINDOW_MS)
    assert ended.items() >= (collapsed | {"count": 10_000 - KEYS_PER_CLIENT_MAX - 1}).items()


def test_many_clients_with_many_names_have_a_bounded_number_of_entries() -> None:
    repeats = Repeats(WINDOW_MS)
    count = 0
    for client in range(1000):
        for number in range(KEYS_PER_CLIENT_MAX + 5):
            for event in (DENIED_ACCESS, DENIED_LOGIN):
                entry = denial(f"client-{client}", str(number)) | {"event": event}
                count += repeats.add(entry, 0) is not None
    count += len(repeats.due(WINDOW_MS))
    assert count <= 2 * (KEYS_MAX + 2 * CLIENTS_MAX + 2)
    assert repeats.add(denial(), WINDOW_MS) is not None  # all windows have ended
    assert len(repeats._repeated) == 1


def test_clock_that_jumps_back_ends_windows() -> None:
    repeats = Repeats(WINDOW_MS)
    repeats.add(denial(), 1_000_000)
    repeats.add(denial(), 1_000_000)
    assert [entry["count"] for entry in repeats.due(0)] == [1]
