"""Dynamic settings: precedence of their sources, validation, and reasons why a setting is not dynamic."""

import pytest

from tierlog.config.definitions import InvalidSetting
from tierlog.config.dynamic import (
    DYNAMIC_SETTINGS,
    check_thread_counts,
    check_together,
    effective_settings,
    ignored_settings,
    thread_counts,
    why_not_dynamic,
)
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.sources import settings_from

AT_START = settings_from({"log.retention.ms": "1", "num.partitions": "7"})


def test_node_value_overrides_cluster_value_and_that_the_startup_value() -> None:
    of_cluster = {"log.retention.ms": "2", "message.max.bytes": "20"}
    now = effective_settings(AT_START, of_cluster, {"log.retention.ms": "3"})
    assert (now.log_retention_ms, now.message_max_bytes, now.num_partitions) == (3, 20, 7)
    assert now.topic_defaults() == {"retention.ms": "3", "max.message.bytes": "20"}
    assert effective_settings(AT_START, {}, {}) == AT_START


def test_unparsable_dynamic_value_counts_as_not_set() -> None:
    of_cluster = {"log.retention.ms": "2", "log.of.the.future": "1", "num.partitions": "9"}
    now = effective_settings(AT_START, of_cluster, {"log.retention.ms": "soon"})
    assert (now.log_retention_ms, now.num_partitions) == (2, 7)


@pytest.mark.parametrize(
    "texts",
    [
        {"max.connections.per.ip.overrides": "here:5"},
        {"log.retention.ms": "10", "log.local.retention.ms": "11"},
        {"log.retention.bytes": "10", "log.local.retention.bytes": "-1"},
    ],
)
def test_inconsistent_settings_are_refused(texts: dict[str, str]) -> None:
    (name,) = list(texts)[-1:]
    with pytest.raises(InvalidSetting, match=name):
        check_together(effective_settings(NodeSettings(), texts, {}))


@pytest.mark.parametrize(
    ("at_start", "change", "refused"),
    [
        ({}, {"message.max.bytes": "5"}, None),
        ({}, {"max.connections.per.ip.overrides": "here:5"}, "max.connections.per.ip.overrides"),
        ({"log.local.retention.ms": "5"}, {"log.retention.ms": "4"}, None),  # it did not fit before
        ({"log.local.retention.ms": "1"}, {"log.retention.ms": "0"}, "log.local.retention.ms"),
    ],
)
def test_existing_inconsistency_does_not_refuse_a_change(
    at_start: dict[str, str], change: dict[str, str], refused: str | None
) -> None:
    files = settings_from({"log.retention.ms": "2", "log.local.retention.ms": "3", **at_start})
    before, after = effective_settings(files, {}, {}), effective_settings(files, change, {})
    if refused is None:
        check_together(after, before)
    else:
        with pytest.raises(InvalidSetting, match=refused):
            check_together(after, before)


def test_quorum_settings_ignore_node_files_and_node_values() -> None:
    file = settings_from({"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    now = effective_settings(file, {"min.insync.replicas": "2"}, {"min.insync.replicas": "3"})
    assert (now.min_insync_replicas, now.unclean_leader_election_enable) == (2, False)
    assert now.topic_defaults() == {"min.insync.replicas": "2"}
    assert ignored_settings(file, now, {}) == {
        "min.insync.replicas": ("1", "2"),
        "unclean.leader.election.enable": ("true", "false"),
    }
    assert ignored_settings(settings_from({}), now, {}) == {}
    own = {"unclean.leader.election.enable": "true", "log.retention.ms": "1"}
    assert ignored_settings(settings_from({}), now, own) == {
        "unclean.leader.election.enable": ("true", "false")
    }


@pytest.mark.parametrize("name", ["num.network.threads", "num.replica.fetchers"])
@pytest.mark.parametrize(
    ("current", "fits", "too_few", "too_many"),
    [(8, (4, 16), 3, 17), (3, (1, 6), 0, 7), (1, (1, 2), None, 100_000)],
)
def test_thread_count_at_most_doubles_or_halves(
    name: str, current: int, fits: tuple[int, int], too_few: int | None, too_many: int
) -> None:
    for count in (current, *fits):
        check_thread_counts({name: current}, {name: count})
    for count, than in ((too_few, "at least half"), (too_many, "not be greater than double")):
        if count is not None:
            with pytest.raises(InvalidSetting, match=f"{name}={count}, .*{than} the current value {current}"):
                check_thread_counts({name: current}, {name: count})


def test_nodes_own_thread_count_counts() -> None:
    of_cluster = {"num.network.threads": "4", "num.replica.fetchers": "2", "num.io.threads": "5"}
    of_node = {"num.network.threads": "6", "num.io.threads": "-5"}  # as an older version took it
    counts = thread_counts(effective_settings(AT_START, of_cluster, of_node), of_cluster, of_node)
    assert counts["num.network.threads"] == 6
    assert counts["num.replica.fetchers"] == 2
    assert counts["num.io.threads"] == 5
    assert counts["background.threads"] == 10


def test_local_retention_may_equal_total_retention() -> None:
    texts = {"log.retention.ms": "10", "log.local.retention.ms": "10", "log.local.retention.bytes": "5"}
    check_together(effective_settings(NodeSettings(), texts, {}))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("num.partitions", "read by a node at startup"),
        ("broker.id", "read by a node at startup"),
        ("log.retention.hours", "set log.retention.ms instead"),
        ("queued.max.requests", "read by a node at startup, and unknown to tierlog"),
        ("sasl.jaas.config", "read by a node at startup"),
        ("cordoned.log.dirs", "log directories cannot be cordoned"),
    ],
)
def test_reason_why_a_setting_is_not_dynamic(name: str, why: str) -> None:
    assert why_not_dynamic(name) == f"{name}: {why}"


def test_dynamic_settings_are_node_settings() -> None:
    assert NODE_SETTINGS.keys() >= DYNAMIC_SETTINGS
    assert {why_not_dynamic(name) for name in DYNAMIC_SETTINGS} == {None}
