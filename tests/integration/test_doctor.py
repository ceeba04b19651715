"""`tierlog doctor` and `tierlog debug bundle` on real processes that are broken in one way after another."""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_servers
from cli_inline import call, json_output, succeed
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scraping import scraped
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker, TierlogBrokerFactory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A local cluster of three nodes with a topic; all that run end with the module."""
    made = tmp_path_factory.mktemp("doctor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(made / "state"))
        succeed("cluster", "up", "--nodes", "3", "--data-dir", str(made / "c"), "--port", "0", "--detach")
        succeed("topic", "create", "orders", "-p", "3", "--config", "min.insync.replicas=2")
        succeed("cluster", "health", "--wait", "60")
        yield made / "c"
        call("cluster", "down", "--data-dir", str(made / "c"), "--yes")


def found(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by rule."""
    ended = call("doctor", "--json", *words)
    return ended.code, {one["rule"]: one for one in json.loads(ended.stdout)["findings"]}


def until_found(code: int, *rules: str) -> dict[str, dict[str, Any]]:
    """Wait until doctor ends with this code and has these rules among its findings: a node of a busy machine
    may respond late. Returns all findings."""
    seen: list[dict[str, dict[str, Any]]] = []

    def has_all() -> bool:
        ended, now = found()
        seen[:] = [now]
        return ended == code and now.keys() >= {*rules} and bool(now) == bool(rules)

    until(has_all, f"doctor ends with {code} and finds {rules}")
    return seen[0]


def test_healthy_cluster_passes(directory: Path) -> None:
    until_found(0)
    assert succeed("doctor").stdout.startswith("0 findings, 3 nodes responded, ")


def test_a_killed_a_paused_and_all_nodes_are_found_live_and_in_a_bundle(
    directory: Path, tmp_path: Path
) -> None:
    succeed("cluster", "kill", "3")
    rules = until_found(5, "node", "partitions")
    assert rules["node"]["next"] == "Run `tierlog cluster start 3`."

    succeed("cluster", "pause", "2")
    rules = until_found(6, "quorum")
    assert "1 of 3 voters respond" in rules["quorum"]["what"]
    assert rules["quorum"]["runbook"] == "docs/runbooks/lost-majority.md"

    archive = tmp_path / "b.tar.gz"
    succeed("debug", "bundle", "--output", str(archive))
    code, same = found("--bundle", str(archive))
    assert code == 6 and same.keys() >= {"node", "quorum"}
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        report = tar.extractfile("bundle/report.txt")
        assert report is not None and b"UNAVAILABLE: the quorum has no leader" in report.read()
    assert {"bundle/metrics/1.txt", "bundle/logs/node-1.log", "bundle/logs/node-3.log"} <= names

    # by addresses, as from another machine: no quorum describes itself, and one node responds
    bootstrap = ",".join(node["bootstrap"] for node in json_output("cluster", "status")[0])
    code, same = found("--bootstrap", bootstrap)
    assert code == 6 and same.keys() >= {"node", "quorum"}
    assert call("cluster", "health", "--bootstrap", bootstrap).code == 6
    bundled = json_output("debug", "bundle", "-b", bootstrap, "-o", tmp_path / "other.tar.gz")[0]
    assert {"node 2 does not respond", "node 3 does not respond"} <= {*bundled["not_read"]}
    quick = ("--seconds", "0.2", "--disk-mib", "1")
    [tested] = json_output("cluster", "self-test", "-b", bootstrap, *quick, code=6)
    problems = {line["node"]: line["problem"] for line in tested["lines"] if line["what"] == "disk and store"}
    assert problems == dict.fromkeys((2, 3), "the node does not respond")

    succeed("cluster", "resume", "2")
    succeed("cluster", "start", "3")
    succeed("cluster", "health", "--wait", "120")
    until_found(0)


def test_without_a_majority_no_command_is_suggested_that_needs_one(directory: Path) -> None:
    """By addresses, as from another machine, where the processes are not known."""
    bootstrap = ",".join(node["bootstrap"] for node in json_output("cluster", "status")[0])
    succeed("cluster", "kill", "2", "3")
    until_found(6, "quorum", "node")
    ended = call("doctor", "--json", "--bootstrap", bootstrap)
    findings = json.loads(ended.stdout)["findings"]
    dead = {one["what"].partition(":")[0]: one for one in findings if one["rule"] == "node"}
    for node in (2, 3):
        assert dead[f"node {node}"]["next"].startswith(f"Start node {node};")
        assert "docs/runbooks/lost-majority.md" in dead[f"node {node}"]["next"]
    assert {one["runbook"] for one in findings if one["rule"] in ("quorum", "node", "partitions")} == {
        "docs/runbooks/lost-majority.md"
    }
    suggested = [found for one in findings for found in re.findall(r"`tierlog ([a-z]+ [a-z]+)", one["next"])]
    assert not {*suggested} & {"quorum remove", "broker decommission", "partition move", "partition elect"}

    succeed("cluster", "start", "2", "3")  # the remedy
    succeed("cluster", "health", "--wait", "120")
    until_found(0)


def test_without_any_node_the_error_says_so(tmp_path: Path) -> None:
    ended = call("doctor", "--admin", "http://127.0.0.1:1")
    assert ended.code == 3 and "cannot reach http://127.0.0.1:1" in ended.stderr
    ended = call("debug", "bundle", "--admin", "http://127.0.0.1:1", "--output", str(tmp_path / "b.tar.gz"))
    assert ended.code == 3 and not (tmp_path / "b.tar.gz").exists()


def test_low_disk_space_is_a_risk(tierlog_broker_factory: TierlogBrokerFactory) -> None:
    broker = tierlog_broker_factory({"log.dir.free.bytes.min": 2**60})
    until(lambda: is_low(broker), "the bound is noticed")
    code, rules = found("--admin", broker.admin_url)
    assert code == 5 and {"disk-low", "disk-full"} & rules.keys()
    assert {one["runbook"] for one in rules.values()} == {"docs/runbooks/full-disk.md"}


def is_low(broker: TierlogBroker) -> bool:
    values = scraped(broker).items()
    return any(value for (name, _), value in values if name == "tierlog_log_directory_low")


def test_object_store_that_went_away_is_found(
    tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    with s3_servers.running("versitygw", tmp_path) as server:
        broker = tierlog_broker_factory(
            {"remote.log.manager.task.interval.ms": 200},
            object_store=server.url("doctor"),
            environment=s3_servers.CREDENTIALS,
        )
        assert found("--admin", broker.admin_url) == (0, {})
    config = {"remote.storage.enable": "true", "segment.ms": "1000"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(60)
    until(lambda: not AdminApi(broker.admin_url).get("/v1/tier/store")["available"], "the outage is noticed")
    code, rules = found("--bootstrap", broker.bootstrap)
    assert code == 5 and rules["object-store"]["runbook"] == "docs/runbooks/bucket-down.md"


def test_bundle_has_settings_without_passwords(
    tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    secret = "never-in-a-bundle"
    broker = tierlog_broker_factory({"delegation.token.secret.key": secret})
    archive = tmp_path / "b.tar.gz"
    succeed("debug", "bundle", "--admin", broker.admin_url, "--output", str(archive))
    with tarfile.open(archive) as tar:
        files = {one.name: tar.extractfile(one) for one in tar.getmembers()}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    assert b"log.segment.bytes" in contents["bundle/evidence.json"]
    assert not any(secret.encode() in content for content in contents.values())


def test_bundle_has_log_and_manifests_of_a_node_without_its_files(
    tierlog_broker_factory: TierlogBrokerFactory, tmp_path: Path
) -> None:
    broker = tierlog_broker_factory()
    config = {"remote.storage.enable": "true"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("orders", 2, 1, config=config), NewTopic("local", 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("orders", b"value", partition=1)
    producer.flush(60)
    AdminApi(broker.admin_url).post("/v1/tier/flush", {"topic": "orders"})
    archive = tmp_path / "b.tar.gz"
    ended = succeed("debug", "bundle", "--admin", broker.admin_url, "--output", str(archive))
    assert "1 node, 1 log, 1 manifest, 0 findings" in ended.stderr
    with tarfile.open(archive) as tar:
        log, manifest = (
            tar.extractfile(f"bundle/{name}") for name in ("logs/node-1.last.log", "manifests/orders-1.json")
        )
        assert log is not None and manifest is not None
        lines, [segment] = log.read().decode(), json.loads(manifest.read())["segments"]
    assert "event='node.serving'" in lines and "event='upload.segment'" in lines
    assert (segment["base_offset"], segment["end_offset"]) == (0, 1)
