"""DescribeClientQuotas and AlterClientQuotas (v0-1, KIP-546). The controller validates changes."""

from enum import IntEnum

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.controller.commands import AlterQuotas, QuotaAlteration, QuotaChange, QuotaOutcome
from tierlog.metadata.records import IP, QUOTA_ENTITY_TYPES, QuotaEntity
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages import alter_client_quotas as alter
from tierlog.protocol.messages import describe_client_quotas as describe

ENTRIES_MAX = 10_000
"""Maximum entries of one request, as in Kafka (MAX_RECORDS_PER_USER_OP); each is at least one record."""


class Match(IntEnum):
    """Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


Filter = dict[str, tuple[Match, str | None]]
"""Entity type -> condition on its name."""


def describe_client_quotas_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: describe.DescribeClientQuotasRequest) -> Reply:
        wanted = _filter(request.components)
        entries = [
            describe.EntryData(
                entity=[describe.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[describe.ValueData(key=key, value=value) for key, value in sorted(values.items())],
            )
            for entity, values in deps.metadata.image.quotas.items()
            if _matches(entity, wanted, request.strict)
        ]
        return describe.DescribeClientQuotasResponse(entries=entries)

    return handle


def _filter(components: list[describe.ComponentData]) -> Filter:
    wanted: Filter = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in QUOTA_ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type not in tuple(Match):
            raise _invalid(f"Unknown match type {component.match_type}")
        match = Match(component.match_type)
        if match is Match.EXACT and component.match is None:
            raise _invalid(f"Match type exact for {kind} needs a name")
        if match is not Match.EXACT and component.match is not None:
            raise _invalid(f"{kind} has a name, but its match type is not exact")
        wanted[kind] = match, component.match
    if IP in wanted and len(wanted) > 1:
        raise _invalid("an ip cannot be combined with a user or a client-id")
    return wanted


def _matches(entity: QuotaEntity, wanted: Filter, strict: bool) -> bool:
    """`strict`: the entity has no other types than the requested ones."""
    names = dict(entity)
    if strict and names.keys() != wanted.keys():
        return False
    return all(
        kind in names and (match is Match.ANY or names[kind] == name)
        for kind, (match, name) in wanted.items()
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def alter_client_quotas_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: alter.AlterClientQuotasRequest) -> Reply:
        if len(request.entries) > ENTRIES_MAX:
            message = f"more than {ENTRIES_MAX} entries: send fewer in a request"
            return alter.AlterClientQuotasResponse(
                entries=[_refused(each, message) for each in request.entries]
            )
        command = AlterQuotas(
            alterations=tuple(_alteration(entry) for entry in request.entries),
            validate_only=request.validate_only,
        )
        reply = await deps.metadata.submit(command)
        return alter.AlterClientQuotasResponse(entries=[_altered(outcome) for outcome in reply.entities])

    return handle


def _alteration(entry: alter.EntryData) -> QuotaAlteration:
    return QuotaAlteration(
        entity=tuple((part.entity_type, part.entity_name) for part in entry.entity),
        changes=tuple(
            QuotaChange(key=change.key, value=None if change.remove else change.value) for change in entry.ops
        ),
    )


def _refused(entry: alter.EntryData, message: str) -> alter.EntryDataResponse:
    return alter.EntryDataResponse(
        error_code=ErrorCode.POLICY_VIOLATION, error_message=message, entity=entry.entity
    )


def _altered(outcome: QuotaOutcome) -> alter.EntryDataResponse:
    entity = [alter.EntityData(entity_type=kind, entity_name=name) for kind, name in outcome.entity]
    return alter.EntryDataResponse(error_code=outcome.error, error_message=outcome.message, entity=entity)
