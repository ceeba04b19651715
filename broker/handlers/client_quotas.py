"""DescribeClientQuotas and AlterClientQuotas (v0-1, KIP-546).

Descriptions come from this broker's image. The controller validates and commits changes.
"""

from enum import IntEnum

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.controller.commands import AlterQuotas, QuotaAlteration, QuotaChange, QuotaOutcome
from tierlog.metadata.records import IP, QUOTA_ENTITY_TYPES, QuotaEntity
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages import alter_client_quotas as alter
from tierlog.protocol.messages import describe_client_quotas as describe

ENTRIES_MAX = 10_000
"""Maximum entries of one request, as in Kafka (MAX_RECORDS_PER_USER_OP): each may write several records."""


class MatchType(IntEnum):
    """How a filter selects the names of an entity type; the numbers are Kafka's."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


Filter = dict[str, tuple[MatchType, str | None]]
"""Entity type -> match type, and the name if the match type is EXACT."""


def describe_client_quotas_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: describe.DescribeClientQuotasRequest) -> Reply:
        conditions = _filter(request.components)
        entries = [
            describe.EntryData(
                entity=[
                    describe.EntityData(entity_type=entity_type, entity_name=name)
                    for entity_type, name in entity
                ],
                values=[describe.ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in deps.metadata.image.quotas.items()
            if _matches(entity, conditions, request.strict)
        ]
        return describe.DescribeClientQuotasResponse(entries=entries)

    return handle


def _filter(components: list[describe.ComponentData]) -> Filter:
    """Raises INVALID_REQUEST or UNSUPPORTED_VERSION, as Kafka does."""
    conditions: Filter = {}
    for component in components:
        entity_type = component.entity_type
        if not entity_type:
            raise _invalid("Invalid empty entity type.")
        if entity_type in conditions:
            raise _invalid(f"Entity type {entity_type} cannot appear more than once in the filter.")
        if entity_type not in QUOTA_ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {entity_type}")
        if component.match_type not in tuple(MatchType):
            raise _invalid(f"Unknown match type {component.match_type}")
        match_type = MatchType(component.match_type)
        if match_type is MatchType.EXACT and component.match is None:
            raise _invalid(f"Match type exact for {entity_type} needs a name")
        if match_type is not MatchType.EXACT and component.match is not None:
            raise _invalid(f"{entity_type} has a name, but its match type is not exact")
        conditions[entity_type] = match_type, component.match
    if IP in conditions and len(conditions) > 1:
        raise _invalid("an ip cannot be combined with a user or a client-id")
    return conditions


def _matches(entity: QuotaEntity, conditions: Filter, strict: bool) -> bool:
    """Whether the entity meets all conditions and, if `strict`, has no other entity types than these."""
    names = dict(entity)
    if strict and names.keys() != conditions.keys():
        return False
    return all(
        entity_type in names and (match_type is MatchType.ANY or names[entity_type] == name)
        for entity_type, (match_type, name) in conditions.items()
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def alter_client_quotas_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: alter.AlterClientQuotasRequest) -> Reply:
        if len(request.entries) > ENTRIES_MAX:
            message = f"AlterClientQuotas accepts at most {ENTRIES_MAX} entries per request"
            return alter.AlterClientQuotasResponse(
                entries=[_error_entry(entry, message) for entry in request.entries]
            )
        command = AlterQuotas(
            alterations=tuple(_alteration(entry) for entry in request.entries),
            validate_only=request.validate_only,
        )
        reply = await deps.metadata.submit(command)
        return alter.AlterClientQuotasResponse(
            entries=[_response_entry(outcome) for outcome in reply.entities]
        )

    return handle


def _alteration(entry: alter.EntryData) -> QuotaAlteration:
    return QuotaAlteration(
        entity=tuple((part.entity_type, part.entity_name) for part in entry.entity),
        changes=tuple(
            QuotaChange(key=change.key, value=None if change.remove else change.value) for change in entry.ops
        ),
    )


def _error_entry(entry: alter.EntryData, message: str) -> alter.EntryDataResponse:
    return alter.EntryDataResponse(
        error_code=ErrorCode.POLICY_VIOLATION, error_message=message, entity=entry.entity
    )


def _response_entry(outcome: QuotaOutcome) -> alter.EntryDataResponse:
    entity = [
        alter.EntityData(entity_type=entity_type, entity_name=name) for entity_type, name in outcome.entity
    ]
    return alter.EntryDataResponse(error_code=outcome.error, error_message=outcome.message, entity=entity)
