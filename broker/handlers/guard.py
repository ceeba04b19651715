"""Guard: checks the access that a request needs (`handlers.access`) before its handler runs.

Denied items are taken out of the request, the handler answers the others, and the response gets an item with
the error for each denied one. Requests with many items are checked in turns, and all later ones of their
connection wait for them. Built by `handlers.table` only if the node has an authorizer, so that other nodes
check nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from tierlog.base.types import InvariantViolation
from tierlog.broker.handlers.access import (
    ACCESS,
    CLUSTER,
    DENIED,
    MESSAGES,
    Each,
    Every,
    Field,
    Found,
    Resource,
    Row,
    Whole,
    resource_of,
)
from tierlog.broker.handlers.audited import reporting_denials, with_denials_reported
from tierlog.broker.handlers.context import (
    CLOSE,
    WHOLE_FRAME,
    Close,
    ExtensibleReply,
    Handler,
    Pending,
    RawReply,
    Reply,
    RequestContext,
)
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.error_responses import array_of_items, error_item, error_reply
from tierlog.broker.handlers.ordering import ORDER_OF, Order
from tierlog.broker.handlers.turns import (
    ENTRIES_PER_TURN,
    before_later_requests,
    respond_in_turns,
    weighted_slices,
)
from tierlog.broker.security.authorizer import Access, Authorizer
from tierlog.metadata.acls import AclOperation, ResourceType
from tierlog.protocol.api import APIS, CLIENT_ELEMENTS_MAX, PRODUCE_KEY, Api
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import ZERO_UUID, Message


class _DeniedItem(NamedTuple):
    """An item of a request that gets an error without being processed."""

    item: Any
    error: ErrorCode


class _Denials(NamedTuple):
    """Denied items, which are no longer in the request, and its arrays with what they were before."""

    items: list[_DeniedItem]
    changed: list[tuple[str, Any]]


class _QuickCheck(NamedTuple):
    """A row, and the field with the names of its resources, of the request or of the items of an array."""

    operation: AclOperation
    resource: ResourceType
    field: str
    array: str | None
    name_field: str | None  # None: the items are names
    has_id: bool


def guarded_handlers(
    handlers: Mapping[int, Handler], deps: Dependencies, authorizer: Authorizer
) -> dict[int, Handler]:
    """The handlers, each behind the checks of its API."""
    return {key: _Guard(key, handler, deps, authorizer).handle for key, handler in handlers.items()}


class _Guard:
    """The checks of one API."""

    def __init__(self, key: int, handler: Handler, deps: Dependencies, authorizer: Authorizer) -> None:
        self._api = APIS[key]
        self._handler = handler
        self._deps = deps
        self._authorizer = authorizer
        self._rows = tuple(row for row in ACCESS[self._api.name] if not row.by_handler)
        self._arrays = tuple(row.names.array for row in self._rows if isinstance(row.names, Each | Every))
        self._is_change = ORDER_OF.get(key) is Order.CHANGE
        self._is_init_producer_id = self._api.name == "InitProducerId"
        is_simple = bool(self._rows) and all(
            row.resource is not None and isinstance(row.names, Each | Field) for row in ACCESS[self._api.name]
        )
        self._quick = {
            version: tuple(_quick_check(self._api, row) for row in self._rows if version in row.versions)
            for version in range(self._api.min_version, self._api.max_version + 1)
            if is_simple and len(self._rows) == len(ACCESS[self._api.name])
        }

    def handle(self, context: RequestContext, request: Any) -> Reply | Pending:
        connection = context.connection
        access = context.access = Access(self._authorizer, connection.principal, connection.peer_host)
        for array in self._arrays:
            items = getattr(request, array)
            if items is not None and len(items) > ENTRIES_PER_TURN:
                return self._begin_in_turns(access, context, request)
        checks = self._quick.get(context.version)
        if checks is not None and self._allows_all(checks, context, request):
            return self._handler(context, request)
        if (audit := self._deps.audit) is not None:
            check = partial(self._check_each, access, context, request)
            return reporting_denials(audit, context, access, check)
        return self._check_each(access, context, request)

    def _allows_all(self, checks: "tuple[_QuickCheck, ...]", context: RequestContext, request: Any) -> bool:
        """Whether everything that the request names is permitted, as nearly always. This costs a Produce
        about a microsecond. Otherwise `_check_each` finds out what is denied."""
        connection, allows = context.connection, self._authorizer.allows
        principal, host = connection.principal, connection.peer_host
        for operation, kind, field, array, name_field, has_id in checks:
            if array is None:
                name = getattr(request, field)
                if name is not None and not allows(principal, host, operation, kind, name):
                    return False
                continue
            for item in getattr(request, array) or ():
                if has_id and item.topic_id.int:
                    topic = self._image.topics.get(item.topic_id)
                    name = None if topic is None else topic.name
                else:
                    name = item if name_field is None else getattr(item, name_field)
                if name is not None and not allows(principal, host, operation, kind, name):
                    return False
        return True

    def _begin_in_turns(self, access: Access, context: RequestContext, request: Any) -> Pending:
        """Later requests wait until this one is done. Those of a producer wait until its batches are
        appended, and so long it keeps its frame, in which they are."""
        appended: asyncio.Future[None] | None = None
        if context.api == PRODUCE_KEY:
            appended = asyncio.get_running_loop().create_future()
        work = self._check_in_turns(access, context, request, appended)
        if self._deps.audit is not None:
            work = with_denials_reported(self._deps.audit, context, access, work)
        if appended is not None:
            return Pending(work, WHOLE_FRAME, blocks_later_until=appended)
        return Pending(work) if self._is_change else before_later_requests(work)

    def _check_each(self, access: Access, context: RequestContext, request: Any) -> Reply | Pending:
        checks = self._checks(access, context, request)
        try:
            while True:
                next(checks)
        except StopIteration as done:
            found = done.value
        if not isinstance(found, _Denials):
            return found  # type: ignore[no-any-return]
        if not found.items:
            return self._handler(context, request)
        return self._handle_rest(context, request, found.items, found.changed)

    async def _check_in_turns(
        self, access: Access, context: RequestContext, request: Any, appended: "asyncio.Future[None] | None"
    ) -> Reply:
        """`appended`: done when the handler of Produce has taken the batches out of the frame. Later requests
        wait for it or the reply: none is handled after CLOSE."""
        checks = self._checks(access, context, request, hides_unknown=not self._is_change)
        try:
            while True:
                next(checks)
                await asyncio.sleep(0)
        except StopIteration as done:
            found = done.value
        if not isinstance(found, _Denials):
            return found  # type: ignore[no-any-return]
        self._count_denied(found.items)
        reply: Any = self._without_items(context, request)
        closes = bool(found.items) and reply is None  # a producer without acknowledgements
        if not found.items or any(getattr(request, array) for array, _ in found.changed):
            try:
                reply = self._handler(context, request)
                if isinstance(reply, Pending):
                    if not closes:
                        _release(appended, reply.blocks_later_until)
                    reply = await reply
                if isinstance(reply, Exception):
                    raise reply
            except BaseException:
                _restore(request, found.changed)
                raise
        if closes:
            return CLOSE
        if not found.items or not isinstance(reply, Message | RawReply):
            return reply  # type: ignore[no-any-return]
        if isinstance(reply, ExtensibleReply):
            return await self._extended(context, reply, found.items)
        message, array, kind = self._decoded(context, reply)
        items = getattr(message, array)
        return await respond_in_turns(
            message,
            context.version,
            array,
            len(items) + len(found.items),
            chain(items, (_error_item(context, kind, each) for each in found.items)),
        )

    def _checks(
        self, access: Access, context: RequestContext, request: Any, hides_unknown: bool = False
    ) -> Generator[None, None, "Reply | _Denials"]:
        """Check the access, and yield after every ENTRIES_PER_TURN items. Returns the refusal, or what is
        denied. `hides_unknown`: the handler gets no unknown topic ids, since the metadata may change before
        it runs, and nothing has checked their access. Changes get them: the audit log counts failures."""
        denials = _Denials([], [])
        for row in self._rows:
            if context.version not in row.versions:
                continue
            if isinstance(row.names, Each):
                found = yield from self._denied_items(row, row.names.array, access, request, hides_unknown)
                if found and row.names.others is not None:
                    return self._refuse_all_items(context, request, row.names, found)
                if found:
                    items = getattr(request, row.names.array)
                    denials.changed.append((row.names.array, items))
                    without = {id(each.item) for each in found}
                    setattr(request, row.names.array, [each for each in items if id(each) not in without])
                    denials.items.extend(found)
            elif (refused := (yield from self._refused_resource(row, access, request))) is not None:
                return self._refuse(context, request, refused.type)
        if self._is_init_producer_id and (refused_type := _refused_producer(access, request)) is not None:
            return self._refuse(context, request, refused_type)
        return denials

    def _refused_resource(
        self, row: Row, access: Access, request: Any
    ) -> Generator[None, None, Resource | None]:
        """A resource of the request as a whole that is denied."""
        resources: Iterable[Resource | None]
        match row.names:
            case Whole():
                resources = [CLUSTER]
            case Field(name):
                value = getattr(request, name)
                resources = [] if value is None else [resource_of(row, request, value, self._image)]
            case Every(array):
                items = getattr(request, array) or ()
                resources = (resource_of(row, request, item, self._image) for item in items)
            case Each() | Found():
                resources = []
        for number, each in enumerate(resources, 1):
            if number % ENTRIES_PER_TURN == 0:
                yield
            if each is not None and not _allows(access, row, each, keep=number < ENTRIES_PER_TURN):
                return each
        return None

    def _denied_items(
        self, row: Row, array: str, access: Access, request: Any, hides_unknown: bool
    ) -> Generator[None, None, list[_DeniedItem]]:
        denied, items = list[_DeniedItem](), getattr(request, array) or ()
        keep = not _is_long(items)
        for number, item in enumerate(items, 1):
            if number % ENTRIES_PER_TURN == 0:
                yield
            resource = resource_of(row, request, item, self._image)
            if resource is None:
                if hides_unknown and getattr(item, "topic_id", ZERO_UUID) != ZERO_UUID:
                    denied.append(_DeniedItem(item, ErrorCode.UNKNOWN_TOPIC_ID))
            elif not _allows(access, row, resource, keep):
                denied.append(_DeniedItem(item, DENIED[resource.type]))
        return denied

    @property
    def _image(self) -> Any:
        return self._deps.metadata.image

    # -- responses --

    def _refuse(self, context: RequestContext, request: Any, kind: ResourceType) -> Reply:
        error = DENIED[kind]
        if context.access is not None:
            context.access.is_refused = True
        if context.api == PRODUCE_KEY:
            self._deps.stats.for_api(PRODUCE_KEY).errors[error] += 1
            if request.acks == 0:
                return CLOSE
        reply = error_reply(context, request, error, MESSAGES[error])
        return self._api.response() if reply is None else reply  # as Kafka: an old version without errors

    def _refuse_all_items(
        self, context: RequestContext, request: Any, names: Each, found: list[_DeniedItem]
    ) -> Reply:
        errors = {id(each.item): each.error for each in found}
        others = names.others or ErrorCode.NONE
        items = [_DeniedItem(item, errors.get(id(item), others)) for item in getattr(request, names.array)]
        return self._with_denied(context, self._api.response(), items)

    def _handle_rest(
        self,
        context: RequestContext,
        request: Any,
        denied: list[_DeniedItem],
        changed: list[tuple[str, Any]],
    ) -> Reply | Pending:
        """Let the handler answer the items that are left, if there are any."""
        self._count_denied(denied)

        def finish(reply: Reply) -> Reply:
            return self._with_denied(context, reply, denied)

        def restore() -> None:
            _restore(request, changed)

        if not any(getattr(request, array) for array, _ in changed):
            return finish(self._without_items(context, request))
        try:
            reply = self._handler(context, request)
            if not isinstance(reply, Pending):
                return finish(reply)
        except BaseException:
            restore()  # the error response is for the whole request
            raise
        if isinstance(reply.work, asyncio.Future):
            reply.work = _then(reply.work, finish, restore)
        else:
            reply.work = _after(reply.work, finish, restore)
        return reply

    def _count_denied(self, denied: list[_DeniedItem]) -> None:
        """Count the errors of Produce, which `handlers.chain` leaves to its handler."""
        if self._api.key == PRODUCE_KEY and denied:
            self._deps.stats.for_api(PRODUCE_KEY).errors.update(each.error for each in denied)

    def _without_items(self, context: RequestContext, request: Any) -> Reply:
        """The response if the handler has nothing to do; None for a producer without acknowledgements."""
        has_acks = context.api != PRODUCE_KEY or request.acks != 0
        return self._api.response() if has_acks else None

    def _with_denied(self, context: RequestContext, reply: Reply, denied: list[_DeniedItem]) -> Reply:
        """The reply with an error item for each denied item."""
        if reply is None:  # a producer without acknowledgements, whose connection is closed after an error
            return CLOSE
        if isinstance(reply, Close):
            return reply
        if isinstance(reply, ExtensibleReply):  # to decode a large reply would take too long
            _, kind = array_of_items(self._api.response, context.version)
            return reply.with_items([_error_item(context, kind, each) for each in denied])
        message, array, kind = self._decoded(context, reply)
        items = [_error_item(context, kind, each) for each in denied]
        setattr(message, array, [*getattr(message, array), *items])
        return message

    async def _extended(
        self, context: RequestContext, reply: ExtensibleReply, denied: list[_DeniedItem]
    ) -> RawReply:
        _, kind = array_of_items(self._api.response, context.version)
        for some in weighted_slices(denied):
            reply = reply.with_items([_error_item(context, kind, each) for each in some])
            await asyncio.sleep(0)
        return reply

    def _decoded(self, context: RequestContext, reply: Message | RawReply) -> tuple[Message, str, Any]:
        """The response, and its array with an item for each one of the request: field and type."""
        if isinstance(reply, RawReply):
            body = b"".join(part if isinstance(part, bytes) else bytes(part) for part in reply.parts)  # type: ignore[arg-type]
            reply = decode(self._api.response, context.version, body, elements_max=CLIENT_ELEMENTS_MAX)
        return reply, *array_of_items(self._api.response, context.version)


def _is_long(items: Any) -> bool:
    return items is not None and len(items) > ENTRIES_PER_TURN


def _release(appended: "asyncio.Future[None] | None", after: "asyncio.Future[None] | None" = None) -> None:
    """Let later requests of a producer start, at once or when `after` is done."""
    if appended is None or appended.done():
        return
    if after is None or after.done():
        appended.set_result(None)
    else:
        after.add_done_callback(lambda _: _release(appended))


def _restore(request: Any, changed: list[tuple[str, Any]]) -> None:
    """Put the denied items back, because the error response is for the whole request."""
    for array, items in reversed(changed):
        setattr(request, array, items)


def _error_item(context: RequestContext, kind: Any, denied: _DeniedItem) -> Any:
    return error_item(context, kind, denied.item, denied.error, MESSAGES.get(denied.error))


def _quick_check(api: Api, row: Row) -> _QuickCheck:
    if row.resource is None or not isinstance(row.names, Each | Field):
        raise InvariantViolation(f"{api}: a row of another kind")
    if isinstance(row.names, Field):
        return _QuickCheck(row.operation, row.resource, row.names.name, None, None, False)
    array = row.names.array
    [nested] = [field.nested for field in api.request.FIELDS if field.name == array]
    names = () if nested is None else [field.name for field in nested.FIELDS]
    name_field = next((name for name in ("topic", "name") if name in names), None)
    return _QuickCheck(row.operation, row.resource, "", array, name_field, "topic_id" in names)


def _allows(access: Access, row: Row, resource: Resource, keep: bool = True) -> bool:
    if access.allows(row.operation, resource.type, resource.name, keep):
        return True
    return row.or_cluster is not None and access.allows_instead(row.or_cluster, *CLUSTER)


def _refused_producer(access: Access, request: Any) -> ResourceType | None:
    """The type of the resource that is denied to a new producer."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        allowed = access.allows(AclOperation.IDEMPOTENT_WRITE, *CLUSTER) or access.allows_any(
            AclOperation.WRITE, ResourceType.TOPIC
        )
        return None if allowed else ResourceType.CLUSTER
    kind = ResourceType.TRANSACTIONAL_ID
    if request.enable2_pc and not access.allows(AclOperation.TWO_PHASE_COMMIT, kind, transactional_id):
        return kind
    return None


def _then(
    work: "asyncio.Future[Any]", finish: Callable[[Reply], Reply], restore: Callable[[], None]
) -> "asyncio.Future[Any]":
    """A future of the finished reply. Cancelling it cancels the work. A failure restores the request."""
    finished: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(work: "asyncio.Future[Any]") -> None:
        if finished.done():
            return
        if work.cancelled():
            finished.cancel()
            return
        result = work.exception() or work.result()
        try:
            if isinstance(result, BaseException):
                raise result
            finished.set_result(finish(result))
        except BaseException as failure:
            restore()
            finished.set_exception(failure)

    work.add_done_callback(done)
    finished.add_done_callback(lambda _: work.cancel())
    return finished


async def _after(
    work: Coroutine[Any, Any, Reply], finish: Callable[[Reply], Reply], restore: Callable[[], None]
) -> Reply:
    try:
        return finish(await work)
    except BaseException:
        restore()
        raise
