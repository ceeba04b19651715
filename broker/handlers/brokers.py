"""UnregisterBroker (v0): removes a broker's registration."""

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.metadata.controller.commands import UnregisterBroker
from tierlog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


def unregister_broker_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: UnregisterBrokerRequest) -> Reply:
        reply = await deps.metadata.submit(UnregisterBroker(broker_id=request.broker_id))
        return UnregisterBrokerResponse(error_code=reply.error, error_message=reply.message)

    return handle
