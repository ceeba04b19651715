"""DescribeAcls, CreateAcls and DeleteAcls (v1-3, KIP-140, KIP-290).

Descriptions come from this broker's image. The controller validates and commits changes, a bounded number in
each command. A node without an authorizer refuses all three, as Kafka does: clients stop at once with its
message. If the APIs were not advertised, clients would report that the broker is too old.
"""

import asyncio
from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from tierlog.broker.handlers.context import Handler, Pending, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.error_responses import code_of_unavailable, error_reply
from tierlog.broker.handlers.limits import MAX_RECORDS_PER_REQUEST, TOO_LARGE
from tierlog.broker.handlers.turns import (
    ENTRIES_PER_TURN,
    ResponseEncoder,
    in_turns,
    weighted_slices,
)
from tierlog.metadata.acl_index import (
    AclIndex,
    cost_of,
    in_order,
    patterns_to_read,
    selected_entries,
    selecting_patterns,
)
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tierlog.metadata.controller.acls import valid_filter
from tierlog.metadata.controller.commands import CreateAcls, DeleteAcls, FilterOutcome, Outcome
from tierlog.metadata.controller.decision import Refusal
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.codec import ArrayWriter, array_writer, nested_array_writer
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages import create_acls, delete_acls, describe_acls

# as in Kafka's AclApis
NO_AUTHORIZER = "No Authorizer is configured."
NO_AUTHORIZER_ON_BROKER = "No Authorizer is configured on the broker"

ACLS_PER_COMMAND = 500
"""ACLs that the controller adds in one turn of its event loop: about 20 ms."""
PATTERNS_PER_COMMAND = 5_000
"""Resource patterns that the controller reads in one turn for the filters of a command: about 10 ms. For a
filter that would read more, this broker finds the ACLs itself, and the command names each of them."""
PATTERNS_PER_TURN = 2_000
"""Resource patterns that are read in one turn: some ms."""
FILTER_COST = 50
"""Patterns that could be read in the time that a filter takes which reads none."""
FILTERS_MAX = 1_000
UNAVAILABLE = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)

E = TypeVar("E", bound=IntEnum)


def acl_handlers(deps: Dependencies) -> dict[str, Handler]:
    if deps.authorizer is None:
        return refusing_acl_handlers()
    return {
        "DescribeAcls": describe_acls_handler(deps),
        "CreateAcls": create_acls_handler(deps),
        "DeleteAcls": delete_acls_handler(deps),
    }


def refusing_acl_handlers() -> dict[str, Handler]:
    return {
        "DescribeAcls": _without_authorizer(NO_AUTHORIZER_ON_BROKER),
        "CreateAcls": _without_authorizer(NO_AUTHORIZER),
        "DeleteAcls": _without_authorizer(NO_AUTHORIZER),
    }


def _without_authorizer(message: str) -> Handler:
    return lambda context, request: error_reply(context, request, ErrorCode.SECURITY_DISABLED, message)


def describe_acls_handler(deps: Dependencies) -> Handler:
    def handle(context: RequestContext, request: describe_acls.DescribeAclsRequest) -> Reply | Pending:
        index = deps.metadata.image.acls
        try:
            wanted = valid_filter(_filter(request))
        except Refusal as refusal:
            raise KafkaError(refusal.error, refusal.message) from None
        return Pending(_respond(context.version, index, wanted))

    return handle


async def _respond(version: int, index: AclIndex, wanted: AclFilter) -> Reply:
    steps = selecting_patterns(index, patterns_to_read(index, wanted), wanted)
    selecting = await in_turns(steps, lambda pattern: pattern, PATTERNS_PER_TURN)
    found = in_order(pattern for pattern in selecting if pattern is not None)
    response, encoding = describe_acls.DescribeAclsResponse(error_message=None), ResponseEncoder()
    resources = array_writer(describe_acls.DescribeAclsResponse, version, "resources")
    kind = describe_acls.DescribeAclsResource
    acls = nested_array_writer(describe_acls.DescribeAclsResponse, version, kind, "acls")
    await encoding.add(resources.before(response, len(found)))
    for pattern in found:
        await _encode_pattern(encoding, acls, index, pattern, wanted)
    await encoding.add(resources.after(response))
    return encoding.reply()


async def _encode_pattern(
    encoding: ResponseEncoder, acls: ArrayWriter, index: AclIndex, pattern: ResourcePattern, wanted: AclFilter
) -> None:
    """The resource with its ACLs, of which it may have 50,000. Their number precedes them."""
    resource, kind, name = pattern
    described = describe_acls.DescribeAclsResource(
        resource_type=resource, resource_name=name, pattern_type=kind
    )
    count, encoded = 0, list[bytes]()
    for some in weighted_slices(selected_entries(index, pattern, wanted)):
        count += len(some)
        encoded.append(acls.elements(map(_description, some)))
        if len(some) == ENTRIES_PER_TURN:
            await asyncio.sleep(0)
    await encoding.add(acls.before(described, count), entries=1 + count % ENTRIES_PER_TURN)
    for piece in encoded:
        await encoding.add(piece)
    await encoding.add(acls.after(described))


def _description(entry: AccessControlEntry) -> describe_acls.AclDescription:
    return describe_acls.AclDescription(
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def create_acls_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: create_acls.CreateAclsRequest) -> Reply:
        if len(request.creations) > MAX_RECORDS_PER_REQUEST:
            refused = Outcome(error=ErrorCode.POLICY_VIOLATION, message=TOO_LARGE)
            return create_acls.CreateAclsResponse(results=[_created(refused)] * len(request.creations))
        outcomes: list[Outcome] = []
        for some in weighted_slices(request.creations, ACLS_PER_COMMAND):
            reply = await deps.metadata.submit(CreateAcls(entries=tuple(map(_entry, some))))
            if reply.error is not ErrorCode.NONE:
                outcomes += [Outcome(error=reply.error, message=reply.message)] * len(some)
            outcomes += reply.entries
            await asyncio.sleep(0)  # a command without changes may return without yielding
        return create_acls.CreateAclsResponse(results=list(map(_created, outcomes)))

    return handle


def _entry(creation: create_acls.AclCreation) -> AccessControlEntry:
    return AccessControlEntry(
        resource=_known(ResourceType, creation.resource_type),
        pattern=_known(PatternType, creation.resource_pattern_type),
        name=creation.resource_name,
        principal=creation.principal,
        host=creation.host,
        operation=_known(AclOperation, creation.operation),
        permission=_known(Permission, creation.permission_type),
    )


def _created(outcome: Outcome) -> create_acls.AclCreationResult:
    return create_acls.AclCreationResult(error_code=outcome.error, error_message=outcome.message)


def delete_acls_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: delete_acls.DeleteAclsRequest) -> Reply:
        if len(request.filters) > FILTERS_MAX:
            message = f"DeleteAcls accepts at most {FILTERS_MAX} filters per request"
            refused = FilterOutcome(error=ErrorCode.POLICY_VIOLATION, message=message)
            results = [_filter_result(refused, ())] * len(request.filters)
            return delete_acls.DeleteAclsResponse(filter_results=results)
        results, index = list[delete_acls.DeleteAclsFilterResult](), deps.metadata.image.acls
        filters = map(_filter, request.filters)
        for some in weighted_slices(
            filters, PATTERNS_PER_COMMAND, lambda each: FILTER_COST + cost_of(index, each)
        ):
            if cost_of(index, some[-1]) < PATTERNS_PER_COMMAND:
                results += await _delete(deps, tuple(some))
            else:
                if len(some) > 1:
                    results += await _delete(deps, tuple(some[:-1]))
                results.append(await _delete_in_turns(deps, some[-1]))
            if results[-1].error_code in UNAVAILABLE:  # others would wait as long
                failed = FilterOutcome(
                    error=ErrorCode(results[-1].error_code), message=results[-1].error_message
                )
                results += [_filter_result(failed, ())] * (len(request.filters) - len(results))
                break
        return delete_acls.DeleteAclsResponse(filter_results=results)

    return handle


async def _delete_in_turns(deps: Dependencies, wanted: AclFilter) -> delete_acls.DeleteAclsFilterResult:
    """Delete what a filter selects that reads many ACLs. It selects those which exist when this is called."""
    try:
        wanted = valid_filter(wanted)
    except Refusal as refusal:
        return _filter_result(FilterOutcome(error=refusal.error, message=refusal.message), ())
    try:
        index = (await deps.metadata.current()).acls
    except MetadataUnavailable as failure:
        return _filter_result(_unavailable(failure), ())
    found = await in_turns(_selected_slowly(index, wanted), lambda entries: entries, PATTERNS_PER_TURN)
    deleted = list[delete_acls.DeleteAclsMatchingAcl]()
    for some in weighted_slices(chain.from_iterable(found), ACLS_PER_COMMAND):
        for result in await _delete(deps, tuple(map(_exactly, some))):
            deleted += result.matching_acls
            if result.error_code:
                result.matching_acls = deleted
                return result
        await asyncio.sleep(0)
    return delete_acls.DeleteAclsFilterResult(matching_acls=deleted)


def _selected_slowly(index: AclIndex, wanted: AclFilter) -> Iterator[list[AccessControlEntry]]:
    """The selected entries of each resource pattern and principal that has to be read."""
    for pattern in patterns_to_read(index, wanted):
        if wanted.principal is not None or not wanted.selects_pattern(*pattern):
            yield list(selected_entries(index, pattern, wanted))
            continue
        for principal in index.patterns[pattern]:
            yield list(selected_entries(index, pattern, replace(wanted, principal=principal)))


def _exactly(entry: AccessControlEntry) -> AclFilter:
    return AclFilter(
        resource=entry.resource,
        pattern=entry.pattern,
        name=entry.name,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission=entry.permission,
    )


async def _delete(
    deps: Dependencies, filters: tuple[AclFilter, ...]
) -> list[delete_acls.DeleteAclsFilterResult]:
    """Repeat the command until no filter selects more. A failure leaves what earlier commands deleted in the
    results, which the audit log has from there."""
    deleted: list[list[AccessControlEntry]] = [[] for _ in filters]
    while True:
        try:
            reply = await deps.metadata.submit(DeleteAcls(filters=filters))
            failed = FilterOutcome(error=reply.error, message=reply.message)
        except MetadataUnavailable as failure:
            failed = _unavailable(failure)
        if failed.error is not ErrorCode.NONE:
            return [_filter_result(failed, each) for each in deleted]
        for found, outcome in zip(deleted, reply.filters, strict=True):
            found += outcome.deleted
        if not any(outcome.has_more for outcome in reply.filters):
            return list(map(_filter_result, reply.filters, deleted))
        await asyncio.sleep(0)


def _unavailable(failure: MetadataUnavailable) -> FilterOutcome:
    return FilterOutcome(error=code_of_unavailable(failure), message=str(failure))


def _filter_result(
    outcome: FilterOutcome, deleted: "list[AccessControlEntry] | tuple[AccessControlEntry, ...]"
) -> delete_acls.DeleteAclsFilterResult:
    return delete_acls.DeleteAclsFilterResult(
        error_code=outcome.error, error_message=outcome.message, matching_acls=list(_matching(deleted))
    )


def _matching(
    deleted: "list[AccessControlEntry] | tuple[AccessControlEntry, ...]",
) -> Iterator[delete_acls.DeleteAclsMatchingAcl]:
    for entry in deleted:
        yield delete_acls.DeleteAclsMatchingAcl(
            error_message=None,
            resource_type=entry.resource,
            resource_name=entry.name,
            pattern_type=entry.pattern,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )


def _filter(requested: describe_acls.DescribeAclsRequest | delete_acls.DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        resource=_known(ResourceType, requested.resource_type_filter),
        pattern=_known(PatternType, requested.pattern_type_filter),
        name=requested.resource_name_filter,
        principal=requested.principal_filter,
        host=requested.host_filter,
        operation=_known(AclOperation, requested.operation),
        permission=_known(Permission, requested.permission_type),
    )


def _known(kind: type[E], number: int) -> E:
    """The member with this number; UNKNOWN (0) for a number of a newer client."""
    return kind(number) if number in kind._value2member_map_ else kind(0)
