"""What the `quota` commands ask of a cluster, as plain rows: no printing, no options."""

import math
from collections.abc import Mapping
from typing import Any

from tierlog.cli.client import KafkaClient, raise_for
from tierlog.protocol.messages import alter_client_quotas as alter
from tierlog.protocol.messages import describe_client_quotas as describe

EXACT, DEFAULT = 0, 1  # match types of DescribeClientQuotas
Entity = dict[str, str | None]
"""Entity type -> name; None: all who have no quota of their own."""

Value = float | int | str
Row = dict[str, Any]


def rows(client: KafkaClient, entity: Entity, *, strict: bool = False) -> list[Row]:
    """Entities with these types and names (`strict`: and no others), each with its quotas."""
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
    """Sets quotas of one entity, or removes them (None)."""
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
    """For people: `user ada, default client-id`."""
    named = [f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items()]
    return ", ".join(named) or "quotas"


def plain(value: float) -> Value:
    """JSON knows no infinity; whole numbers are shown as such."""
    if math.isinf(value):
        return "inf"
    return int(value) if value == int(value) else value
