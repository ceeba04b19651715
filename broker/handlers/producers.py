"""InitProducerId (v0-6): ids of idempotent producers. Transactions are not supported yet."""

from tierlog.broker.handlers.context import Handler, Reply, RequestContext, pending
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.protocol.errors import ErrorCode, KafkaError
from tierlog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1


def init_producer_id_handler(deps: Dependencies) -> Handler:
    @pending
    async def handle(context: RequestContext, request: InitProducerIdRequest) -> Reply:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            # KIP-360: a producer that resumes sends both
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id without its epoch, or the reverse")
        if request.transactional_id is not None:
            if request.transactional_id == "":
                raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not supported by this broker")
        return InitProducerIdResponse(producer_id=await deps.producer_ids.take(), producer_epoch=0)

    return handle
