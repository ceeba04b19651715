"""Findings of `tierlog cluster config lint`: settings of a node's file that are unknown, old, contradictory
or dangerous, each with a remedy.

Needs no cluster. References to secrets (`${env:…}`) stay unresolved, so a file can be checked anywhere.
Security is left to `tierlog security check --config`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tierlog.cli.errors import usage
from tierlog.client.properties import read_properties
from tierlog.config.definitions import InvalidSetting, SettingType, find_setting
from tierlog.config.kafka_names import INERT_SETTINGS, READ_AT_START
from tierlog.config.listeners import ALL_ADDRESSES
from tierlog.config.node import BROKER, CONTROLLER, NODE_SETTINGS, NodeSettings
from tierlog.config.sources import ALIASES, read_toml, settings_from, without_aliases
from tierlog.config.tls import listener_setting
from tierlog.config.topic import check_local_retention

REPLICAS = 3
_REFERENCE = re.compile(r"\$\{(?:file|env|directory):[^}]*\}")
_TEXTS = (SettingType.STRING, SettingType.PASSWORD, SettingType.LIST, SettingType.UNKNOWN)


class Level(StrEnum):
    INVALID = "invalid"  # a node does not start with it
    DANGER = "danger"  # records may be lost, or requests not be served
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """`name`: the setting. `line`: in the file; None: several, or none."""

    level: Level
    name: str
    what: str
    next: str
    line: int | None = None

    def row(self) -> dict[str, object]:
        return {
            "level": self.level.value,
            "line": self.line,
            "name": self.name,
            "what": self.what,
            "next": self.next,
        }


RETIRED = {
    "zookeeper.connect": "Remove it: there is no ZooKeeper. Set controller.quorum.voters instead.",
    "zookeeper.connection.timeout.ms": "Remove it: there is no ZooKeeper.",
    "zookeeper.session.timeout.ms": "Remove it: there is no ZooKeeper.",
    "broker.id.generation.enable": "Remove it, and give each node its own node.id.",
    "host.name": "Set listeners instead.",
    "port": "Set listeners instead.",
    "advertised.host.name": "Set advertised.listeners instead.",
    "advertised.port": "Set advertised.listeners instead.",
    "security.inter.broker.protocol": "Set inter.broker.listener.name instead.",
    "control.plane.listener.name": "Remove it: nodes use admin.listener among themselves.",
    "controller.listener.names": "Remove it: nodes use admin.listener among themselves.",
    "inter.broker.protocol.version": "Remove it: `tierlog cluster finalize` ends an upgrade.",
    "log.message.format.version": "Remove it: all records have the current format.",
    "log.message.downconversion.enable": "Remove it: records are never converted.",
    "log.message.timestamp.difference.max.ms": "Set log.message.timestamp.before.max.ms instead.",
    "delegation.token.master.key": "Set delegation.token.secret.key instead.",
    "quota.producer.default": "Remove it, and use `tierlog quota set producer_byte_rate=… --user-defaults`.",
    "quota.consumer.default": "Remove it, and use `tierlog quota set consumer_byte_rate=… --user-defaults`.",
    "offsets.commit.required.acks": "Remove it: offsets are always committed with acks=all.",
    "remote.log.storage.system.enable": "Set object.store.url instead.",
    "remote.log.storage.manager.class.name": "Set object.store.url instead.",
    "remote.log.storage.manager.class.path": "Set object.store.url instead.",
    "remote.log.metadata.manager.class.name": "Remove it: the quorum and the bucket keep the metadata.",
    "delete.topic.enable": "Remove it. Limit deletions by ACLs: `tierlog acl create --operation delete`.",
}
"""Settings of Kafka, most of them of versions before 4.0, and what to do with them."""


def lint_file(file: Path) -> list[LintFinding]:
    """Findings in a file, the worst first. Raises CliError if it cannot be read."""
    try:
        texts = read_properties(file) if file.suffix == ".properties" else read_toml(file)
    except InvalidSetting as wrong:
        hint = "A node's settings are TOML with Kafka's names, or a file that ends in .properties."
        raise usage(str(wrong), hint=hint) from None
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [replace(finding, line=_line_of(finding.name, lines)) for finding in lint(texts)]
    levels = list(Level)
    return sorted(found, key=lambda one: (levels.index(one.level), one.line or 0, one.name))


def lint(texts: Mapping[str, str]) -> Iterator[LintFinding]:
    """Findings in settings, given as names and strings."""
    valid = {}
    for name, text in texts.items():
        finding = _of_name(name) or _of_value(name, text)
        if finding is None:
            valid[name] = text
        else:
            yield finding
    yield from _repeated(valid)
    known = {name: text for name, text in valid.items() if not _is_unresolved(name, text)}
    if "controller.quorum.voters" in known:  # the secret is often in the node's environment
        known.setdefault("controller.quorum.secret", "not in the file")
    try:
        settings = settings_from(known)
    except InvalidSetting as wrong:
        name = str(wrong).partition(":")[0].partition(" ")[0]
        remedy = "Change one of the settings that the message names."
        yield LintFinding(level=Level.INVALID, name=name, what=str(wrong), next=remedy)
        return
    for rule in RULES:
        yield from rule(settings)


def _of_name(name: str) -> LintFinding | None:
    """Why a node does not start with a setting of this name."""
    if name in ALIASES or name in NODE_SETTINGS:
        return None
    try:
        of_listener = listener_setting(name)
        find_setting(NODE_SETTINGS, of_listener[1] if of_listener else name)
    except InvalidSetting as unknown:
        what, remedy = str(unknown), "Correct the name, or remove the line."
        if name in RETIRED:
            what, remedy = f"{name} is a setting of Kafka that tierlog does not have", RETIRED[name]
        elif name in INERT_SETTINGS:
            why = INERT_SETTINGS[name].doc.removesuffix(INERT_SETTINGS[name].doc.partition(". ")[2])
            what = f"{name} is a setting of Kafka that tierlog does not need: {why.strip()}"
            remedy = "Remove the line. Clients can still set it while brokers run, without effect."
        elif name in READ_AT_START:
            what, remedy = f"{name} is a setting of Kafka that tierlog does not have", "Remove the line."
        return LintFinding(level=Level.INVALID, name=name, what=what, next=remedy)
    return None


def _of_value(name: str, text: str) -> LintFinding | None:
    if name in ALIASES:
        return _parsed(name, lambda: without_aliases({name: text}))
    of_listener = listener_setting(name)
    setting = NODE_SETTINGS[of_listener[1] if of_listener else name]
    return None if _REFERENCE.search(text) else _parsed(name, lambda: setting.accept(text))


def _parsed(name: str, parse: Callable[[], object]) -> LintFinding | None:
    try:
        parse()
    except InvalidSetting as wrong:
        remedy = (
            f"docs/reference/settings.md has the type, bounds and default of {ALIASES.get(name, (name,))[0]}."
        )
        return LintFinding(level=Level.INVALID, name=name, what=str(wrong), next=remedy)
    return None


def _is_unresolved(name: str, text: str) -> bool:
    setting = NODE_SETTINGS.get(name)
    is_text = setting is None or (setting.type in _TEXTS and not setting.choices)
    return bool(_REFERENCE.search(text)) and not is_text


def _repeated(texts: Mapping[str, str]) -> Iterator[LintFinding]:
    """Several names of one setting, of which the one with the finest unit counts."""
    names: dict[str, list[str]] = {}
    for name in texts:
        names.setdefault(ALIASES.get(name, (name,))[0], []).append(name)
    for several in names.values():
        several.sort(key=lambda name: ALIASES.get(name, (name, 0))[1])
        for ignored in several[1:]:
            yield LintFinding(
                level=Level.WARNING,
                name=ignored,
                what=f"{ignored} has no effect: {several[0]} is another name of the same setting, and counts",
                next="Remove one of the two lines.",
            )


# --- rules: settings that are valid, and contradict each other or what they are for


def _replicas(settings: NodeSettings) -> Iterator[LintFinding]:
    """Copies of records. A node alone has one."""
    if not settings.controller_quorum_secret or BROKER not in settings.process_roles:
        return
    copies, least = settings.default_replication_factor, settings.min_insync_replicas
    if copies < 2:
        yield LintFinding(
            level=Level.DANGER,
            name="default.replication.factor",
            what="topics that are created without a replication factor have one replica: the loss of a "
            "broker loses their records",
            next=f"Set default.replication.factor={REPLICAS}.",
        )
    if least > copies:
        yield LintFinding(
            level=Level.DANGER,
            name="min.insync.replicas",
            what=f"min.insync.replicas={least} is above default.replication.factor={copies}: no produce with "
            "acks=all to a topic with the defaults succeeds",
            next="Set min.insync.replicas to one less than default.replication.factor.",
        )
    elif least == copies > 1:
        yield LintFinding(
            level=Level.DANGER,
            name="min.insync.replicas",
            what=f"all {copies} replicas must be in sync: while one broker restarts, produces with "
            "acks=all fail",
            next="Set min.insync.replicas to one less than default.replication.factor.",
        )
    elif copies >= REPLICAS and least < 2:
        yield LintFinding(
            level=Level.DANGER,
            name="min.insync.replicas",
            what="with min.insync.replicas=1 a record may be acknowledged that only one replica has, and "
            "be lost with it",
            next="Set min.insync.replicas=2, and on a running cluster "
            "`tierlog cluster config set min.insync.replicas=2`.",
        )
    for name in ("offsets.topic.replication.factor", "transaction.state.log.replication.factor"):
        if getattr(settings, name.replace(".", "_")) < min(copies, REPLICAS):
            yield LintFinding(
                level=Level.DANGER,
                name=name,
                what=f"{name} is below default.replication.factor: offsets or transactions are lost sooner "
                "than records",
                next=f"Set {name}={REPLICAS} before the first group or transaction.",
            )


def _lost_records(settings: NodeSettings) -> Iterator[LintFinding]:
    if settings.unclean_leader_election_enable:
        yield LintFinding(
            level=Level.DANGER,
            name="unclean.leader.election.enable",
            what="a replica that lacks acknowledged records may become leader, and they are lost",
            next="Remove it, and set it only for topics where availability is worth more.",
        )
    if not settings.transaction_partition_verification_enable:
        yield LintFinding(
            level=Level.DANGER,
            name="transaction.partition.verification.enable",
            what="a late record can open a transaction that never ends (KIP-890)",
            next="Remove the line: it is on by default.",
        )
    try:
        check_local_retention(settings.topic_config({}), prefix="log.")
    except InvalidSetting as wrong:
        yield LintFinding(
            level=Level.DANGER,
            name="log.local.retention.ms" if ".ms" in str(wrong) else "log.local.retention.bytes",
            what=str(wrong),
            next="Lower the local retention, or set it to -2, which follows the retention.",
        )


def _stores(settings: NodeSettings) -> Iterator[LintFinding]:
    url, name = settings.object_store_url, "object.store.url"
    if BROKER not in settings.process_roles:
        return
    if url.startswith("memory:"):
        yield LintFinding(
            level=Level.DANGER,
            name=name,
            what="the object store is in memory: all tiered records are lost when the node stops",
            next="Use s3://bucket/prefix, or a file:///directory.",
        )
    elif settings.controller_quorum_secret and not url:
        yield LintFinding(
            level=Level.WARNING,
            name=name,
            what="without an object store a cluster of several brokers tiers nothing",
            next="Set object.store.url to a store that all brokers reach.",
        )
    elif settings.controller_quorum_secret and url.startswith("file:"):
        yield LintFinding(
            level=Level.WARNING,
            name=name,
            what="all brokers must reach the same directory: on different disks, history is lost with its "
            "broker",
            next="Use s3://bucket/prefix, or check that the directory is a shared file system.",
        )


def _directories(settings: NodeSettings) -> Iterator[LintFinding]:
    for directory in map(Path, settings.log_dirs):
        if not directory.is_absolute():
            yield LintFinding(
                level=Level.WARNING,
                name="log.dirs",
                what=f"{directory} depends on the working directory: started elsewhere, the node is empty",
                next="Set log.dirs to absolute paths.",
            )
        elif directory.is_relative_to("/tmp") or directory.is_relative_to("/var/tmp"):
            yield LintFinding(
                level=Level.DANGER,
                name="log.dirs",
                what=f"{directory} is a temporary directory, which the system empties",
                next="Use a directory of a disk for data, such as /var/lib/tierlog.",
            )
    if not settings.metadata_reserve_bytes:
        yield LintFinding(
            level=Level.WARNING,
            name="metadata.reserve.bytes",
            what="when the metadata's disk is full, the quorum stops",
            next="Remove the line: 4 MiB are reserved by default.",
        )


def _addresses(settings: NodeSettings) -> Iterator[LintFinding]:
    for listener in settings.client_listeners if BROKER in settings.process_roles else ():
        if listener.host in ("", ALL_ADDRESSES, "::") and listener.advertised is None:
            address = listener.host or ALL_ADDRESSES
            yield LintFinding(
                level=Level.DANGER,
                name="advertised.listeners",
                what=f"listener {listener.name} gives clients the address {address}, to which they cannot "
                "connect",
                next=f"Set advertised.listeners={listener.name}://HOST:{listener.port}.",
            )


def _quorum(settings: NodeSettings) -> Iterator[LintFinding]:
    voters = len(settings.voters)
    if voters > 1 and voters % 2 == 0:
        yield LintFinding(
            level=Level.WARNING,
            name="controller.quorum.voters",
            what=f"{voters} voters survive no more failures than {voters - 1} do",
            next="Use three or five voters.",
        )
    election = settings.controller_quorum_election_timeout_ms
    fetch = settings.controller_quorum_fetch_timeout_ms
    if CONTROLLER in settings.process_roles and voters > 1 and fetch < election:
        yield LintFinding(
            level=Level.WARNING,
            name="controller.quorum.fetch.timeout.ms",
            what="a leader gives up before the other voters miss it, so that a short pause costs an election",
            next="Set it to twice controller.quorum.election.timeout.ms.",
        )


def _times(settings: NodeSettings) -> Iterator[LintFinding]:
    if settings.replica_fetch_wait_max_ms * 2 > settings.replica_lag_time_max_ms:
        yield LintFinding(
            level=Level.DANGER,
            name="replica.fetch.wait.max.ms",
            what="followers that wait so long for new records leave the in-sync replicas "
            f"(replica.lag.time.max.ms={settings.replica_lag_time_max_ms})",
            next="Keep it far below replica.lag.time.max.ms; 500 is the default.",
        )
    if settings.message_max_bytes >= settings.socket_request_max_bytes:
        yield LintFinding(
            level=Level.DANGER,
            name="message.max.bytes",
            what="a batch of this size does not fit into a request (socket.request.max.bytes="
            f"{settings.socket_request_max_bytes}): its connection is closed",
            next="Lower message.max.bytes, or raise socket.request.max.bytes above it.",
        )
    if settings.log_retention_ms < 0 and settings.log_retention_bytes < 0 and not settings.object_store_url:
        yield LintFinding(
            level=Level.WARNING,
            name="log.retention.ms",
            what="nothing is ever deleted, and nothing is tiered: the disks fill up",
            next="Set object.store.url and tier the topics, or set a retention.",
        )


RULES = (_replicas, _lost_records, _stores, _directories, _addresses, _quorum, _times)


def _line_of(name: str, lines: list[str]) -> int | None:
    """The line that sets the setting: the last, which counts in properties."""
    starts = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*[=:]""")
    numbers = [number for number, line in enumerate(lines, 1) if starts.match(line)]
    return numbers[-1] if numbers else None
