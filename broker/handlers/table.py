"""Handler table: API key -> handler. An API without a handler is not advertised, and a request for it closes
the connection."""

from collections.abc import Mapping

from tierlog.base.types import require
from tierlog.broker.handlers.acls import acl_handlers
from tierlog.broker.handlers.api_versions import api_versions_handler
from tierlog.broker.handlers.audited import audited_handlers
from tierlog.broker.handlers.client_quotas import (
    alter_client_quotas_handler,
    describe_client_quotas_handler,
)
from tierlog.broker.handlers.cluster import (
    describe_cluster_handler,
    metadata_handler,
    unregister_broker_handler,
)
from tierlog.broker.handlers.configs import (
    alter_configs_handler,
    incremental_alter_configs_handler,
)
from tierlog.broker.handlers.context import Handler
from tierlog.broker.handlers.delegation_tokens import token_handlers
from tierlog.broker.handlers.delete_records import delete_records_handler
from tierlog.broker.handlers.dependencies import Dependencies
from tierlog.broker.handlers.describe_configs import describe_configs_handler, list_config_resources_handler
from tierlog.broker.handlers.describe_producers import describe_producers_handler
from tierlog.broker.handlers.features import features_of, update_features_handler
from tierlog.broker.handlers.fetch import fetch_handler
from tierlog.broker.handlers.guard import guarded_handlers
from tierlog.broker.handlers.log_dirs import alter_replica_log_dirs_handler, describe_log_dirs_handler
from tierlog.broker.handlers.offsets import list_offsets_handler, offset_for_leader_epoch_handler
from tierlog.broker.handlers.ordering import ORDERS
from tierlog.broker.handlers.partition_changes import (
    alter_partition_reassignments_handler,
    elect_leaders_handler,
    list_partition_reassignments_handler,
)
from tierlog.broker.handlers.produce import produce_handler
from tierlog.broker.handlers.quorum import describe_quorum_handler
from tierlog.broker.handlers.sasl import sasl_handlers
from tierlog.broker.handlers.scram_users import alter_users_handler, describe_users_handler
from tierlog.broker.handlers.topic_partitions import describe_topic_partitions_handler
from tierlog.broker.handlers.topics import (
    create_partitions_handler,
    create_topics_handler,
    delete_topics_handler,
)
from tierlog.broker.handlers.traced import traced_handlers
from tierlog.protocol.api import APIS, BY_NAME

SERVED = frozenset(ORDERS)
"""APIs that a node advertises and the reference documents; `build_handlers` checks that each has a
handler."""


def build_handlers(deps: Dependencies, coordinators: Mapping[int, Handler]) -> dict[int, Handler]:
    """All handlers; `coordinators`: those of handlers.coordinators."""
    by_name: dict[str, Handler] = {
        "AlterClientQuotas": alter_client_quotas_handler(deps),
        "AlterConfigs": alter_configs_handler(deps),
        "AlterPartitionReassignments": alter_partition_reassignments_handler(deps),
        "AlterReplicaLogDirs": alter_replica_log_dirs_handler(deps),
        "AlterUserScramCredentials": alter_users_handler(deps),
        "CreatePartitions": create_partitions_handler(deps),
        "CreateTopics": create_topics_handler(deps),
        "DeleteRecords": delete_records_handler(deps),
        "DeleteTopics": delete_topics_handler(deps),
        "DescribeClientQuotas": describe_client_quotas_handler(deps),
        "DescribeCluster": describe_cluster_handler(deps),
        "DescribeConfigs": describe_configs_handler(deps),
        "DescribeLogDirs": describe_log_dirs_handler(deps),
        "DescribeProducers": describe_producers_handler(deps),
        "DescribeQuorum": describe_quorum_handler(deps),
        "DescribeTopicPartitions": describe_topic_partitions_handler(deps),
        "DescribeUserScramCredentials": describe_users_handler(deps),
        "ElectLeaders": elect_leaders_handler(deps),
        "Fetch": fetch_handler(deps),
        "IncrementalAlterConfigs": incremental_alter_configs_handler(deps),
        "ListConfigResources": list_config_resources_handler(deps),
        "ListOffsets": list_offsets_handler(deps),
        "ListPartitionReassignments": list_partition_reassignments_handler(deps),
        "Metadata": metadata_handler(deps),
        "OffsetForLeaderEpoch": offset_for_leader_epoch_handler(deps),
        "Produce": produce_handler(deps),
        "UnregisterBroker": unregister_broker_handler(deps),
        "UpdateFeatures": update_features_handler(deps),
    }
    by_name |= acl_handlers(deps) | token_handlers(deps) | sasl_handlers()
    handlers = {BY_NAME[name].key: handler for name, handler in by_name.items()}
    handlers.update(coordinators)
    api_versions = BY_NAME["ApiVersions"].key
    handlers[api_versions] = api_versions_handler(
        [*handlers, api_versions], features=lambda: features_of(deps.metadata.image)
    )
    if deps.authorizer is not None:
        handlers = guarded_handlers(handlers, deps, deps.authorizer)
    if deps.audit is not None:
        handlers = audited_handlers(handlers, deps, deps.audit)
    if deps.tracer is not None:
        handlers = traced_handlers(handlers, deps.tracer, lambda: deps.metadata.image)
    require({APIS[key].name for key in handlers} == SERVED, "the handlers differ from the documented APIs")
    return handlers
