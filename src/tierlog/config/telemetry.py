"""Settings of a node's log. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.audit import AuditSettings
from tierlog.config.definitions import string_

JSON_LINES, TEXT_LINES = "json", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings(AuditSettings):
    logger_format: str = string_(
        TEXT_LINES,
        "Format of the lines that the node logs to standard error: key='value' pairs, or a JSON object. Set "
        "it to json where a collector reads the log. docs/reference/events.md lists the events.",
        choices=(TEXT_LINES, JSON_LINES),
    )
