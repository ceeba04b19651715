"""Incremental changes of settings, by scope."""

from typing import Any

import pytest

from tierlog.config.topic import INTERNAL_TOPICS
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import configs
from tierlog.metadata.controller.commands import ConfigOperation as Op
from tierlog.metadata.controller.rules import cluster_defaults
from tierlog.metadata.evolve import evolve
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import ConfigRecord
from tierlog.metadata.records import ConfigScope as Scope
from tierlog.protocol.errors import ErrorCode as E
from tierlog.protocol.primitives import STRING_BYTES_MAX

World = Any


@pytest.fixture
def topic(world: World) -> World:
    world.brokers(1)
    world.create("t")
    return world


def alter(
    world: World, *changes: tuple[str, Op, str | None], scope: Scope = Scope.TOPIC, name: str = "t"
) -> Any:
    made = tuple(c.ConfigChange(key=key, operation=op, value=value) for key, op, value in changes)
    resource = c.ConfigResource(scope=scope, name=name, changes=made)
    return world.do(c.AlterConfigs(resources=(resource,))).resources[0]


def settings(world: World, scope: Scope = Scope.TOPIC, name: str = "t") -> dict[str, str]:
    return dict(world.image.configs.get((scope, name), {}))


def test_set_and_delete(topic: World) -> None:
    assert alter(topic, ("retention.ms", Op.SET, "5"), ("segment.bytes", Op.SET, "100")).error == E.NONE
    assert settings(topic) == {"retention.ms": "5", "segment.bytes": "100"}
    assert alter(topic, ("retention.ms", Op.DELETE, None), ("flush.ms", Op.DELETE, None)).error == E.NONE
    assert settings(topic) == {"segment.bytes": "100"}


def test_value_in_a_form_of_earlier_versions_does_not_block_other_changes(topic: World) -> None:
    old = ConfigRecord(scope=Scope.TOPIC, name="t", key="retention.ms", value="1_000")
    topic.image = evolve(topic.image, old)
    assert alter(topic, ("flush.ms", Op.SET, "5")).error == E.NONE
    assert alter(topic, ("segment.bytes", Op.SET, "1_000")).error == E.INVALID_CONFIG
    assert alter(topic, ("retention.ms", Op.DELETE, None)).error == E.NONE
    assert settings(topic) == {"flush.ms": "5"}


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_not_tiered(world: World, name: str) -> None:
    """A coordinator that loads reads the whole partition from the local log."""
    world.brokers(1)
    tiered = world.create(name, configs=(("remote.storage.enable", "true"),))
    assert tiered.error == E.INVALID_CONFIG and "cannot be tiered" in tiered.message
    assert world.create(name).error == E.NONE
    assert alter(world, ("remote.storage.enable", Op.SET, "true"), name=name).error == E.INVALID_CONFIG
    assert alter(world, ("remote.storage.enable", Op.SET, "false"), name=name).error == E.NONE


def test_append_and_subtract_start_from_the_default(topic: World) -> None:
    alter(topic, ("cleanup.policy", Op.APPEND, "compact"))
    assert settings(topic) == {"cleanup.policy": "delete,compact"}
    alter(topic, ("cleanup.policy", Op.APPEND, "compact"))
    assert settings(topic) == {"cleanup.policy": "delete,compact"}
    alter(topic, ("cleanup.policy", Op.SUBTRACT, "delete"))
    assert settings(topic) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    "changes",
    [
        [("retention.ms", Op.SET, "x")],
        [("retention.ms", Op.SET, None)],
        [("retention.ms", Op.APPEND, "1")],
        [("no.such", Op.SET, "1")],
        [("cleanup.policy", Op.APPEND, "shred")],
        [
            ("remote.storage.enable", Op.SET, "true"),
            ("retention.ms", Op.SET, "10"),
            ("local.retention.ms", Op.SET, "11"),
        ],
        [
            ("remote.storage.enable", Op.SET, "true"),
            ("retention.bytes", Op.SET, "10"),
            ("local.retention.bytes", Op.SET, "-1"),
        ],
        [("min.compaction.lag.ms", Op.SET, "2"), ("max.compaction.lag.ms", Op.SET, "1")],
    ],
)
def test_invalid_settings_are_refused_completely(topic: World, changes: Any) -> None:
    outcome = alter(topic, ("segment.bytes", Op.SET, "100"), *changes)
    assert outcome.error == E.INVALID_CONFIG
    assert changes[0][0] in outcome.message or len(changes) > 1
    assert settings(topic) == {}


def test_setting_that_is_changed_twice_is_refused(topic: World) -> None:
    outcome = alter(topic, ("retention.ms", Op.SET, "1"), ("retention.ms", Op.DELETE, None))
    assert outcome.error == E.INVALID_REQUEST


def test_disabling_tiering_must_be_explicit(topic: World) -> None:
    alter(topic, ("remote.storage.enable", Op.SET, "true"))
    refused = alter(topic, ("remote.storage.enable", Op.SET, "false"))
    assert refused.error == E.INVALID_CONFIG
    assert "`remote.storage.enable=true,remote.log.copy.disable=true`" in refused.message
    assert "`remote.storage.enable=false,remote.log.delete.on.disable=true`" in refused.message
    assert alter(topic, ("remote.storage.enable", Op.DELETE, None)).error == E.INVALID_CONFIG
    meant = alter(
        topic,
        ("remote.storage.enable", Op.SET, "false"),
        ("remote.log.delete.on.disable", Op.SET, "true"),
    )
    assert meant.error == E.NONE


def test_brokers_and_the_cluster_have_defaults_of_topic_settings(world: World) -> None:
    world.brokers(3)
    change = ("log.retention.ms", Op.SET, "7")
    assert alter(world, change, scope=Scope.CLUSTER, name="").error == E.NONE
    assert alter(world, change, scope=Scope.BROKER, name="3").error == E.NONE
    assert settings(world, Scope.CLUSTER, "")["log.retention.ms"] == "7"
    assert settings(world, Scope.BROKER, "3") == {"log.retention.ms": "7"}
    assert alter(world, ("log.dirs", Op.SET, "/x"), scope=Scope.CLUSTER, name="").error == E.INVALID_REQUEST


@pytest.mark.parametrize(
    ("scope", "name", "error"),
    [
        (Scope.TOPIC, "nope", E.UNKNOWN_TOPIC_OR_PARTITION),
        (Scope.BROKER, "x", E.INVALID_REQUEST),
        (Scope.BROKER, "2", E.BROKER_ID_NOT_REGISTERED),
        (Scope.BROKER, "01", E.BROKER_ID_NOT_REGISTERED),
        (Scope.BROKER, "9" * 5000, E.BROKER_ID_NOT_REGISTERED),
        (Scope.CLUSTER, "x", E.INVALID_REQUEST),
    ],
)
def test_unknown_resources_are_refused(topic: World, scope: Scope, name: str, error: E) -> None:
    assert alter(topic, ("retention.ms", Op.SET, "1"), scope=scope, name=name).error == error


def test_resources_fail_one_by_one_and_validate_only_changes_nothing(topic: World) -> None:
    def resource(name: str) -> c.ConfigResource:
        change = c.ConfigChange(key="retention.ms", operation=Op.SET, value="1")
        return c.ConfigResource(scope=Scope.TOPIC, name=name, changes=(change,))

    both = (resource("t"), resource("nope"))
    reply = topic.do(c.AlterConfigs(resources=both, validate_only=True))
    assert [outcome.error for outcome in reply.resources] == [
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert settings(topic) == {}
    topic.do(c.AlterConfigs(resources=both))
    assert settings(topic) == {"retention.ms": "1"}


def test_resource_that_is_named_twice_is_not_changed(topic: World) -> None:
    changes = (c.ConfigChange(key="retention.ms", operation=Op.SET, value="1"),)
    resource = c.ConfigResource(scope=Scope.TOPIC, name="t", changes=changes)
    reply = topic.do(c.AlterConfigs(resources=(resource, resource)))
    assert [outcome.error for outcome in reply.resources] == [E.INVALID_REQUEST] * 2
    assert settings(topic) == {}


@pytest.mark.parametrize("scope", [Scope.BROKER, Scope.CLUSTER])
def test_dynamic_settings_of_kafka_are_accepted(world: World, scope: Scope) -> None:
    """Also settings without effect here, and unknown names, which may belong to plug-ins."""
    world.brokers(3)
    name = "3" if scope is Scope.BROKER else ""
    before = settings(world, scope, name)
    changes = {
        "num.replica.fetchers": "2",
        "log.cleaner.threads": "2",
        "metric.reporters": "a.B",
        "my.own": "x",
    }
    sets = [(key, Op.SET, value) for key, value in changes.items()]
    assert alter(world, *sets, scope=scope, name=name).error == E.NONE
    assert settings(world, scope, name) == before | changes
    appended = alter(world, ("metric.reporters", Op.APPEND, "c.D"), scope=scope, name=name)
    assert (appended.error, settings(world, scope, name)["metric.reporters"]) == (E.NONE, "a.B,c.D")
    deletes = [(key, Op.DELETE, None) for key in changes]
    assert alter(world, *deletes, scope=scope, name=name).error == E.NONE
    assert settings(world, scope, name) == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("log.cleaner.threads", Op.SET, "many"), E.INVALID_REQUEST),
        (("log.cleaner.threads", Op.APPEND, "1"), E.INVALID_CONFIG),
        *(
            ((name, Op.SET, value), E.INVALID_REQUEST)
            for name, value in (
                ("num.network.threads", "-5"),
                ("num.io.threads", "0"),
                ("background.threads", "0"),
                ("log.cleaner.threads", "-1"),
                ("remote.log.manager.copier.thread.pool.size", "0"),
                ("compression.gzip.level", "99"),
                ("compression.gzip.level", "0"),
                ("compression.lz4.level", "18"),
                ("compression.zstd.level", "23"),
                ("group.coordinator.cached.buffer.max.bytes", "1"),
                ("remote.list.offsets.request.timeout.ms", "0"),
            )
        ),
        (("num.partitions", Op.SET, "1"), E.INVALID_REQUEST),
        (("queued.max.requests", Op.SET, "1"), E.INVALID_REQUEST),  # read at Kafka's start, unknown here
        (
            ("ssl.client.auth", Op.SET, "required"),
            E.INVALID_REQUEST,
        ),  # it has no effect here, which would be dangerous to believe
        (("listener.name.plaintext.max.connections", Op.SET, "1"), E.INVALID_REQUEST),
        (("listeners", Op.SET, "PLAINTEXT://:1"), E.INVALID_REQUEST),
        (("", Op.SET, "1"), E.INVALID_REQUEST),
    ],
)
def test_invalid_settings_of_brokers_are_refused(
    world: World, change: tuple[str, Op, str | None], error: E
) -> None:
    outcome = alter(world, change, scope=Scope.CLUSTER, name="")
    assert outcome.error == error
    assert change[0] in outcome.message


def test_number_of_unknown_names_is_limited(world: World) -> None:
    def own(first: int, count: int) -> list[tuple[str, Op, str | None]]:
        return [(f"my.{number}", Op.SET, "x") for number in range(first, first + count)]

    world.brokers(1)
    most = configs.UNKNOWN_NAMES_MAX
    assert alter(world, *own(0, most), scope=Scope.CLUSTER, name="").error == E.NONE
    assert alter(world, *own(most, 1), scope=Scope.CLUSTER, name="").error == E.POLICY_VIOLATION
    assert alter(world, *own(0, most), scope=Scope.BROKER, name="1").error == E.NONE


@pytest.mark.parametrize(
    ("scope", "name", "key", "value", "error"),
    [
        (Scope.GROUP, "g", "consumer.session.timeout.ms", "50000", E.NONE),
        (Scope.GROUP, "g", "consumer.session.timeout.ms", "0", E.INVALID_CONFIG),
        (Scope.GROUP, "g", "share.auto.offset.reset", "by_duration:P1DT2H", E.NONE),
        (Scope.GROUP, "g", "share.auto.offset.reset", "soon", E.INVALID_CONFIG),
        (Scope.GROUP, "g", "retention.ms", "1", E.INVALID_CONFIG),
        (Scope.GROUP, "", "consumer.session.timeout.ms", "50000", E.INVALID_REQUEST),
        (Scope.CLIENT_METRICS, "s", "match", "client_id=a.*,client_source_port=9", E.NONE),
        (Scope.CLIENT_METRICS, "s", "match", "a.*", E.INVALID_CONFIG),
        (Scope.CLIENT_METRICS, "s", "interval.ms", "5", E.INVALID_REQUEST),
        (Scope.CLIENT_METRICS, "s", "nothing", "5", E.INVALID_REQUEST),
        (Scope.CLIENT_METRICS, "", "interval.ms", "500", E.INVALID_REQUEST),
    ],
)
def test_groups_and_client_metrics_have_settings(
    world: World, scope: Scope, name: str, key: str, value: str, error: E
) -> None:
    assert alter(world, (key, Op.SET, value), scope=scope, name=name).error == error
    assert settings(world, scope, name) == ({key: value} if error == E.NONE else {})


def test_number_of_groups_with_settings_is_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "NAMED_RESOURCES_MAX", 2)
    change = ("consumer.session.timeout.ms", Op.SET, "50000")
    outcomes = [alter(world, change, scope=Scope.GROUP, name=name).error for name in ("a", "b", "c", "a")]
    assert outcomes == [E.NONE, E.NONE, E.POLICY_VIOLATION, E.NONE]


def group(number: int, value: str | None = "50000") -> c.ConfigResource:
    operation = Op.DELETE if value is None else Op.SET
    change = c.ConfigChange(key="consumer.session.timeout.ms", operation=operation, value=value)
    return c.ConfigResource(scope=Scope.GROUP, name=f"g{number}", changes=(change,))


def test_groups_of_one_command_count_towards_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "NAMED_RESOURCES_MAX", 2)
    command = c.AlterConfigs(resources=(group(0), group(1), group(2)))
    assert [one.error for one in world.do(command).resources] == [E.NONE, E.NONE, E.POLICY_VIOLATION]
    command = c.AlterConfigs(resources=(group(3), group(0, None), group(2), group(4)))
    outcomes = [one.error for one in world.do(command).resources]
    assert outcomes == [E.POLICY_VIOLATION, E.NONE, E.NONE, E.POLICY_VIOLATION]


def test_groups_with_settings_are_counted_once_per_command(world: World) -> None:
    walks = 0

    class Counted(dict[Any, Any]):
        def items(self) -> Any:
            nonlocal walks
            walks += 1
            return super().items()

        def set(self, key: Any, value: Any) -> "Counted":
            return Counted(self | {key: value})

    image = ClusterImage(cluster_id="c", configs=Counted())  # type: ignore[arg-type]
    resources = tuple(group(number) for number in range(20))
    assert len(configs.alter(image, c.AlterConfigs(resources=resources)).records) == 20
    assert walks == 1


@pytest.mark.parametrize(
    ("scope", "name", "key"),
    [
        (Scope.CLUSTER, "", "metric.reporters"),
        (Scope.BROKER, "1", "metric.reporters"),
        (Scope.TOPIC, "t", "leader.replication.throttled.replicas"),
        (Scope.CLIENT_METRICS, "s", "metrics"),
    ],
)
def test_value_is_limited_to_the_size_of_a_string_on_the_wire(
    topic: World, scope: Scope, name: str, key: str
) -> None:
    long = ",".join(f"{number}:1" for number in range(2, 6_000))
    at_most = long[:STRING_BYTES_MAX].rpartition(",")[0]
    assert alter(topic, (key, Op.SET, at_most), scope=scope, name=name).error == E.NONE
    before = settings(topic, scope, name)
    for operation, value in ((Op.APPEND, "100000:1,100001:1"), (Op.SET, long)):
        outcome = alter(topic, (key, operation, value), scope=scope, name=name)
        assert outcome.error == E.INVALID_CONFIG and str(STRING_BYTES_MAX) in outcome.message
    assert settings(topic, scope, name) == before
    assert alter(topic, (key, Op.APPEND, "2:1"), scope=scope, name=name).error == E.NONE  # it exists already


def test_names_and_values_of_new_topics_are_limited(world: World) -> None:
    world.brokers(1)
    key = "leader.replication.throttled.replicas"
    outcome = world.create("t", configs=((key, "1:1," * STRING_BYTES_MAX),))
    assert outcome.error == E.INVALID_CONFIG
    outcome = alter(world, ("é" * 20_000, Op.SET, "x"), scope=Scope.CLUSTER, name="")
    assert outcome.error == E.INVALID_CONFIG


def test_older_value_beyond_the_limit_stays_until_it_is_changed(topic: World) -> None:
    key = "leader.replication.throttled.replicas"
    record = ConfigRecord(
        scope=Scope.TOPIC, name="t", key=key, value=",".join(f"{n}:1" for n in range(6_000))
    )
    topic.image = evolve(topic.image, record)
    assert alter(topic, ("retention.ms", Op.SET, "5")).error == E.NONE
    assert alter(topic, (key, Op.APPEND, "0:2")).error == E.INVALID_CONFIG
    assert alter(topic, (key, Op.DELETE, None)).error == E.NONE
    assert settings(topic) == {"retention.ms": "5"}


def test_append_adds_a_value_once(topic: World) -> None:
    key = "leader.replication.throttled.replicas"
    alter(topic, (key, Op.SET, "1:1,0:1"))
    alter(topic, (key, Op.APPEND, "2:1,0:1,2:1"))
    assert settings(topic) == {key: "1:1,0:1,2:1"}
    alter(topic, (key, Op.SUBTRACT, "0:1,7:1"))
    assert settings(topic) == {key: "1:1,2:1"}


@pytest.mark.parametrize("scope", [Scope.GROUP, Scope.CLIENT_METRICS, Scope.BROKER, Scope.CLUSTER])
def test_size_of_all_settings_of_a_scope_is_limited(
    world: World, monkeypatch: pytest.MonkeyPatch, scope: Scope
) -> None:
    """Clients choose names and values, and every node keeps them in memory."""
    key = {Scope.GROUP: "share.auto.offset.reset", Scope.CLIENT_METRICS: "metrics"}.get(scope, "my.own")
    value = "by_duration:P1DT2H"
    names = [""] if scope is Scope.CLUSTER else ["1", "2"]
    world.brokers(1, 2)
    kept = sum(len(one) + len(text) for one, text in settings(world, scope, "").items())
    each = len(key) + len(value)
    most = kept + sum(each + len(name) for name in names)
    monkeypatch.setattr(configs, "SCOPE_BYTES_MAX", most)

    def put(name: str, text: str) -> Any:
        return alter(world, (key, Op.SET, text), scope=scope, name=name)

    assert [put(name, value).error for name in names] == [E.NONE] * len(names)
    refused = put(names[0], value.replace("1D", "10D"))
    assert (refused.error, str(most) in refused.message) == (E.POLICY_VIOLATION, True)
    monkeypatch.setattr(configs, "SCOPE_BYTES_MAX", 1)  # as if an older version had stored more
    assert put(names[0], value.replace("2H", "3H")).error == E.NONE
    assert alter(world, (key, Op.DELETE, None), scope=scope, name=names[0]).error == E.NONE


def test_settings_of_a_former_broker_can_be_deleted(world: World) -> None:
    world.brokers(1, 2)
    change = ("log.retention.ms", Op.SET, "7")
    assert alter(world, change, scope=Scope.BROKER, name="2").error == E.NONE
    world.fence(2)
    world.do(c.UnregisterBroker(broker_id=2))
    assert alter(world, change, scope=Scope.BROKER, name="2").error == E.BROKER_ID_NOT_REGISTERED
    deleted = ("log.retention.ms", Op.DELETE, None)
    assert alter(world, deleted, scope=Scope.BROKER, name="2").error == E.NONE
    assert settings(world, Scope.BROKER, "2") == {}


def test_unclean_election_setting_of_one_broker_has_no_effect(world: World) -> None:
    """As in Kafka; the value of the topic or the cluster applies (ADR 0010)."""
    world.brokers(1, 2)
    change = ("unclean.leader.election.enable", Op.SET, "true")
    assert alter(world, change, scope=Scope.BROKER, name="1").error == E.NONE
    assert settings(world, Scope.BROKER, "1") == {"unclean.leader.election.enable": "true"}
    assert not cluster_defaults(world.image).unclean
