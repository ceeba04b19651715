"""Rules of `tierlog doctor`, on evidence built by hand, and the archive that carries the evidence."""

import errno
import io
import re
import tarfile
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from cli_inline import commands

from tierlog.base.clock import SystemClock
from tierlog.broker.diagnosis import findings
from tierlog.broker.diagnosis.evidence import (
    BROKERS,
    CLUSTER,
    DIRECTORIES,
    QUORUM,
    TIER,
    Answers,
    Evidence,
    Observation,
    ProcessState,
)
from tierlog.broker.diagnosis.findings import HEALTH_RULES, diagnose
from tierlog.broker.diagnosis.health import assess_by_rule
from tierlog.broker.diagnosis.metric_rules import METRIC_RULES, Urgency
from tierlog.cli import bundle
from tierlog.cli.errors import CliError
from tierlog.cli.evidence import _bootstrap, _scrape

ROOT = Path(__file__).parents[3]
NODES = (1, 2, 3)
URLS = {node: f"http://h:{node}" for node in NODES}


def evidence(*, of_all: dict[str, Any] | None = None, **changes: Any) -> Evidence:
    """Evidence of three healthy nodes. `of_all`: path -> document of every node."""
    brokers = [
        {"id": node, "fenced": False, "stopping": False, "rack": None, "leads": 10, "replicas": 30}
        for node in NODES
    ]
    counts = {"total": 30, "offline": 0, "below-min-in-sync": 0, "under-replicated": 0, "moving": 0}
    documents: dict[int, dict[str, Any]] = {
        node: {
            QUORUM: {
                "node_id": node,
                "cluster_id": "c",
                "role": "leader" if node == 1 else "follower",
                "term": 4,
                "applied_index": 5_000,
                "voters": {str(one): url for one, url in URLS.items()},
                "learners": {},
            },
            **(of_all or {}),
        }
        for node in NODES
    }
    documents[1] |= {
        BROKERS: {"brokers": brokers, "assigned": list(NODES), "partitions": counts},
        CLUSTER: {"brokers": brokers, "topics": []},
    }
    return Evidence(taken_at_ms=1_700_000_000_000, answers=Answers(urls=URLS, documents=documents), **changes)


def rules(found: Evidence) -> list[str]:
    return [one.rule for one in diagnose(found)]


def with_topics(*topics: dict[str, Any], **changes: Any) -> Evidence:
    found = evidence(**changes)
    dict(found.answers.documents[1])[CLUSTER]["topics"] = list(topics)
    return found


def topic(name: str, replicas: int, **configs: str) -> dict[str, Any]:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return {"name": name, "configs": named, "partitions": [{"replicas": [1, 2, 3][:replicas]}]}


def test_healthy_cluster_has_no_findings() -> None:
    assert diagnose(evidence(clocks={1: 0.2, 2: -0.4, 3: 0.1})) == []


def test_a_clock_that_differs_from_most_is_named() -> None:
    [found] = diagnose(evidence(clocks={1: 0.2, 2: 61.0, 3: 0.1}))
    assert (found.rule, found.urgency) == ("clock", Urgency.RISK)
    assert "node 2 is 61 s ahead" in found.what


def test_the_clock_of_this_machine_is_not_blamed_on_three_nodes() -> None:
    assert diagnose(evidence(clocks={1: -600.0, 2: -600.3, 3: -599.8})) == []


def test_single_node_is_compared_with_this_machine() -> None:
    [found] = diagnose(evidence(clocks={1: -90.0}))
    assert "node 1 is 90 s behind" in found.what


def test_full_and_failed_directories_are_degraded() -> None:
    rows = [
        {"directory": "/a", "failure": None, "full": True, "usable_bytes": 4096},
        {"directory": "/b", "failure": "EIO", "full": False},
        {"directory": "/c", "failure": None, "full": False, "usable_bytes": 10**9},
    ]
    found = diagnose(evidence(of_all={DIRECTORIES: {"directories": rows}}))
    assert [(one.rule, one.urgency) for one in found] == [
        ("disk-full", Urgency.DEGRADED),
        ("disk-failed", Urgency.DEGRADED),
    ] * 3
    assert "/a of broker 1 is full: 4.0 KiB are left" in found[0].what


def test_failed_uploads_are_grouped_by_error_unless_the_store_is_down() -> None:
    rows = [
        {"topic": "a", "partition": 0, "last_error": "AccessDenied"},
        {"topic": "a", "partition": 1, "last_error": None},
    ]
    documents = {TIER: {"partitions": rows}}
    [found] = diagnose(evidence(of_all=documents))
    assert found.rule == "upload-fails" and "uploads of 3 partitions fail: AccessDenied (a-0" in found.what
    store = {"/v1/tier/store": {"available": False, "state": "open", "error": "down"}}
    assert rules(evidence(of_all={**documents, **store})) == ["object-store"]


def test_metrics_above_their_bound_are_findings() -> None:
    text = "\n".join(
        [
            "# TYPE tierlog_log_directory_low gauge",
            'tierlog_log_directory_low{directory="/data/\\"1\\""} 1.0',
            'tierlog_log_directory_low{directory="/other"} 0.0',
            "tierlog_remote_delete_overdue_seconds 3600.0",
            "process_open_fds 900.0",
            "process_max_fds 1000.0",
        ]
    )
    found = diagnose(evidence(metrics={2: text}))
    assert [one.rule for one in found] == ["disk-low", "open-files"]
    assert found[0].what.startswith('node 2: log directory /data/\\"1\\" has less')


def test_broker_that_stores_far_more_is_named_with_its_largest_partitions() -> None:
    found = evidence(metrics={2: 'kafka_log_log_size{topic="orders",partition="3"} 42949672960.0'})
    for node in NODES:
        row = {"directory": "/d", "failure": None, "full": False, "usable_bytes": 1}
        document = {"directories": [row | {"local_bytes": 60 << 30 if node == 2 else 5 << 30}]}
        found.answers.documents[node][DIRECTORIES] = document  # type: ignore[index]
    [uneven] = diagnose(found)
    assert uneven.rule == "stored-uneven" and "--explain" in uneven.next
    assert "broker 2 stores 60.0 GiB of 70.0 GiB" in uneven.what and "orders-3 (40.0 GiB)" in uneven.what


def test_settings_of_topics_that_do_not_fit_their_replicas_are_advice() -> None:
    found = with_topics(
        topic("single", 1),
        topic("tight", 3, min_insync_replicas="3"),
        topic("loose", 3),
        topic("right", 3, min_insync_replicas="2"),
    )
    assert {one.rule: one.what.rpartition(": ")[2] for one in diagnose(found)} == {
        "one-replica": "single",
        "no-slack": "tight",
        "weak-acks": "loose",
    }
    assert {one.urgency for one in diagnose(found)} == {Urgency.ADVICE}
    safe = with_topics(topic("loose", 3), settings={1: {"min.insync.replicas": "2"}})
    assert diagnose(safe) == []


def test_hanging_transaction_is_the_most_urgent() -> None:
    row = {"topic": "t", "partition": 3, "start_offset": 17}
    found = diagnose(evidence(hanging=[row], clocks={1: 0.0, 2: 0.0, 3: 99.0}))
    assert [one.rule for one in found] == ["hanging-transaction", "clock"]
    assert "`tierlog txn abort t 3 17`" in found[0].next


def test_what_was_not_read_is_named_once() -> None:
    found = evidence(not_read=["node 2 does not respond", "settings of broker 1: refused"])
    [only] = diagnose(found)
    assert only.rule == "not-read" and only.what.endswith(": settings of broker 1: refused")


def test_bundle_gives_the_evidence_back(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_bytes(b"x" * 100)
    given = evidence(
        clocks={1: 0.0, 2: 70.5, 3: 0.0},
        metrics={1: "tierlog_unexpected_failures_total 2.0\n"},
        settings={1: {"min.insync.replicas": "2"}},
        processes={1: ProcessState.UP},
        roles={1: ("broker", "controller")},
        not_read=["something"],
    )
    archive = tmp_path / "b.tar.gz"
    missing = tmp_path / "missing.log"
    unread = bundle.write(archive, given, diagnose(given), {"1.log": log, "2.log": missing})
    assert unread == [f"{missing}: No such file or directory"]
    assert diagnose(bundle.read(archive)) == diagnose(given) != []
    with tarfile.open(archive) as tar:
        assert tar.getmember("bundle/logs/1.log").size == 100
    with pytest.raises(CliError, match="exists"):
        bundle.write(archive, given, [], {})


def test_damaged_bundle_is_refused_with_a_next_step(tmp_path: Path) -> None:
    archive = tmp_path / "b.tar.gz"
    given = evidence()
    bundle.write(archive, given, [], {})
    whole = archive.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2]):
        archive.write_bytes(content)
        with pytest.raises(CliError, match="not a complete debug bundle") as refused:
            bundle.read(archive)
        assert "tierlog debug bundle" in refused.value.hint


def test_member_beyond_its_bound_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MEMBER_BYTES_MAX", 10)
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("bundle/evidence.json")
        member.size = 11
        tar.addfile(member, io.BytesIO(b" " * 11))
    with pytest.raises(CliError, match="too large"):
        bundle.read(tmp_path / "b.tar.gz")


def test_only_the_user_can_read_a_bundle_and_an_incomplete_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "b.tar.gz"
    bundle.write(archive, evidence(), [], {})
    assert archive.stat().st_mode & 0o777 == 0o600
    archive.unlink()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(CliError, match=r"cannot write .*: No space left on device"):
        bundle.write(archive, evidence(), [], {})
    assert not archive.exists()


def test_brokers_that_are_not_fenced_are_asked_by_their_address() -> None:
    brokers = [
        {"host": "::1", "port": 9092, "fenced": False},
        {"host": "b", "port": 9093, "fenced": True},
        {"host": "c", "port": 9094, "fenced": False},
    ]
    assert _bootstrap({1: {}, 2: {CLUSTER: {"brokers": brokers}}}) == "[::1]:9092,c:9094"


@pytest.mark.parametrize(("took_ms", "ahead"), [(4_000, -1.5), (4_001, None)])
def test_clock_of_a_node_that_responds_slowly_is_not_compared(
    monkeypatch: pytest.MonkeyPatch, took_ms: int, ahead: float | None
) -> None:
    class Slow:
        def text(self, path: str) -> tuple[str, Message]:
            times.pop()
            headers = Message()
            headers["Date"] = "Tue, 14 Nov 2023 22:13:20 GMT"
            return "", headers

    times = [1_700_000_000_000 + took_ms, 1_700_000_000_000]
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: times[-1])
    api: Any = Slow()
    assert _scrape([], 1, api) == ("", ahead)


def test_every_rule_of_health_has_a_reason_and_a_runbook() -> None:
    source = Path(findings.__file__).with_name("health.py").read_text()
    known = re.findall(r'^        "([a-z-]+)": _', source, re.MULTILINE)
    assert known and set(known) == set(HEALTH_RULES)
    assert assess_by_rule(Observation()) != []  # no quorum


RUNBOOKS = {
    "bucket-down": ("object-store", "test_object_store_that_went_away_is_found"),
    "bucket-lost": ("bucket-lost", "test_lost_bucket"),
    "damaged-log": ("damaged-log", "test_damaged_log"),
    "damaged-object": ("damaged-object", "test_damaged_object"),
    "full-disk": ("disk-full", "test_full_disk"),
    "lost-broker": ("node", "test_a_killed_a_paused_and_all_nodes_are_found_live_and_in_a_bundle"),
    "lost-majority": ("quorum", "test_a_killed_a_paused_and_all_nodes_are_found_live_and_in_a_bundle"),
    "lost-majority-for-good": ("unread-manifest", "test_manifest_that_cannot_be_read_after_a_recovery"),
    "replace-node": ("node", "test_a_killed_a_paused_and_all_nodes_are_found_live_and_in_a_bundle"),
    "wrong-clock": ("clock", "test_wrong_clock"),
}
"""Runbook -> the rule that finds its symptom, and the test that causes it on real nodes. A node to replace
looks at first like one that comes back."""


def test_every_runbook_has_a_rule_and_a_test_with_the_real_fault() -> None:
    assert RUNBOOKS.keys() == {page.stem for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    directory = ROOT / "tests" / "integration"
    tests = "".join((directory / f"test_doctor{one}.py").read_text() for one in ("", "_runbooks"))
    source = (ROOT / "broker" / "diagnosis" / "findings.py").read_text()
    for rule, test in RUNBOOKS.values():
        assert rule in HEALTH_RULES or f'"{rule}"' in source, rule
        assert f"def {test}(" in tests and f'"{rule}"' in tests, test


def test_a_bucket_that_does_not_exist_has_its_own_runbook() -> None:
    store = {"available": False, "state": "open", "error": "NoSuchBucket: gone"}
    [finding] = diagnose(evidence(of_all={"/v1/tier/store": store}))
    assert (finding.rule, finding.runbook) == ("bucket-lost", "docs/runbooks/bucket-lost.md")
    row = {"topic": "t", "partition": 0, "last_error": "NoSuchBucket: gone"}
    [finding] = diagnose(evidence(of_all={TIER: {"partitions": [row]}}))
    assert (finding.rule, finding.runbook) == ("bucket-lost", "docs/runbooks/bucket-lost.md")


def test_remedies_name_commands_and_pages_that_exist() -> None:
    text = Path(findings.__file__).read_text()
    for words in re.findall(r"`tierlog ([a-z -]+?)(?: [A-Z{\-][^`]*)?`", text):
        assert any(words == known or words.startswith(f"{known} ") for known in commands()), words
    pages = {one.runbook for one in METRIC_RULES} | set(re.findall(r'"(docs/[\w/.-]+)"', text))
    assert [page for page in pages if page and not (ROOT / page).exists()] == []


def test_brokers_with_different_audit_topics_are_a_risk() -> None:
    """A broker without the setting would take what clients write to the topic."""
    same = {node: {"audit.log.topic": "_audit"} for node in NODES}
    none: dict[int, dict[str, str | None]] = {node: {"audit.log.topic": None} for node in NODES}
    assert rules(evidence(settings=same)) == rules(evidence(settings=none)) == []
    [finding] = diagnose(evidence(settings=same | {2: {"audit.log.topic": ""}}))
    assert finding.rule == "audit-topic-differs" and finding.urgency is Urgency.RISK
    assert finding.what.endswith(": none on broker 2; _audit on broker 1, 3")
