"""Requests of the `quota` commands. Returns plain rows; the commands parse options and print."""

import math
from collections.abc import Mapping
from typing import Any

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.protocol.messages import alter_client_quotas as alter
from tierlog.protocol.messages import describe_client_quotas as describe

EXACT, DEFAULT = 0, 1  # match types of DescribeClientQuotas
KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
Entity = dict[str, str | None]
"""Entity type -> name; None: the default of that type."""

Value = float | int | str
Row = dict[str, Any]


def rows(client: KafkaClient, entity: Entity, *, strict: bool = False) -> list[Row]:
    """Entities that have these types and names, each with its quotas. `strict`: and no other types."""
    components = [
        describe.ComponentData(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
        for kind, name in entity.items()
    ]
    response = client.call(describe.DescribeClientQuotasRequest(components=components, strict=strict))
    raise_for(response.error_code, response.error_message, title(entity))
    found = [
        {
            "entity": {part.entity_type: part.entity_name for part in entry.entity},
            "quotas": {value.key: plain(value.value) for value in entry.values},
        }
        for entry in response.entries or ()
    ]
    return sorted(found, key=lambda row: title(row["entity"]))


def change(
    client: KafkaClient,
    entity: Entity,
    values: Mapping[str, float] | Mapping[str, None],
    *,
    validate_only: bool = False,
) -> None:
    """Set quotas of one entity; None removes a quota."""
    entry = alter.EntryData(
        entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            alter.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()
        ],
    )
    response = client.call(alter.AlterClientQuotasRequest(entries=[entry], validate_only=validate_only))
    for result in response.entries:
        raise_for(result.error_code, result.error_message, f"quotas of {title(entity)}")


def title(entity: Entity) -> str:
    """Readable name of an entity: `user ada, default client-id`."""
    named = [f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items()]
    return ", ".join(named) or "quotas"


def plain(value: float) -> Value:
    """A value for JSON, which has no infinity. Integers are printed without a decimal point."""
    if math.isinf(value):
        return "inf"
    return int(value) if value == int(value) else value
