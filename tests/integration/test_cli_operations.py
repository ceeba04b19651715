"""`tierlog broker`, `partition`, `quorum` and `cluster health`, each a process, against one broker."""

from pathlib import Path
from typing import Any

import pytest
from cli_inline import json_output, run

from tierlog.testing import TierlogBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(tierlog_session_broker: TierlogBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # no cluster of the user's
    return tierlog_session_broker.admin_url


def ask(admin: str, *words: str, code: int = 0) -> Any:
    return json_output(*words, "--admin", admin, code=code)[0]


def test_single_node_is_a_healthy_cluster(admin: str) -> None:
    health = ask(admin, "cluster", "health")
    assert (health["status"], health["problems"]) == ("healthy", [])
    brokers = ask(admin, "broker", "list")
    assert [(one["fenced"], one["stopping"], one["out_of_sync"]) for one in brokers] == [(False, False, 0)]
    quorum = ask(admin, "quorum", "status")
    assert (quorum["role"], len(quorum["voters"])) == ("leader", 1)


def test_numbers_and_nouns_agree(admin: str, tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    assert "1 node responds" in run("cluster", "health", "--admin", admin).stdout
    assert run("topic", "create", "cli-one", "--partitions", "1", *at).returncode == 0
    assert "1 partition " in run("partition", "list", "cli-one", "--admin", admin).stdout
    assert "now has 2 partitions" in run("topic", "add-partitions", "cli-one", "2", *at).stderr


def test_elections_and_partition_list(admin: str, tierlog_session_broker: TierlogBroker) -> None:
    words = ("topic", "create", "cli-operations", "--partitions", "2")
    assert run(*words, "--bootstrap", tierlog_session_broker.bootstrap).returncode == 0
    rows = ask(admin, "partition", "list", "cli-operations")
    assert [row["partition"] for row in rows] == [0, 1]
    assert all(row["in_sync"] == row["replicas"] == [row["leader"]] for row in rows)
    assert ask(admin, "partition", "list", "--under-replicated") == []
    elected = ask(admin, "partition", "elect", "cli-operations")["outcomes"]
    assert [(one["partition"], one["elected"]) for one in elected] == [(0, False), (1, False)]
    plan = ask(admin, "partition", "balance", "--dry-run")
    assert (plan["elections"], plan["moves"]) == ([], [])


def test_impossible_operations_are_rejected_with_a_reason(admin: str) -> None:
    broker = str(ask(admin, "broker", "list")[0]["id"])
    refused = ask(admin, "partition", "move", "cli-nowhere", "0", "--to", broker, code=4)
    assert refused["outcomes"][0]["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert run("partition", "move", "t", "0", "--admin", admin).returncode == 2
    assert run("partition", "list", "cli-nowhere", "--admin", admin).returncode == 4
    assert run("broker", "decommission", "99", "--admin", admin).returncode == 4
    leaving = run("quorum", "remove", broker, "--admin", admin)
    assert leaving.returncode == 1 and "Traceback" not in leaving.stderr


def test_voter_needs_an_address_of_its_own(admin: str) -> None:
    no_address = run("quorum", "add", "7", "node-7", "--admin", admin)
    assert no_address.returncode == 1 and "http://host:port" in no_address.stderr
    assert "tierlog quorum add 7 http://node-7.example:9644" in no_address.stderr
    others = run("quorum", "add", "7", admin, "--admin", admin)
    assert others.returncode == 1 and f"{admin} is node 1" in others.stderr


def test_unresponsive_node_is_skipped(admin: str) -> None:
    assert ask(f"http://127.0.0.1:1,{admin}", "quorum", "status")["role"] == "leader"
    assert run("cluster", "health", "--admin", "http://127.0.0.1:1").returncode == 3
    no_url = run("broker", "list", "--admin", "127.0.0.1:9644")
    assert no_url.returncode == 2 and "http://127.0.0.1:9644" in no_url.stderr


def test_settings_of_brokers_change_and_are_shown(tierlog_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_broker.bootstrap)
    own = str(ask(tierlog_broker.admin_url, "broker", "list")[0]["id"])
    assert run("broker", "alter", "--config", "log.retention.ms=5000", *at).returncode == 0
    assert run("broker", "alter", own, "--config", "log.retention.ms=6000", *at).returncode == 0
    assert json_output("broker", "settings", *at)[0] == [
        {"name": "log.retention.ms", "value": "5000", "source": "all brokers", "runs": True},
        {"name": "min.insync.replicas", "value": "1", "source": "all brokers", "runs": True},  # ADR 0010
    ]
    assert {
        row["name"]: (row["value"], row["source"]) for row in json_output("broker", "settings", own, *at)[0]
    }["log.retention.ms"] == ("6000", "this broker")
    assert json_output("broker", "alter", own, "--unset", "log.retention.ms", *at)[0]["unset"] == [
        "log.retention.ms"
    ]
    fixed = run("broker", "alter", "--config", "num.partitions=5", *at)
    assert fixed.returncode == 1 and "read by a node at startup" in fixed.stderr
    unknown = run("broker", "alter", "--config", "log.retention.mss=5", *at)
    assert unknown.returncode == 2 and "log.retention.ms" in unknown.stderr
    assert run("broker", "alter", *at).returncode == 2
    assert run("broker", "settings", "99", *at).returncode == 4
