"""Dispatcher: decodes requests, calls their handlers, and encodes the responses.

An invalid request raises MalformedFrame, and the connection is closed. A handler's KafkaError becomes the
error response of its API. Any other exception is reported and becomes UNKNOWN_SERVER_ERROR. If the API cannot
carry an error, the reply is CLOSE.
"""

from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import Any

from tierlog.base.files import Part
from tierlog.broker.handlers.context import (
    CLOSE,
    Connection,
    ErrorReply,
    Handler,
    RawReply,
    Reply,
    RequestContext,
)
from tierlog.broker.handlers.errors import top_level_error
from tierlog.broker.handlers.ordering import ORDER_OF, Order
from tierlog.protocol.api import (
    API_VERSIONS_KEY,
    APIS,
    PRODUCE_KEY,
    RequestHeader,
    decode_request_header,
    encode_response,
    response_head,
)
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.primitives import MalformedFrame, TooManyElements
from tierlog.protocol.quirks import decode_quirk

Report = Callable[[str, BaseException], None]
NOT_STARTED = object()
_WAITING_FOR_APPENDS = (Order.AFTER_APPENDS, Order.CHANGE)


class Call:
    """One request, its handler and the handler's result.

    `request` is decoded when the handler is called, so that a request that waits for earlier ones uses only
    the bytes of its frame.
    """

    __slots__ = ("body", "context", "handler", "order", "request", "result")

    def __init__(
        self, context: RequestContext, body: bytes | memoryview | None, handler: Handler, order: Order
    ) -> None:
        self.context = context
        self.body = body
        self.request: Any = None
        self.handler = handler
        self.order = order
        self.result: Any = NOT_STARTED

    @property
    def keeps_frame(self) -> bool:
        """Whether the handler may still read the bytes of the frame."""
        context = self.context
        return context.api == PRODUCE_KEY and (context.frame_kept or isinstance(self.result, CoroutineType))


class Dispatcher:
    """The handlers of a listener."""

    def __init__(self, handlers: Mapping[int, Handler], error_reply: ErrorReply, report: Report) -> None:
        self.serve(handlers)
        self._error_reply = error_reply
        self.report = report

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Replace the handlers."""
        self._handlers = {
            key: (APIS[key], handler, ORDER_OF.get(key, Order.FREE)) for key, handler in handlers.items()
        }

    def call(
        self, connection: Connection, view: memoryview, at: int, end: int, *, appends_wait: bool = False
    ) -> Call:
        """Decode the frame in view[at:end] and call its handler. Raises MalformedFrame.

        `appends_wait`: appends of the connection are unacknowledged. A request that must wait for them gets
        the result NOT_STARTED until `start`.
        """
        header = decode_request_header(view, at, end)
        known = self._handlers.get(header.api_key)
        if known is None:
            raise MalformedFrame(f"unknown API key {header.api_key}")
        api, handler, order = known
        if header.body_at < 0:
            return self._unsupported_version(connection, header, handler)
        context = RequestContext(
            api.key, header.api_version, header.correlation_id, header.client_id, connection
        )
        # produced records are used in place; other requests may outlive the receive buffer
        body = view[header.body_at : end] if api.key == PRODUCE_KEY else bytes(view[header.body_at : end])
        call = Call(context, body, handler, order)
        if not appends_wait or order not in _WAITING_FOR_APPENDS:
            self.start(call)
        return call

    def start(self, call: Call) -> None:
        """Decode the body and call the handler. Raises MalformedFrame."""
        body, call.body = call.body, None
        if body is not None:
            api, version = APIS[call.context.api], call.context.version
            try:
                call.request = decode(api.request, version, body)
            except TooManyElements as too_many:  # another name than below: mypyc gives a name one type
                call.result = self._refused(call.context, too_many)
                return
            except MalformedFrame as fault:
                call.request = decode_quirk(api, version, bytes(body), fault)
        try:
            call.result = call.handler(call.context, call.request)
        except Exception as failure:
            call.result = self.failed(call.context, call.request, failure)

    def _refused(self, context: RequestContext, fault: TooManyElements) -> Reply:
        """The error response, if it needs no entries of the request, which are not decoded."""
        reply = top_level_error(context, ErrorCode.POLICY_VIOLATION, f"{fault}: send fewer in a request")
        if reply is None:
            raise fault
        return reply

    def failed(self, context: RequestContext, request: Any, failure: BaseException) -> Reply:
        """The response to a request whose handler failed."""
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if isinstance(failure, KafkaError):
            code, message = failure.code, failure.message
        else:
            self.report(f"{APIS[context.api]} from {context.connection.peer_host}", failure)
        reply = self._error_reply(context, request, code, message)
        return CLOSE if reply is None else reply

    def parts(self, context: RequestContext, reply: Reply) -> list[Part] | None:
        """The response frame of a reply; empty: send nothing, None: close the connection."""
        if reply is None:
            return []
        if reply is CLOSE:
            return None
        api = APIS[context.api]
        if isinstance(reply, RawReply):
            size = sum(map(len, reply.parts))
            return [response_head(api, context.version, context.correlation_id, size), *reply.parts]
        try:
            return encode_response(api, context.version, context.correlation_id, reply)
        except ValueError as failure:  # a value does not fit its field
            self.report(f"{api} to {context.connection.peer_host}", failure)
            return None

    def _unsupported_version(self, connection: Connection, header: RequestHeader, handler: Handler) -> Call:
        """A newer client: ApiVersions answers in version 0, which all clients read (KIP-511)."""
        if header.api_key != API_VERSIONS_KEY:
            raise MalformedFrame(f"{APIS[header.api_key]} has no version {header.api_version}")

        def answer(context: RequestContext, request: Any) -> Reply:
            reply: Any = handler(context, request)
            reply.error_code = ErrorCode.UNSUPPORTED_VERSION
            return reply

        context = RequestContext(API_VERSIONS_KEY, 0, header.correlation_id, header.client_id, connection)
        call = Call(context, None, answer, Order.FREE)
        call.request = APIS[API_VERSIONS_KEY].request()
        self.start(call)
        return call
