"""Settings of a node's log and traces. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.audit import AuditSettings
from tierlog.config.definitions import double_, string_

JSON_LINES, TEXT_LINES = "json", "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings(AuditSettings):
    logger_format: str = string_(
        TEXT_LINES,
        "Format of the lines that the node logs to standard error: key='value' pairs, or a JSON object. Set "
        "it to json where a collector reads the log. docs/reference/events.md lists the events.",
        choices=(TEXT_LINES, JSON_LINES),
    )
    traces_sampler_ratio: float = double_(
        0.0,
        "Share of the Produce and Fetch requests, uploads and metadata commits that are traced, from 0 "
        "(none) to 1 (all). The spans go to OTEL_EXPORTER_OTLP_ENDPOINT, an environment variable. It needs "
        "`pip install 'tierlog[traces]'`. Set it to a small share, such as 0.001, to see where time goes.",
        minimum=0,
        maximum=1,
    )
