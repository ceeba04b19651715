"""Staggered attempts: the first server that responds is used, and all are named if none does."""

import threading

import pytest

from tierlog.client import racing
from tierlog.client.racing import NoneResponded, first_to_respond


def test_silent_server_is_not_waited_for_and_its_late_result_is_discarded() -> None:
    release, discarded = threading.Event(), threading.Event()

    def attempt(server: str) -> str:
        if server == "silent":
            release.wait()
        return server

    def discard(server: str) -> None:
        assert server == "silent"
        discarded.set()

    assert first_to_respond(attempt, ["silent", "live"], discard=discard) == ("live", "live")
    release.set()
    assert discarded.wait(10)


@pytest.fixture
def no_stagger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has an hour before the next one is tried."""
    monkeypatch.setattr(racing, "STAGGER_S", 3600.0)
    monkeypatch.setattr(racing, "SPREAD_MAX_S", 72_000.0)


@pytest.mark.usefixtures("no_stagger")
def test_next_server_is_tried_at_once_after_a_failure() -> None:
    def attempt(server: str) -> str:
        if server != "live":
            raise ConnectionRefusedError(server)
        return server

    assert first_to_respond(attempt, ["a", "b", "live"]) == ("live", "live")


def test_all_failures_are_named_in_the_order_of_the_servers() -> None:
    later = threading.Event()

    def attempt(server: str) -> None:
        if server == "a":
            later.wait()
        later.set()
        raise ConnectionError(f"{server} is down")

    with pytest.raises(NoneResponded, match=r"a: a is down; b: b is down"):
        first_to_respond(attempt, ["a", "b"])


@pytest.mark.usefixtures("no_stagger")
def test_final_failure_is_raised_and_no_other_server_is_tried() -> None:
    tried = []

    def attempt(server: str) -> None:
        tried.append(server)
        raise PermissionError(server)

    with pytest.raises(PermissionError, match="a"):
        first_to_respond(attempt, ["a", "b", "c"], final=(PermissionError,))
    assert tried == ["a"]


@pytest.mark.usefixtures("no_stagger")
def test_first_server_wins_while_it_responds() -> None:
    assert first_to_respond(lambda server: server, [1, 2, 3]) == (1, 1)
