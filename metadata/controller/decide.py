"""The controller's entry point: `decide` turns a command into records and a reply. Pure.

The active controller calls it on its draft image, commits the records, and only then sends the reply.
`now_ms` is the quorum's time (`ClusterImage.time_ms`), not a wall clock's.
"""

from collections.abc import Container

from tierlog.base.types import Rng
from tierlog.metadata.controller import (
    acls,
    balance_plans,
    brokers,
    configs,
    election,
    features,
    in_sync,
    quotas,
    remote,
    remote_loads,
    remote_splices,
    replicas,
    tokens,
    topics,
    users,
)
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.image import ClusterImage

_REPLIES: dict[type[c.AnyCommand], type[c.Acknowledged]] = {
    c.RegisterBroker: c.BrokerRegistered,
    c.StopBroker: c.BrokerStopping,
    c.AlterPartitions: c.PartitionsAltered,
    c.CreateAcls: c.AclsCreated,
    c.DeleteAcls: c.AclsDeleted,
    c.AllocateProducerIds: c.ProducerIdsAllocated,
    c.MoveLogStart: c.LogStartReply,
    c.DropRemoteLog: c.LogStartReply,
}
"""Commands whose reply has more than Acknowledged, which all others get if they are refused."""


def decide(
    image: ClusterImage, command: c.AnyCommand, now_ms: int, rng: Rng, in_session: Container[int] = ()
) -> Decision[c.AnyReply]:
    """`in_session`: brokers with a valid session, which registrations depend on. Only the leader knows
    them."""
    try:
        return _decide(image, command, now_ms, rng, in_session)
    except Refusal as refusal:
        reply = _REPLIES.get(type(command), c.Acknowledged)
        return Decision((), reply(error=refusal.error, message=refusal.message))


def _decide(
    image: ClusterImage, command: c.AnyCommand, now_ms: int, rng: Rng, in_session: Container[int]
) -> Decision[c.AnyReply]:
    """Raises Refusal."""
    match command:
        case c.RegisterBroker():
            return brokers.register(image, command, in_session)
        case c.UnregisterBroker():
            return brokers.unregister(image, command)
        case c.FenceBroker():
            return brokers.fence(image, command)
        case c.StopBroker():
            return brokers.stop(image, command)
        case c.ReportReplicas():
            return replicas.report(image, command)
        case c.UpdateFormat():
            return brokers.update_format(image, command)
        case c.UpdateFeatures():
            return features.update(image, command)
        case c.AlterPartitions():
            return in_sync.alter_partitions(image, command)
        case c.ElectLeaders():
            return election.elect_leaders(image, command)
        case c.Reassign():
            return balance_plans.decide_moves(image, command)
        case c.CreateTopics():
            return topics.create_topics(image, command, rng)
        case c.DeleteTopics():
            return topics.delete_topics(image, command, now_ms)
        case c.CreatePartitions():
            return topics.create_partitions(image, command)
        case c.AlterConfigs():
            return configs.alter(image, command)
        case c.AlterQuotas():
            return quotas.alter(image, command)
        case c.AlterUsers() | c.CreateAcls() | c.DeleteAcls():
            return _decide_security(image, command)
        case c.CreateToken() | c.AlterToken() | c.RemoveExpiredTokens():
            return _decide_tokens(image, command)
        case c.AllocateProducerIds():
            return brokers.allocate_producer_ids(image, command)
        case c.StartCopy():
            return remote.start_copy(image, command, now_ms)
        case c.FinishCopy():
            return remote.finish_copy(image, command)
        case c.AbandonCopy():
            return remote.abandon_copy(image, command, now_ms)
        case c.MoveLogStart():
            return remote.move_log_start(image, command, now_ms)
        case c.DropRemoteLog():
            return remote.drop_remote_log(image, command, now_ms)
        case c.RemoveDiverged():
            return remote.remove_diverged(image, command, now_ms)
        case c.AdoptManifest():
            return remote.adopt_manifest(image, command, now_ms)
        case c.ConfirmRemoteDeleted():
            return remote.confirm_deleted(image, command)
        case c.StartSpill():
            return remote.start_spill(image, command, now_ms)
        case c.SpillEntries():
            return remote.spill_entries(image, command, now_ms)
        case c.ReplaceSegments():
            return remote_splices.replace_segments(image, command, now_ms)
        case c.LoadSegments():
            return remote_loads.load_segments(image, command, now_ms)
        case c.TrimPages():
            return remote_splices.trim_pages(image, command, now_ms)
        case c.StartRemoteDeletes():
            return remote.start_deletes(image, command, now_ms)


def _decide_security(
    image: ClusterImage, command: c.AlterUsers | c.CreateAcls | c.DeleteAcls
) -> Decision[c.AnyReply]:
    """Raises Refusal."""
    match command:
        case c.AlterUsers():
            return users.alter(image, command)
        case c.CreateAcls():
            return acls.create(image, command)
        case c.DeleteAcls():
            return acls.delete(image, command)


def _decide_tokens(
    image: ClusterImage, command: c.CreateToken | c.AlterToken | c.RemoveExpiredTokens
) -> Decision[c.AnyReply]:
    """Raises Refusal."""
    match command:
        case c.CreateToken():
            return tokens.create(image, command)
        case c.AlterToken():
            return tokens.alter(image, command)
        case c.RemoveExpiredTokens():
            return tokens.remove_expired(image, command)
