"""Broker commands: registration, fencing and controlled shutdown (KIP-631), the format version (KIP-584), and
blocks of producer ids (KIP-730).

Every function raises Refusal if the command is not allowed. Commands of a broker carry its broker epoch, so
that those of an earlier process are refused.
"""

from collections.abc import Container, Iterable

from msgspec.structs import asdict, replace

from tierlog.base.safeguards import safeguard
from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller import election, users
from tierlog.metadata.controller.decision import Decision, Refusal, done
from tierlog.metadata.controller.rules import (
    MIN_IN_SYNC,
    UNCLEAN,
    ClusterDefaults,
    cluster_defaults,
    has_cluster_defaults,
)
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import BrokerImage, ClusterImage
from tierlog.metadata.versions import SUPPORTED_FORMATS
from tierlog.protocol.errors import ErrorCode

MAX_PRODUCER_ID = 2**63 - 1
MAX_PRODUCER_ID_BLOCK = 1_000_000  # ids are never reused, so a single request must not use them all up


def register(
    image: ClusterImage, command: c.RegisterBroker, in_session: Container[int] = ()
) -> Decision[c.BrokerRegistered]:
    """Register a broker process, identified by its incarnation.

    A new incarnation gets a new broker epoch, and commands with the previous epoch are refused from then on.
    Partitions that the previous process led get another leader or a new leader epoch. The broker epoch is the
    index of the log entry with the registration, so it always increases. `in_session`: ids of the brokers
    with a valid session, which no other process may use, as in Kafka.
    """
    _check_registration(image, command)
    current = image.brokers.get(command.broker_id)
    same_process = current is not None and current.incarnation == command.incarnation
    if current is not None and not same_process and command.broker_id in in_session:
        raise Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, _taken(current))
    loss_reason = None if current is None or same_process else _loss(current, command)
    may_have_lost = command.may_have_lost or loss_reason is not None
    epoch = current.broker_epoch if current is not None and same_process else image.index + 1
    first = _first_defaults(image, command)
    endpoints = _endpoints(image, first, command)
    records: tuple[r.AnyRecord, ...] = (*first, _registration(command, epoch), *endpoints)
    if not (current.fenced if current is not None and same_process else command.start_fenced):
        records += (r.BrokerFencing(broker_id=command.broker_id, broker_epoch=epoch, fenced=False),)
    if not same_process:
        records = election.with_partition_changes(
            image,
            records,
            lambda after: election.broker_restarted(after, command.broker_id, may_have_lost=may_have_lost),
        )
    return Decision(records, c.BrokerRegistered(broker_epoch=epoch, message=loss_reason))


def unregister(image: ClusterImage, command: c.UnregisterBroker) -> Decision[c.Acknowledged]:
    """Remove a broker that will not return. It must be fenced, so its process must be stopped first."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {command.broker_id} is not registered")
    if not broker.fenced:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"broker {command.broker_id} is not fenced: stop it first")
    removal = (r.BrokerUnregistered(broker_id=command.broker_id),)
    return done(
        *election.with_partition_changes(
            image, removal, lambda after: election.broker_lost(after, command.broker_id, for_good=True)
        )
    )


def fence(image: ClusterImage, command: c.FenceBroker) -> Decision[c.Acknowledged]:
    """Fence or unfence a broker, and elect leaders where that is now necessary or possible."""
    broker = current_broker(image, command.broker_id, command.broker_epoch)
    if broker.fenced == command.fenced:
        return done()
    record = r.BrokerFencing(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, fenced=command.fenced
    )
    change = election.broker_lost if command.fenced else election.broker_unfenced
    return done(
        *election.with_partition_changes(image, (record,), lambda after: change(after, broker.broker_id))
    )


def stop(image: ClusterImage, command: c.StopBroker) -> Decision[c.BrokerStopping]:
    """Begin or continue a controlled shutdown. Each call elects other leaders from the in-sync replicas. The
    reply contains the number of leaderships that can still move once another replica has caught up."""
    broker = current_broker(image, command.broker_id, command.broker_epoch)
    records: tuple[r.AnyRecord, ...] = ()
    if not broker.stopping:
        records = (r.ControlledShutdownStarted(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch),)
    records = election.with_partition_changes(
        image, records, lambda after: election.broker_stopping(after, broker.broker_id)
    )
    leads = election.count_transferable_leaderships(evolve_all(image, records), broker.broker_id)
    return Decision(records, c.BrokerStopping(leads=leads))


def update_format(
    image: ClusterImage, command: c.UpdateFormat, supported: tuple[int, int] = SUPPORTED_FORMATS
) -> Decision[c.Acknowledged]:
    """Raise the format version. This node and every registered broker must support the new version, even a
    broker that is down, because it will read this log later. The version never decreases, because the log
    keeps records of the newer version.

    `supported`: lowest and highest version that this node supports.
    """
    lowest = max([supported[0], *(broker.formats[0] for broker in image.brokers.values())])
    highest = min([supported[1], *(broker.formats[1] for broker in image.brokers.values())])
    if not lowest <= command.version <= highest:
        message = f"format version {command.version}: brokers and controller support {lowest} to {highest}"
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
    if command.version < image.format_version:
        message = f"the format version is {image.format_version} and cannot be lowered"
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
    if command.version == image.format_version or command.validate_only:
        return done()
    return done(r.FormatVersion(version=command.version))


def allocate_producer_ids(
    image: ClusterImage, command: c.AllocateProducerIds
) -> Decision[c.ProducerIdsAllocated]:
    """Allocate the next block of producer ids to a broker."""
    broker = image.brokers.get(command.broker_id)
    first, count = image.next_producer_id, command.count
    if broker is None or broker.broker_epoch != command.broker_epoch:
        raise Refusal(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {command.broker_id}: not the current registration"
        )
    if not 0 < count <= MAX_PRODUCER_ID_BLOCK:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"a block holds 1 to {MAX_PRODUCER_ID_BLOCK} ids, not {count}"
        )
    if first > MAX_PRODUCER_ID - count:
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    record = r.ProducerIdsRecord(broker_id=command.broker_id, next_id=first + count)
    return Decision((record,), c.ProducerIdsAllocated(first_id=first, count=count))


def current_broker(image: ClusterImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Return the broker. Raises Refusal if it is not registered, or is registered with another epoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise Refusal(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is at epoch {broker.broker_epoch}")
    return broker


def _registration(command: c.RegisterBroker, epoch: int) -> r.BrokerRegistration:
    """The record of the command, with the values of all fields that both have."""
    fields = asdict(command)
    shared = {name: fields[name] for name in r.BrokerRegistration.__struct_fields__ if name in fields}
    return r.BrokerRegistration(**shared, broker_epoch=epoch, keeps_epochs=command.previous_epoch is not None)


def _endpoints(
    image: ClusterImage, first: Iterable[r.AnyRecord], command: c.RegisterBroker
) -> list[r.AnyRecord]:
    """A record of the broker's listeners, if it names them. It is needed for a single PLAINTEXT, too: clients
    of other listeners must not get that address while brokers get more listeners one by one. Below format
    version 3, clients of all listeners get the address for other brokers."""
    raised = [record.version for record in first if isinstance(record, r.FormatVersion)]
    if not command.endpoints or max([image.format_version, *raised]) < 3:
        return []
    return [r.BrokerEndpoints(broker_id=command.broker_id, endpoints=command.endpoints)]


def _first_defaults(image: ClusterImage, command: c.RegisterBroker) -> list[r.AnyRecord]:
    """Records that store min.insync.replicas and unclean.leader.election.enable as cluster settings.

    The first registration adds them, as Kafka stores min.insync.replicas when eligible leader replicas are
    enabled (KIP-966). A new cluster takes the values from its first broker. A cluster that was created by an
    older version keeps the values that applied before. The configuration files of later brokers have no
    effect. A new cluster begins with the highest format version that the first broker and this node support,
    and with the users of its first broker.
    """
    if has_cluster_defaults(image):
        return []
    version = min(SUPPORTED_FORMATS[1], command.formats[1])
    is_new = not image.brokers and not image.topics
    raised = [r.FormatVersion(version=version)] if is_new and version > image.format_version else []
    defaults = ClusterDefaults(command.min_in_sync, command.unclean_election)
    if image.brokers:
        defaults = cluster_defaults(image)
    values = {MIN_IN_SYNC: str(defaults.min_in_sync)}
    if defaults.unclean:
        values[UNCLEAN] = "true"
    stored = image.overrides(r.ConfigScope.CLUSTER, "")
    settings = [
        r.ConfigRecord(scope=r.ConfigScope.CLUSTER, name="", key=key, value=value)
        for key, value in values.items()
        if key not in stored
    ]
    return [*raised, *settings, *(_first_users(image, command, version) if is_new else ())]


def _first_users(image: ClusterImage, command: c.RegisterBroker, version: int) -> list[r.AnyRecord]:
    """Users that exist before the first client connects. Raises Refusal: a cluster that has none although the
    operator wants some would have to be opened."""
    if not command.first_users:
        return []
    decision = users.alter(replace(image, format_version=version), c.AlterUsers(changes=command.first_users))
    for outcome in decision.reply.users:
        if outcome.error:
            raise Refusal(ErrorCode.INVALID_REGISTRATION, f"first user {outcome.user}: {outcome.message}")
    return list(decision.records)


def _taken(known: BrokerImage) -> str:
    return (
        f"another process is broker {known.broker_id}, at {known.host}:{known.port}, and its session is "
        "valid: stop that one first, or give this one another node.id"
    )


@safeguard("a log directory stores the broker epoch of its last use")
def _loss(known: BrokerImage, command: c.RegisterBroker) -> str | None:
    """Return why the log directories may lack records of the broker's last process, or None if they have all.

    A missing directory does not count here, because the broker reports each replica that is empty after a
    restart. Only the last epoch in which the broker was unfenced matters: a process that was never unfenced
    has acknowledged no records (KIP-966).
    """
    unknown = sorted(set(command.directories) - set(known.directories))
    if known.directories and unknown:
        names = ", ".join(map(str, unknown))
        return f"the last process of broker {known.broker_id} did not use the directories {names}"
    if command.previous_epoch is None or command.previous_epoch >= known.served_epoch:
        return None
    served = f"broker {known.broker_id} served under broker epoch {known.served_epoch}"
    if command.previous_epoch < 0:
        return (
            f"{served}, but one of its directories does not record its last epoch: its boot.id is missing or "
            "unreadable, or a copy of an older version was restored"
        )
    return (
        f"its directories were last used under broker epoch {command.previous_epoch}, but {served} since: an "
        "older copy was restored"
    )


def _check_registration(image: ClusterImage, command: c.RegisterBroker) -> None:
    if command.broker_id < 0 or not 0 < command.port < 65536 or command.min_in_sync < 1:
        message = f"broker id {command.broker_id}, port {command.port}: not a valid registration"
        raise Refusal(ErrorCode.INVALID_REGISTRATION, message)
    if not command.formats[0] <= image.format_version <= command.formats[1]:
        supported = f"the broker supports {command.formats}"
        message = f"the cluster's format version is {image.format_version}; {supported}"
        raise Refusal(ErrorCode.INVALID_REGISTRATION, message)
