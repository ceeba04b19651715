"""Files of committed offsets: JSON, and the CSV of Kafka's `kafka-consumer-groups --export`. Pure.

JSON keeps the metadata of each offset. Leader epochs are left out: they mean nothing in another cluster. CSV
has the columns topic, partition, offset if it is of one group, and group, topic, partition, offset otherwise.
"""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from tierlog.base.types import TopicPartition
from tierlog.cli.errors import CliError
from tierlog.cli.groups import Committed, Offsets
from tierlog.cli.options import INT32_MAX, INT64_MAX

GROUPS = "groups"
EXAMPLE = '{"groups": [{"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 5}]}]}'


def json_text(offsets: Mapping[str, Offsets]) -> str:
    """The JSON document of these groups, on one line."""
    document = {
        GROUPS: [
            {
                "group": group,
                "offsets": [
                    {
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "offset": found.offset,
                        "metadata": found.metadata,
                    }
                    for partition, found in sorted(committed.items())
                ],
            }
            for group, committed in offsets.items()
        ]
    }
    return json.dumps(document, ensure_ascii=False) + "\n"


def csv_text(offsets: Mapping[str, Offsets]) -> str:
    """The lines of Kafka's tool."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for group, committed in offsets.items():
        for partition, found in sorted(committed.items()):
            words = [partition.topic, partition.partition, found.offset]
            writer.writerow(words if len(offsets) == 1 else [group, *words])
    return out.getvalue()


def parse(text: str, name: str) -> dict[str | None, dict[TopicPartition, Committed]]:
    """Group -> its offsets; the group is None in a CSV file without groups. `name`: the file's, for messages.
    Raises CliError."""
    try:
        found = _parse_json(text) if text.lstrip()[:1] in ("{", "[") else _parse_csv(text)
    except (ValueError, KeyError, TypeError, AttributeError) as invalid:
        hint = f"Expected topic,partition,offset on each line, or JSON: {EXAMPLE}"
        reason = _reason(invalid)
        raise CliError(f"{name} holds no offsets of groups: {reason}", hint=hint) from None
    if not any(found.values()):
        raise CliError(f"{name} holds no offsets", hint="Write it with `tierlog group export`.")
    return found


def _parse_json(text: str) -> dict[str | None, dict[TopicPartition, Committed]]:
    found: dict[str | None, dict[TopicPartition, Committed]] = {}
    for group in json.loads(text)[GROUPS]:
        offsets = found.setdefault(_text(group["group"]), {})
        for each in group["offsets"]:
            partition = TopicPartition(_text(each["topic"]), _number(each["partition"], INT32_MAX))
            offset = _number(each["offset"], INT64_MAX)
            offsets[partition] = Committed(offset, metadata=_text(each.get("metadata") or ""))
    return found


def _parse_csv(text: str) -> dict[str | None, dict[TopicPartition, Committed]]:
    found: dict[str | None, dict[TopicPartition, Committed]] = {}
    for line, words in enumerate(csv.reader(io.StringIO(text)), 1):
        if not words:
            continue
        if len(words) not in (3, 4) or not all(word.isdecimal() for word in words[-2:]):
            raise ValueError(f"line {line} is {','.join(words)!r}")
        group = words[0] if len(words) == 4 else None
        partition = TopicPartition(words[-3], _number(int(words[-2]), INT32_MAX))
        found.setdefault(group, {})[partition] = Committed(_number(int(words[-1]), INT64_MAX))
    return found


def _reason(invalid: Exception) -> str:
    """In words of the file: those of a TypeError are Python's."""
    if isinstance(invalid, KeyError):
        return f"{invalid} is missing"
    return str(invalid) if isinstance(invalid, ValueError) else "the JSON has another form"


def _number(value: Any, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ValueError(f"{value!r} is not a number from 0 to {largest:,}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
