"""Settings of the audit log. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.authorization import AuthorizerSettings
from tierlog.config.definitions import InvalidSetting, int_, long_, string_
from tierlog.config.topic import INTERNAL_TOPICS, is_topic_name

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(AuthorizerSettings):
    # Audit log
    audit_log_dir: str = string_(
        "",
        "Directory of the audit log: admin actions in audit-<node.id>.jsonl, denied accesses and logins in "
        "audit-<node.id>-denied.jsonl. If empty, there is none. Set it on all nodes of a cluster that "
        "several people administer, on another disk than the logs if you can.",
    )
    audit_log_max_bytes: int = long_(
        16 * MIB,
        "Maximum size in bytes of each of the two files of the audit log. Then a new file is begun. "
        "Raise it if you must keep entries for longer.",
        minimum=64 * KIB,
    )
    audit_log_max_files: int = int_(
        10,
        "Maximum number of files of each kind in the audit log, with the current one. The oldest is "
        "deleted. Raise it if you must keep entries for longer, or collect the files.",
        minimum=2,
        maximum=1_000,
    )
    audit_log_repeat_ms: int = long_(
        60_000,
        "How long, in milliseconds, denials like an earlier one are counted before an entry with their "
        "number is written. Raise it if refused clients that try again fill the audit log.",
        minimum=1_000,
        maximum=3_600_000,
    )
    audit_log_topic: str = string_(
        "",
        "Topic to which brokers also produce the entries of their audit logs, such as _tierlog.audit. Only "
        "brokers can write to it. They create it with one partition and "
        "offsets.topic.replication.factor replicas if it is missing. If empty, entries are in files alone. "
        "Set it on all brokers if you collect entries with a consumer. The files stay complete without it.",
    )

    @property
    def topics_of_brokers(self) -> frozenset[str]:
        """Topics to which clients cannot write."""
        return INTERNAL_TOPICS | ({self.audit_log_topic} - {""})

    def check_audit_log(self) -> None:
        """Raises InvalidSetting."""
        topic = self.audit_log_topic
        if not topic:
            return
        if not self.audit_log_dir:
            raise InvalidSetting("audit.log.topic: needs audit.log.dir, which has the entries first")
        if not is_topic_name(topic) or topic in INTERNAL_TOPICS:
            raise InvalidSetting(
                f"audit.log.topic: {topic!r} cannot be a topic of its own: use at most 249 ASCII letters, "
                "digits, '.', '_' and '-'"
            )
