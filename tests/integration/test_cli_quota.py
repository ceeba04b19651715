"""`tierlog quota` against a running broker, each command as a process: output and exit codes."""

from collections.abc import Callable
from typing import Any

import pytest
from cli_inline import json_output, run

from tierlog.testing import TierlogBroker

Ask = Callable[..., Any]


@pytest.fixture
def ask(tierlog_session_broker: TierlogBroker) -> Ask:
    def ask(*words: str, code: int = 0) -> Any:
        documents = json_output("quota", *words, "--bootstrap", tierlog_session_broker.bootstrap, code=code)
        return documents[0] if documents else None

    return ask


@pytest.mark.slow
def test_quotas_are_set_listed_and_removed(ask: Ask) -> None:
    mine = ("--user", "cli-ada")
    both = (*mine, "--client-defaults")
    pair = {"client-id": None, "user": "cli-ada"}
    done = ask("set", *mine, "producer_byte_rate=1048576", "request_percentage=12.5")
    assert done == {
        "entity": {"user": "cli-ada"},
        "set": {"producer_byte_rate": 1048576, "request_percentage": 12.5},
        "changed": True,
    }
    ask("set", *both, "controller_mutation_rate=inf")
    assert ask("set", *mine, "producer_byte_rate=1", "--validate-only")["changed"] is False
    assert ask("list", *mine) == [
        {"entity": pair, "quotas": {"controller_mutation_rate": "inf"}},
        {
            "entity": {"user": "cli-ada"},
            "quotas": {"producer_byte_rate": 1048576, "request_percentage": 12.5},
        },
    ]
    removed = ask("remove", *mine, "request_percentage")
    assert removed == {"entity": {"user": "cli-ada"}, "removed": ["request_percentage"]}
    ask("remove", *mine)
    assert ask("list", *mine) == [{"entity": pair, "quotas": {"controller_mutation_rate": "inf"}}]
    ask("remove", *both)
    assert ask("list", *mine) == []


@pytest.mark.slow
def test_addresses_have_a_connection_rate_quota(ask: Ask) -> None:
    ask("set", "--ip", "127.0.0.77", "connection_creation_rate=1000")
    found = {"entity": {"ip": "127.0.0.77"}, "quotas": {"connection_creation_rate": 1000}}
    assert found in ask("list")
    ask("remove", "--ip", "127.0.0.77")
    assert ask("list", "--ip", "127.0.0.77") == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("set", "producer_byte_rate=1"), 2),
        (("set", "--user", "cli-bob", "producer_byte_rate"), 2),
        (("set", "--user", "cli-bob", "producer_byte_rate=much"), 2),
        (("set", "--user", "cli-bob", "--user-defaults", "producer_byte_rate=1"), 2),
        (("set", "--user", "cli-bob", "--ip-defaults", "connection_creation_rate=1"), 2),
        (("set", "--user", "cli-bob", "producer_byte_rate=-1"), 1),
        (("set", "--user", "cli-bob", "nothing=1"), 2),
        (("remove", "--user", "cli-bob"), 4),
        (("remove", "--user", "cli-bob", "producer_byte_rate"), 4),
    ],
)
def test_failed_quota_commands_have_an_exit_code(ask: Ask, words: tuple[str, ...], code: int) -> None:
    assert ask(*words, code=code) is None


def test_quotas_are_printed_as_a_table(tierlog_session_broker: TierlogBroker) -> None:
    where = ("--bootstrap", tierlog_session_broker.bootstrap)
    assert run("quota", "set", "--client-id", "cli-app", "consumer_byte_rate=2000", *where).returncode == 0
    shown = run("quota", "list", "--client-id", "cli-app", *where).stdout
    assert all(word in shown for word in ("1 quota", "client-id cli-app", "consumer_byte_rate", "2,000"))
    assert run("quota", "remove", "--client-id", "cli-app", *where).returncode == 0
