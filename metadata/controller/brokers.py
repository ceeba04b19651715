"""Broker registration and fencing by epoch (KIP-631), and blocks of producer ids (KIP-730)."""

from tierlog.broker.wire.errors import ErrorCode
from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import election
from tierlog.metadata.controller.decision import Decision, done, refused
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage

MAX_PRODUCER_ID = 2**63 - 1
MAX_PRODUCER_ID_BLOCK = 1_000_000  # ids are never reused, so one request must not be able to use them up


def register(image: ClusterImage, command: c.RegisterBroker) -> Decision[c.BrokerRegistered]:
    """A new incarnation gets a new epoch, which fences the one before it; what that one led gets a new
    leader epoch. The broker epoch is the index of the log entry that registers it, so it only grows."""
    if command.broker_id < 0 or not 0 < command.port < 65536:
        return Decision((), c.BrokerRegistered(error=ErrorCode.INVALID_REGISTRATION, message=_bad(command)))
    known = image.brokers.get(command.broker_id)
    same_process = known is not None and known.incarnation == command.incarnation
    epoch = known.broker_epoch if known is not None and same_process else image.index + 1
    registration = r.RegisterBroker(
        broker_id=command.broker_id,
        broker_epoch=epoch,
        incarnation=command.incarnation,
        host=command.host,
        port=command.port,
        admin_url=command.admin_url,
        rack=command.rack,
    )
    fenced = known.fenced if known is not None and same_process else command.start_fenced
    records: list[r.AnyRecord] = [registration]
    if known is not None and not same_process:
        records += election.broker_restarted(image, command.broker_id)
    if not fenced:
        records.append(r.FenceBroker(broker_id=command.broker_id, broker_epoch=epoch, fenced=False))
        records += election.broker_ready(evolve_all(image, records), command.broker_id)
    return Decision(tuple(records), c.BrokerRegistered(broker_epoch=epoch))


def unregister(image: ClusterImage, command: c.UnregisterBroker) -> Decision[c.Acknowledged]:
    if command.broker_id not in image.brokers:
        return refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {command.broker_id} is not registered")
    return done(
        *election.broker_lost(image, command.broker_id),
        r.UnregisterBroker(broker_id=command.broker_id),
    )


def fence(image: ClusterImage, command: c.FenceBroker) -> Decision[c.Acknowledged]:
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        return refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {command.broker_id} is not registered")
    if broker.broker_epoch != command.broker_epoch:
        return refused(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {command.broker_id} is at epoch {broker.broker_epoch}"
        )
    if broker.fenced == command.fenced:
        return done()
    change = election.broker_lost if command.fenced else election.broker_ready
    record = r.FenceBroker(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=command.fenced
    )
    return done(record, *change(image, command.broker_id))


def allocate_producer_ids(
    image: ClusterImage, command: c.AllocateProducerIds
) -> Decision[c.ProducerIdsAllocated]:
    broker = image.brokers.get(command.broker_id)
    first, count = image.next_producer_id, command.count
    if broker is None or broker.broker_epoch != command.broker_epoch:
        return _no_ids(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {command.broker_id}: not the current registration"
        )
    if not 0 < count <= MAX_PRODUCER_ID_BLOCK:
        return _no_ids(
            ErrorCode.INVALID_REQUEST, f"a block holds 1 to {MAX_PRODUCER_ID_BLOCK} ids, not {count}"
        )
    if first > MAX_PRODUCER_ID - count:
        return _no_ids(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    record = r.ProducerIds(broker_id=command.broker_id, next_id=first + count)
    return Decision((record,), c.ProducerIdsAllocated(first_id=first, count=count))


def _no_ids(error: ErrorCode, message: str) -> Decision[c.ProducerIdsAllocated]:
    return Decision((), c.ProducerIdsAllocated(error=error, message=message))


def _bad(command: c.RegisterBroker) -> str:
    return f"broker id {command.broker_id}, port {command.port}: not a valid registration"
