"""Completion of names in a shell: those of the cluster and of settings; nothing at all on failure."""

import threading
from pathlib import Path

import pytest
from cli_inline import call

from tierlog.cli import completions
from tierlog.testing import TierlogBroker


@pytest.fixture(autouse=True)
def no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def complete(*words: str) -> tuple[list[str], str]:
    """The words that a shell gets at the end of a line, and the text that would appear on the screen."""
    line = " ".join(("tierlog", *words))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completions, "TIME_MAX_S", 30.0)  # the machine of the tests may be busy
        patch.setenv("_TIERLOG_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words)))
        ended = call()
    return ended.stdout.split(), ended.stderr


def test_names_of_the_cluster_are_completed(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    for name in ("completed-a", "completed-b", "other-a"):
        assert call("topic", "create", name, "-p", "1", *at).code == 0
    assert call("group", "seek", "completed-readers", "completed-a", "0", "0", *at).code == 0
    assert complete("topic", "describe", *at, "compl") == (["completed-a", "completed-b"], "")
    assert complete("group", "describe", *at, "compl") == (["completed-readers"], "")


@pytest.mark.parametrize(
    "name",
    [
        "a;b",
        "a b",
        "a$(b)",
        "a\\$(b)",
        "a`b`",
        "a'b",
        'a"b',
        "a\nb",
        "a\x1b[2J",
        "a*",
        "a>b",
        "~a",
        "a\u202eb",
    ],
)
def test_names_that_a_shell_would_interpret_are_not_completed(name: str) -> None:
    """Any client may choose the id of a group."""
    assert completions._bounded(lambda: [name, "a-b"], "") == ["a-b"]


def test_names_are_those_of_the_profile_that_is_typed(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    assert call("topic", "create", "typed-a", "-p", "1", *at).code == 0
    assert call("profile", "create", "other", "--bootstrap", "127.0.0.1:1", "--use").code == 0
    assert call("profile", "create", "this", *at).code == 0
    assert complete("topic", "describe", "typed") == ([], "")
    assert complete("topic", "describe", "--profile", "this", "typed") == (["typed-a"], "")


def test_settings_are_completed_without_a_cluster() -> None:
    found, _ = complete("cluster", "config", "get", "log.retention.")
    assert found == ["log.retention.bytes", "log.retention.ms"]
    assert "retention.ms" in complete("topic", "alter", "t", "--config", "retention.")[0]


def test_a_cluster_that_does_not_respond_is_silent() -> None:
    assert complete("topic", "describe", "--bootstrap", "127.0.0.1:1", "x") == ([], "")


def test_a_cluster_that_is_too_slow_has_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "TIME_MAX_S", 0.0)
    blocked = threading.Event()
    try:
        assert completions._bounded(lambda: [str(blocked.wait(30))], "") == []
    finally:
        blocked.set()
