"""Responses as they are compared between Apache Kafka and tierlog: without what must differ."""

import dataclasses
import uuid
from typing import Any

from tierlog.protocol.errors import ErrorCode

LEFT_OUT = {"throttle_time_ms", "error_message", "host", "port", "cluster_id", "log_append_time_ms"}
NOT_TOLD_WITH_AN_ERROR = {"log_start_offset", "aborted_transactions"}  # no client looks at them then
UNORDERED = {"entries", "values", "configs"}  # quotas and settings in the order of a hash map
SET_BY_TESTS = {16, 32}
"""Types of resources (client metrics, groups) that other tests leave in the same broker."""
UNKNOWN_ID = uuid.UUID(int=7)


def plain(value: Any, topic: str, name: str = "") -> Any:
    """Without what must differ: topics by their part in the case, ids as known or not."""
    if dataclasses.is_dataclass(value):
        left_out = LEFT_OUT | NOT_TOLD_WITH_AN_ERROR if getattr(value, "error_code", 0) else LEFT_OUT
        names = [field.name for field in dataclasses.fields(value) if field.name not in left_out]
        return {field: plain(getattr(value, field), topic, field) for field in names}
    if name == "config_resources" and isinstance(value, list):
        value = [
            each for each in value if each.resource_type not in SET_BY_TESTS or topic in each.resource_name
        ]
    if isinstance(value, list):
        found = [plain(item, topic, name) for item in value]
        return sorted(found, key=repr) if name in UNORDERED else found
    if isinstance(value, uuid.UUID):
        return value.int if value.int <= UNKNOWN_ID.int else "an id"
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.replace(topic, "$t")
    return ErrorCode(value).name if name == "error_code" else value
