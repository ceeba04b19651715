"""Audited requests: entries of the audit log for actions (`handlers.actions`) and for what is denied.

The response to an action leaves after its entry is written, or at once if the action changed nothing. A
denied access becomes an entry if the response has an error for it: lists without what a client may not see
are no denials. Used by `handlers.table` and `handlers.guard` only if the node has an audit log, so that other
nodes do none of this.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from tierlog.broker.audit.entries import DENIED_ACCESS, VALUES_MAX, Entry, in_parts
from tierlog.broker.audit.log import AuditLog
from tierlog.broker.handlers.access import DENIED
from tierlog.broker.handlers.actions import ACTIONS, Action, Target, outcome_name, outcomes
from tierlog.broker.handlers.context import CLOSE, Handler, Pending, RawReply, Reply, RequestContext
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.error_counts import counter_of
from tierlog.broker.handlers.error_responses import code_of_unavailable
from tierlog.broker.handlers.turns import ENTRIES_PER_TURN
from tierlog.broker.security.authorizer import Access
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.api import APIS, CLIENT_ELEMENTS_MAX
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode, KafkaError

DECODED_BYTES_MAX = 256 << 10
"""Size of the largest encoded response that is decoded to tell apart what failed in it."""

FAILED_IN_PART = "FAILED_IN_PART"
"""Outcome in a larger response with errors."""

CHANGING = frozenset({"OK", "CLOSED", FAILED_IN_PART, "REQUEST_TIMED_OUT", "UNKNOWN_SERVER_ERROR"})
"""Outcomes of resources that were changed, or may have been."""

DENIED_CODES = frozenset(DENIED.values())


def audited_handlers(
    handlers: Mapping[int, Handler], deps: Dependencies, audit: AuditLog
) -> dict[int, Handler]:
    """The handlers, of which those of actions write entries."""
    return {
        key: _Audited(handler, deps, audit).handle if APIS[key].name in ACTIONS else handler
        for key, handler in handlers.items()
    }


class _Audited:
    """An action of clients, and its entry."""

    def __init__(self, handler: Handler, deps: Dependencies, audit: AuditLog) -> None:
        self._handler = handler
        self._deps = deps
        self._audit = audit

    def handle(self, context: RequestContext, request: Any) -> Reply | Pending:
        done = _Done(context, request, self._deps.metadata.image)
        try:
            reply = self._handler(context, request)
        except Exception as failure:
            return Pending(self._fail(done, failure))
        if not isinstance(reply, Pending):
            return Pending(self._answer(done, reply))
        reply.work = self._await(done, reply.work)
        return reply

    async def _await(self, done: "_Done", work: "asyncio.Future[Any] | Coroutine[Any, Any, Any]") -> Reply:
        try:
            reply = await work
        except Exception as failure:
            return await self._fail(done, failure)
        return await self._answer(done, reply)

    async def _answer(self, done: "_Done", reply: Reply) -> Reply:
        access = done.context.access
        if access is None or not access.is_refused:
            done.outcome = await _outcomes(done, reply)
            done.reply = reply
            await self._record(done)
        return reply

    async def _fail(self, done: "_Done", failure: Exception) -> Reply:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(failure, KafkaError):
            code = failure.code
        elif isinstance(failure, MetadataUnavailable):
            code = code_of_unavailable(failure)
        if code not in DENIED_CODES:
            name = outcome_name(code)
            done.outcome = lambda target: name
            await self._record(done)
        raise failure

    async def _record(self, done: "_Done") -> None:
        """Write an action if anything was changed, and a failed action otherwise."""
        first: Entry | None = None
        count = 0
        for count, resource in enumerate(done.resources(), 1):
            if resource["outcome"] in CHANGING or "deleted" in resource:
                await self._audit.record(in_parts(done.entry(), done.resources()))
                return
            first = first or resource
            if count % ENTRIES_PER_TURN == 0:
                await asyncio.sleep(0)
        if first is not None:
            named = {
                "outcome": first["outcome"],
                "resource_type": first["type"],
                "resource_name": first["name"],
            }
            self._audit.fail(done.entry() | named | {"resources": count})


class _Done:
    """A request that was handled. The targets are read from the request when they are written: its items
    without access are no longer in it, and the others are as many as a client likes. `image`: the one before
    the request."""

    __slots__ = ("_action", "_image", "_request", "context", "outcome", "reply")

    def __init__(self, context: RequestContext, request: Any, image: ClusterImage) -> None:
        self.context = context
        self.outcome: Callable[[Target], str] = lambda target: ""
        self.reply: Reply = None
        self._action: Action = ACTIONS[APIS[context.api].name]
        self._request = request
        self._image = image

    def entry(self) -> Entry:
        entry = _origin(self.context)
        if getattr(self._request, "validate_only", False):
            entry["validate_only"] = True
        return entry

    def targets(self) -> Iterator[Target]:
        return self._action.targets(self._request, self._image)

    def resources(self) -> Iterator[Entry]:
        """The targets, for the entry. A target is repeated for every VALUES_MAX of its changes."""
        for number, one in enumerate(self.targets()):
            outcome = self.outcome(one)
            if not outcome:
                continue
            named = {"type": one.type, "name": one.name or self.context.token_id, "outcome": outcome}
            changes = iter(self._changes(number))
            some = list(islice(changes, VALUES_MAX))
            yield {**named, **one.details, **({"deleted": some} if some else {})}
            while some := list(islice(changes, VALUES_MAX)):
                yield {**named, **one.details, "deleted": some}

    def _changes(self, number: int) -> Iterator[Mapping[str, Any]]:
        if self._action.changes is None or not isinstance(self.reply, APIS[self.context.api].response):
            return iter(())
        return self._action.changes(self.reply, number)


async def _outcomes(done: _Done, reply: Reply) -> Callable[[Target], str]:
    """The outcome of each target; empty if it was denied, which has an entry of its own."""
    context = done.context
    api = APIS[context.api]
    if isinstance(reply, RawReply):
        failed = {
            code: times for code, times in reply.errors.items() if code and times and code not in DENIED_CODES
        }
        if not failed:
            return lambda target: "OK"
        if sum(map(len, reply.parts)) > DECODED_BYTES_MAX:
            if len(failed) > 1 or not await _all_of(done.targets(), sum(failed.values())):
                return lambda target: FAILED_IN_PART
            [code] = failed
            return lambda target: outcome_name(code)
        body = b"".join(bytes(part) for part in reply.parts)  # type: ignore[arg-type]
        reply = decode(api.response, context.version, body, elements_max=CLIENT_ELEMENTS_MAX)
    if reply is None or reply is CLOSE:
        return lambda target: "CLOSED"
    code_of = outcomes(ACTIONS[api.name], reply)

    def named(target: Target) -> str:
        code = code_of(target)
        return "" if code in DENIED_CODES else outcome_name(code)

    return named


async def _all_of(targets: Iterator[Target], count: int) -> bool:
    """Whether there are not more targets than `count`."""
    for number, _ in enumerate(targets, 1):
        if number > count:
            return False
        if number % ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return True


# ---- denials ------------------------------------------------------------------------------------------


def reporting_denials(
    audit: AuditLog,
    context: RequestContext,
    access: Access,
    check: Callable[[], Reply | Pending],
) -> Reply | Pending:
    """Call `check`, which may ask `access`, and write an entry for each denial that its reply shows."""
    try:
        reply = check()
    except KafkaError as failure:
        _on_failure(audit, context, access, failure)
        raise
    if not isinstance(reply, Pending):
        _on_reply(audit, context, access, reply)
    elif isinstance(reply.work, asyncio.Future):  # its access was checked before it began to wait
        if access.denied:
            reply.work.add_done_callback(lambda work: _on_done(audit, context, access, work))
    else:
        reply.work = with_denials_reported(audit, context, access, reply.work)
    return reply


async def with_denials_reported(
    audit: AuditLog, context: RequestContext, access: Access, work: Coroutine[Any, Any, Reply]
) -> Reply:
    """Await the reply, and write an entry for each denial that it shows."""
    try:
        reply = await work
    except KafkaError as failure:
        _on_failure(audit, context, access, failure)
        raise
    _on_reply(audit, context, access, reply)
    return reply


def _on_done(audit: AuditLog, context: RequestContext, access: Access, work: "asyncio.Future[Any]") -> None:
    if not work.cancelled() and work.exception() is None:
        _on_reply(audit, context, access, work.result())


def _on_failure(audit: AuditLog, context: RequestContext, access: Access, failure: KafkaError) -> None:
    if failure.code in DENIED_CODES:
        _deny(audit, context, access)


def _on_reply(audit: AuditLog, context: RequestContext, access: Access, reply: Reply) -> None:
    if access.denied and _shows_denial(context, reply):
        _deny(audit, context, access)


def _deny(audit: AuditLog, context: RequestContext, access: Access) -> None:
    for operation, resource_type, name in access.denied or ():
        record_denial(audit, context, operation, resource_type, name)


def record_denial(
    audit: AuditLog,
    context: RequestContext,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
) -> None:
    missing = {"operation": operation.name, "resource_type": resource_type.name, "resource_name": name}
    audit.deny(DENIED_ACCESS, _origin(context) | missing)


def _shows_denial(context: RequestContext, reply: Reply) -> bool:
    if reply is CLOSE or reply is None:  # a producer without acknowledgements
        return True
    if isinstance(reply, RawReply):
        return bool(reply.errors) and not DENIED_CODES.isdisjoint(reply.errors)
    count, errors = _counter(context.api)
    errors.clear()
    if count is not None:
        count(reply)
    return not DENIED_CODES.isdisjoint(errors)


@cache
def _counter(api: int) -> "tuple[Callable[[Any], None] | None, Counter[int]]":
    errors: Counter[int] = Counter()
    return counter_of(APIS[api].response, errors), errors


def _origin(context: RequestContext) -> Entry:
    connection = context.connection
    return {
        "principal": connection.principal,
        "client": connection.peer_host,
        "listener": connection.listener,
        "client_id": context.client_id,
        "api": APIS[context.api].name,
    }
