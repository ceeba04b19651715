"""Dispatcher: decodes requests, passes them through the handlers' chain, and encodes the responses.

An invalid request raises MalformedFrame, and the connection is closed.
"""

from collections.abc import Mapping
from struct import Struct

from tierlog.base.files import Part
from tierlog.base.tasks import TaskGroup
from tierlog.broker.handlers.chain import Chain, Report
from tierlog.broker.handlers.context import CLOSE, Close, Handler, Pending, RawReply, Reply
from tierlog.broker.handlers.error_responses import top_level_error
from tierlog.broker.handlers.stats import RequestStats
from tierlog.broker.net.core.protocol import RAW_VERSION, Request
from tierlog.protocol.api import API_VERSIONS_KEY, APIS, Api, encode_response, response_head
from tierlog.protocol.codec import decode
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.api_versions import ApiVersionsResponse
from tierlog.protocol.primitives import MalformedFrame, TooManyElements
from tierlog.protocol.schema import Message

METADATA_KEY, ALTER_USER_SCRAM_CREDENTIALS_KEY = 3, 51
_SIZE = Struct(">i")


class Dispatcher:
    """The handlers of a listener."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        tasks: TaskGroup,
        report: Report,
        stats: RequestStats | None = None,
    ) -> None:
        self.chain = Chain(handlers, tasks, report, stats)
        self.report = report

    def start(self, request: Request) -> Reply | Pending:
        """Decode the body and call the handler. Raises MalformedFrame."""
        context = request.context
        if not self.chain.serves(context.api):
            raise MalformedFrame(f"unknown API key {context.api}")
        body, request.body = request.body, None
        api, version = APIS[context.api], context.version
        if body is None:
            return self._without_body(request)
        try:
            request.message = decode(api.request, version, body)
        except TooManyElements as too_many:  # another name than below: mypyc gives a name one type
            reply = top_level_error(
                context, ErrorCode.POLICY_VIOLATION, f"{too_many}: send fewer in a request"
            )
            if reply is None:  # a response with entries of the request, which are not decoded
                raise
            return reply
        except MalformedFrame as fault:
            request.message = decode_quirk(api, version, bytes(body), fault)
        return self.chain.start(context, request.message)

    def parts(self, request: Request, reply: Reply) -> list[Part] | None:
        """The response frame of a reply; empty: send nothing, None: close the connection."""
        if reply is None:
            return []
        if reply is CLOSE:
            return None
        context = request.context
        api = APIS[context.api]
        if isinstance(reply, RawReply):
            size = sum(map(len, reply.parts))
            if context.version == RAW_VERSION:
                return [_SIZE.pack(size), *reply.parts]
            return [response_head(api, context.version, context.correlation_id, size), *reply.parts]
        try:
            return encode_response(api, context.version, context.correlation_id, reply)
        except ValueError as failure:  # a value does not fit its field
            self.report(f"{api} to {context.connection.peer_host}", failure)
            return None

    def _without_body(self, request: Request) -> Reply | Pending:
        """A request that needs no decoding, or one of a version that is not supported.

        ApiVersions answers a newer client in version 0, which all clients read (KIP-511).
        """
        context = request.context
        made: Message | Close | None = request.message
        if isinstance(made, Close):
            if context.connection.authentication is not None:
                context.connection.authentication.closes = True
            return CLOSE
        if made is not None:
            return self.chain.start(context, made)
        api = APIS[context.api]
        if context.api != API_VERSIONS_KEY:
            raise MalformedFrame(f"{api} has no version {context.version}")
        context.version = 0
        request.message = api.request()
        reply = self.chain.start(context, request.message)
        if isinstance(reply, ApiVersionsResponse):
            reply.error_code = ErrorCode.UNSUPPORTED_VERSION
        return reply


def decode_quirk(api: Api, version: int, body: bytes, fault: MalformedFrame) -> Message:
    """The intended request. Raises the fault again if this is no known quirk.

    librdkafka (seen in 2.16.0) requests the metadata of all topics with four zero bytes, reserved for a
    classic array length, where a flexible version has one. It ends AlterUserScramCredentials with two empty
    sections of tagged fields. Brokers that ignore bytes left over do not notice.
    """
    if api.key == ALTER_USER_SCRAM_CREDENTIALS_KEY and body[-2:] == bytes(2):
        return decode(api.request, version, body[:-1])
    if api.key == METADATA_KEY and api.is_flexible(version) and body[:4] == bytes(4):
        return decode(api.request, version, body[3:])
    raise fault
