"""Changes of client quotas (KIP-546): for users, client ids, pairs of both, and IP addresses (KIP-612).

Refuses what Kafka refuses, and also:

- NaN, which limits nothing;
- host names instead of addresses, because no decision may depend on a name server;
- names of more than `QUOTA_NAME_MAX` characters;
- all changes of an entity that is named twice (Kafka reports an error, but keeps the first).
"""

import ipaddress
import math
from collections.abc import Mapping

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.evolve import evolve
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import (
    IP,
    QUOTA_ENTITY_TYPES,
    QUOTA_NAME_MAX,
    AnyRecord,
    QuotaEntity,
    QuotaKey,
    QuotaRecord,
)
from tierlog.protocol.errors import ErrorCode

IP_KEYS = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
CLIENT_KEYS = frozenset(QuotaKey) - IP_KEYS
WHOLE_NUMBERS: Mapping[str, int] = {
    QuotaKey.PRODUCER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONSUMER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""Quotas without fractions, and their largest value."""

ENTITIES_MAX = 10_000
"""A change or a description of quotas reads all entities, which takes some ms on the event loop."""


def alter(image: ClusterImage, command: c.AlterQuotas) -> Decision[c.QuotasAltered]:
    """Each entity changes completely or not at all."""
    records: list[AnyRecord] = []
    outcomes: list[c.QuotaOutcome] = []
    named: dict[QuotaEntity, list[c.QuotaAlteration]] = {}
    for alteration in command.alterations:
        named.setdefault(entity_of(alteration.entity), []).append(alteration)
    for entity, alterations in named.items():
        try:
            if len(alterations) > 1:
                raise _invalid(f"the entity {title(entity)} is named twice in the request")
            made = _alter(image, entity, alterations[0].changes)
        except Refusal as refusal:
            outcomes.append(c.QuotaOutcome(entity=entity, error=refusal.error, message=refusal.message))
            continue
        for record in made:
            image = evolve(image, record)
        records += made
        outcomes.append(c.QuotaOutcome(entity=entity))
    reply = c.QuotasAltered(entities=tuple(outcomes))
    return Decision(() if command.validate_only else tuple(records), reply)


def entity_of(pairs: QuotaEntity) -> QuotaEntity:
    """The canonical form of an entity. Unknown types stay, at the end."""
    names = dict(pairs)
    known = [(kind, names.pop(kind)) for kind in QUOTA_ENTITY_TYPES if kind in names]
    return (*known, *sorted(names.items(), key=lambda pair: pair[0]))


def title(entity: QuotaEntity) -> str:
    """Text for messages: `user ada, default client-id`."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)


def _alter(image: ClusterImage, entity: QuotaEntity, changes: tuple[c.QuotaChange, ...]) -> list[AnyRecord]:
    keys = _keys_of(entity)
    if len({change.key for change in changes}) < len(changes):
        raise _invalid(f"a quota of {title(entity)} is changed twice in the request")
    for change in changes:
        if change.value is not None:
            _check(keys, change.key, change.value)
    before: Mapping[str, float] = image.quotas.get(entity, {})
    if not before and any(item.value is not None for item in changes):
        _check_new(image, entity)
    return [
        QuotaRecord(entity=entity, key=change.key, value=change.value)
        for change in changes
        if before.get(change.key) != change.value
    ]


def _check_new(image: ClusterImage, entity: QuotaEntity) -> None:
    """Raise Refusal if a new entity exceeds a limit. Entities that exist can always be changed or removed."""
    if len(image.quotas) >= ENTITIES_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"there are quotas for {ENTITIES_MAX} entities already")
    for kind, name in entity:
        if name is not None and len(name) > QUOTA_NAME_MAX:
            message = f"the name of the {kind} has {len(name)} characters; {QUOTA_NAME_MAX} are allowed"
            raise Refusal(ErrorCode.POLICY_VIOLATION, message)


def _keys_of(entity: QuotaEntity) -> frozenset[QuotaKey]:
    """The quotas that an entity of these types can have. Raises Refusal."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in QUOTA_ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    names = dict(entity)
    if IP not in names:
        return CLIENT_KEYS
    if len(names) > 1:
        raise _invalid("an ip cannot be combined with a user or a client-id")
    address = names[IP]
    if address is not None and not _is_address(address):
        raise _invalid(f"{address} is not an IP address; host names are not resolved")
    return IP_KEYS


def _is_address(text: str) -> bool:
    try:
        return str(ipaddress.ip_address(text)) == text
    except ValueError:
        return False


def _check(keys: frozenset[QuotaKey], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if math.isnan(value) or value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    most = WHOLE_NUMBERS.get(key)
    if most is None:
        return
    if value > most:
        raise _invalid(f"Proposed value for {key} is too large")
    if value != int(value):
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
