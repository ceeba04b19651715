"""The target cluster of commands: mutating ones print it, and none uses another cluster by mistake."""

from pathlib import Path

import pytest
from cli_inline import call, commands, succeed

from tierlog.cli import cluster_files
from tierlog.cli.errors import ExitCode
from tierlog.testing import TierlogBroker


@pytest.fixture(autouse=True)
def another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster that this account started last, which is not running."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TIERLOG_BOOTSTRAP", raising=False)
    monkeypatch.delenv("TIERLOG_ADMIN", raising=False)
    directory = tmp_path / "another"
    cluster_files.save(directory, cluster_files.new_plan(1))
    cluster_files.set_last_started(directory)
    return directory


def test_commands_that_change_something_print_their_target(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    reported = f"target: {tierlog_session_broker.bootstrap}\n"
    admin = f"target: {tierlog_session_broker.admin_url} (of the cluster at {at[1]})\n"
    assert reported in succeed("topic", "create", "targets", "-p", "1", *at).stderr
    assert reported in succeed("topic", "alter", "targets", "-c", "retention.ms=5", *at).stderr
    assert reported in succeed("topic", "add-partitions", "targets", "2", *at).stderr
    assert reported in succeed("produce", "targets", *at).stderr
    assert reported in succeed("quota", "set", "request_percentage=9", "--user", "targets", *at).stderr
    assert reported in succeed("quota", "remove", "--user", "targets", *at).stderr
    assert admin in succeed("partition", "elect", "targets", *at).stderr
    assert admin in succeed("partition", "unthrottle", *at).stderr
    assert admin in succeed("cluster", "finalize", "--yes", *at).stderr
    tested = call("cluster", "self-test", "--seconds", "0.1", "--disk-mib", "1", *at)
    assert f"target: {tierlog_session_broker.admin_url}" in tested.stderr
    setting = b"cluster:\n  background.threads: 10\n"
    assert reported in succeed("cluster", "config", "import", "-", "--yes", *at, stdin=setting).stderr
    assert "target" not in succeed("cluster", "config", "export", *at).stderr
    assert "target" not in succeed("cluster", "finalize", "--dry-run", *at).stderr
    succeed("produce", "targets", *at, stdin=b"one\ntwo\n")
    assert reported in succeed("topic", "trim", "targets", "--offset", "1", "--yes", *at).stderr
    assert reported in succeed("consume", "targets", "--group", "targets", "--exit-at-end", *at).stderr
    exported = succeed("group", "export", "targets", "--json", *at)
    assert "target" not in exported.stderr
    offsets = exported.stdout.encode()
    assert reported in succeed("group", "import", "-", "--yes", *at, stdin=offsets).stderr
    assert "target" not in succeed("consume", "targets", "--exit-at-end", *at).stderr
    assert "target" not in succeed("topic", "describe", "targets", *at).stderr
    assert "target" not in succeed("partition", "list", "targets", *at).stderr
    refused = call("topic", "delete", "targets", *at)
    assert refused.code == 1 and at[1] in refused.stderr and "--yes" in refused.stderr
    assert reported in succeed("topic", "delete", "targets", "--yes", *at).stderr


REFUSED = {
    "acl create": "acl create --allow-principal ada --operation read --topic nosuch",
    "broker alter": "broker alter 4711 -c background.threads=2",
    "broker decommission": "broker decommission 4711",
    "broker drain": "broker drain 4711",
    "cluster config set": "cluster config set background.threads=2 --broker 4711",
    "cluster rollout": "cluster rollout --hosts nodes --command false#{nodes}",
    "group delete": "group delete nosuch --yes",
    "group offset-delete": "group offset-delete nosuch --topic nosuch --yes",
    "group reset": "group reset nosuch --topic nosuch --to-earliest --yes",
    "group seek": "group seek nosuch nosuch 0 0",
    "partition elect": "partition elect nosuch",
    "partition move": "partition move nosuch 0 --to 4711",
    "partition move-dir": "partition move-dir nosuch 0 --to /nowhere",
    "quorum add": "quorum add 4711 http://127.0.0.1:1",
    "quorum remove": "quorum remove 4711",
    "tier flush": "tier flush nosuch",
    "tier snapshots create": "tier snapshots create nightly nosuch",
    "tier snapshots end": "tier snapshots end nosuch",
    "token create": "token create",
    "token expire": "token expire nosuch --yes",
    "token renew": "token renew nosuch",
    "topic add-partitions": "topic add-partitions nosuch 2",
    "topic alter": "topic alter nosuch -c retention.ms=5",
    "topic delete": "topic delete nosuch --yes",
    "txn abort": "txn abort nosuch 0 0 --yes",
}
"""Attempts that the cluster refuses, so that this test changes nothing."""

ELSEWHERE = {
    "cluster config import",
    "cluster finalize",
    "cluster self-test",
    "consume",
    "group import",
    "partition balance",
    "partition unthrottle",
    "produce",
} | {
    "quota remove",
    "quota set",
    "topic create",
    "topic trim",
    "user alter",
    "user create",
    "user delete",
}
"""They print their target in the test above."""

WITH_AUTHORIZER = {"acl delete"}
"""They print their target in test_cli_acl.py."""

LOCAL = {
    f"cluster {verb}" for verb in ("down", "kill", "pause", "resume", "start", "status", "stop", "up")
} | {
    "certs create",
    "cluster config lint",
    "dev",
    "generate alerts",
    "generate clients",
    "generate connect",
    "generate dashboards",
    "generate systemd",
    "log dump",
    "log rebuild-index",
    "log verify",
    "plan",
    "profile create",
    "profile delete",
    "profile list",
    "profile prompt",
    "profile show",
    "profile use",
    "spark audit",
    "spark backfill",
    "spark compact",
    "spark load",
    "spark package",
    "spark replay",
    "spark rewrite",
    "spark stats",
    "quorum recover",
    "rest",
    "server",
    "storage format",
}
"""They work on a directory, or on processes of this machine."""

READING = {
    "acl list",
    "broker list",
    "broker settings",
    "security check",
    "security roles",
    "cluster config diff",
    "cluster config export",
    "cluster config get",
    "cluster health",
    "cluster info",
    "cluster logdirs",
    "cluster versions",
    "debug bundle",
    "doctor",
    "generate prometheus",
    "group describe",
    "group export",
    "group list",
    "partition list",
} | {
    "quorum status",
    "quota list",
    "tier explain",
    "tier gc",
    "tier snapshots list",
    "tier status",
    "tier verify",
    "token describe",
    "token list",
    "topic analyze",
    "topic describe",
    "topic list",
    "txn describe",
    "txn find-hanging",
    "txn list",
    "user describe",
    "user list",
}


@pytest.mark.parametrize("words", REFUSED.values())
def test_a_refused_change_printed_its_target(words: str, tierlog_session_broker: TierlogBroker) -> None:
    ended = call(*words.split(), "--bootstrap", tierlog_session_broker.bootstrap)
    assert ended.code not in (0, ExitCode.USAGE), ended
    addresses = tierlog_session_broker.bootstrap, tierlog_session_broker.admin_url
    assert ended.stderr.startswith(tuple(f"target: {address}" for address in addresses)), ended.stderr


def test_every_command_is_known_to_change_a_cluster_or_not() -> None:
    assert set(commands()) == {*REFUSED, *ELSEWHERE, *LOCAL, *READING, *WITH_AUTHORIZER}


def test_the_local_cluster_is_named_as_the_target(another_cluster: Path) -> None:
    assert f"(the local cluster in {another_cluster})\n" in call("topic", "create", "t").stderr
    assert f"the local cluster in {another_cluster}\n" in call("cluster", "kill", "1").stderr
    for words in (("topic", "list"), ("cluster", "status")):
        assert "target" not in call(*words).stderr
    requested = call("cluster", "down")
    assert requested.code == 1 and str(another_cluster) in requested.stderr
    assert call("cluster", "down", stdin=b"y\n").code == 0
    cluster_files.set_last_started(another_cluster)
    ended = succeed("cluster", "down", "--yes")
    assert f"target: the local cluster in {another_cluster}\n" in ended.stderr
    assert f"stopped no node; the data stays in {another_cluster}\n" in ended.stderr


def test_admin_api_is_derived_from_the_given_brokers(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("cluster", "health", *at)
    succeed("tier", "status", *at)
    succeed("broker", "list", *at)
    succeed("quorum", "status", *at)
    reported = succeed("cluster", "info", *at).stdout
    assert tierlog_session_broker.admin_url in reported
    assert succeed("cluster", "info", "--admin", tierlog_session_broker.admin_url).stdout == reported


def test_brokers_and_admin_api_of_different_clusters_are_an_error(
    tierlog_session_broker: TierlogBroker, tierlog_broker: TierlogBroker
) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap, "--admin", tierlog_broker.admin_url)
    ended = call("cluster", "info", *at)
    assert (ended.code, ended.stdout) == (2, "")
    assert f"{tierlog_broker.admin_url} belongs to cluster" in ended.stderr
    assert call("cluster", "info", "--json", *at).code == 2


def test_admin_api_of_the_environment_does_not_replace_the_given_brokers(
    tierlog_session_broker: TierlogBroker, another_cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_ADMIN", "http://127.0.0.1:1")
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    assert f"target: {tierlog_session_broker.admin_url}" in succeed("partition", "unthrottle", *at).stderr
    succeed("broker", "list", *at)
    assert call("broker", "list").code == 3, "without --bootstrap the environment decides"
    monkeypatch.setenv("TIERLOG_BOOTSTRAP", tierlog_session_broker.bootstrap)
    assert call("broker", "list").code == 3, "also beside brokers of the environment"


def test_flush_of_a_topic_that_does_not_exist_says_so(tierlog_session_broker: TierlogBroker) -> None:
    ended = call("tier", "flush", "nosuch", "--bootstrap", tierlog_session_broker.bootstrap)
    assert ended.code == ExitCode.NOT_FOUND and "there is no topic 'nosuch'" in ended.stderr


def test_flush_of_a_topic_whose_setting_is_written_in_capitals(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("topic", "create", "capitals", "--config", "remote.storage.enable=TRUE", *at)
    succeed("tier", "flush", "capitals", *at)


def test_tier_commands_of_a_topic_that_is_not_tiered_say_how_to_tier_it(
    tierlog_session_broker: TierlogBroker,
) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("topic", "create", "plain", "-p", "1", *at)
    for verb in ("flush", "status", "verify"):
        ended = call("tier", verb, "plain", *at)
        assert ended.code == ExitCode.FAILED and "topic 'plain' is not tiered\n" in ended.stderr
        assert "tierlog topic alter plain --config remote.storage.enable=true" in ended.stderr


def test_a_partition_that_does_not_exist_has_its_exit_code(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("topic", "create", "numbered", "-p", "2", *at)
    for words in ("produce numbered -p 17", "consume numbered -p 17"):
        ended = call(*words.split(), *at)
        assert ended.code == ExitCode.NOT_FOUND and "topic numbered has no partition 17\n" in ended.stderr
        assert "It has 2 partitions, numbered from 0" in ended.stderr
    for words in ("partition elect numbered 77", "partition move nosuch 0 --to 1"):
        ended = call(*words.split(), *at)
        assert ended.code == ExitCode.NOT_FOUND and "UNKNOWN_TOPIC_OR_PARTITION" in ended.stdout


def test_hints_of_refused_settings_lead_to_the_setting(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    refused = call("broker", "alter", "1", "-c", "listeners=x", *at)
    assert refused.code == 1 and "change the node's file and restart it" in refused.stderr
    unknown = call("quota", "set", "bogus=1", "--client-id", "app", *at)
    assert unknown.code == 2 and "producer_byte_rate, consumer_byte_rate" in unknown.stderr
    succeed("topic", "create", "once", "-p", "3", *at)
    assert "tierlog: Topic 'once' already exists" in call("topic", "create", "once", *at).stderr
    assert "tierlog: topic once has 3 partitions" in call("topic", "add-partitions", "once", "2", *at).stderr


def test_a_wrong_port_is_recognised(tierlog_session_broker: TierlogBroker) -> None:
    kafka_port = f"http://{tierlog_session_broker.bootstrap}"
    for words in (("cluster", "health"), ("broker", "list")):
        ended = call(*words, "--admin", kafka_port)
        assert ended.code == 3 and f"{kafka_port} is a Kafka port and not an admin API" in ended.stderr
    admin_port = tierlog_session_broker.admin_url.removeprefix("http://")
    ended = call("topic", "list", "--bootstrap", admin_port)
    assert f"{admin_port} does not speak the Kafka protocol" in ended.stderr


def test_an_answer_of_no_has_no_hint(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    refused = call("topic", "delete", "any", *at, stdin=b"n\n")
    assert refused.code == 1 and refused.stderr.endswith("tierlog: nothing was changed\n")
    assert f"Delete topic any with all its records in {at[1]}? [y/N]" in refused.stderr


def test_an_election_that_is_not_needed_says_so(tierlog_session_broker: TierlogBroker) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("topic", "create", "elected", "-p", "1", *at)
    preferred, unclean = (
        succeed("partition", "elect", "elected", *more, *at).stderr for more in ((), ("0", "--unclean"))
    )
    assert "no election was needed: every partition has its preferred leader\n" in preferred
    assert "no election was needed: every partition has a leader\n" in unclean


def test_a_drain_that_cannot_move_anything_fails_also_as_a_plan(
    tierlog_session_broker: TierlogBroker,
) -> None:
    at = ("--bootstrap", tierlog_session_broker.bootstrap)
    succeed("topic", "create", "drained", "-p", "1", *at)
    planned = call("broker", "drain", "1", "--dry-run", *at)
    assert planned.code == 1 and "cannot move: " in planned.stderr


def test_unreachable_brokers_are_never_replaced_by_another_cluster() -> None:
    assert call("cluster", "health", "--bootstrap", "127.0.0.1:1").code == 3
    assert call("partition", "unthrottle", "--bootstrap", "127.0.0.1:1").code == 3
