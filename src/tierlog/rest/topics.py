"""Clusters, brokers, topics and their settings under `/v3`, as Confluent's REST Proxy shows them."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from tierlog.client.errors import raise_for
from tierlog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tierlog.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tierlog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tierlog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tierlog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tierlog.rest import models
from tierlog.rest.errors import BAD_REQUEST, JSON, NO_CONFIG, NO_TOPIC, RestError
from tierlog.rest.gateway import Call
from tierlog.rest.models import Metadata, Related, encode
from tierlog.rest.routes import Parameter, Route, decoded, number

if TYPE_CHECKING:
    from tierlog.protocol.messages.describe_configs import DescribeConfigsResourceResult
    from tierlog.protocol.messages.metadata import MetadataResponseBroker, MetadataResponseTopic

TIMEOUT_MS = 30_000
PAGE_MAX = 1_000
TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
OPERATIONS = {"SET": SET, "DELETE": DELETE}
SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)
"""Kafka's numbers of sources, and Confluent's names."""

DEFAULT_SOURCE = 5


def answer(body: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=encode(body), content_type=JSON)


PAGE_PARAMETERS = (
    Parameter(
        name="page_size",
        schema={"type": "integer", "minimum": 1, "maximum": PAGE_MAX},
        doc="Maximum entries of a page. Default: all entries in one.",
    ),
    Parameter(
        name="page_token",
        schema={"type": "string"},
        doc="Where the page begins. `metadata.next`, the URL of the next page, has it; null in the last.",
    ),
)


def page_of(query: Any, names: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """The names of the page that a request wants, of sorted ones, and the query of the next page, None for
    the last. A page begins after a name, so that entries which come and go shift none of the others. Raises
    RestError."""
    size, token = number(query, "page_size", 0, PAGE_MAX), query.get("page_token")
    if "page_size" in query and not size:
        raise RestError(BAD_REQUEST, f"page_size: expected a number from 1 to {PAGE_MAX}")
    first = 0 if token is None else bisect_right(names, token)
    page = names[first : first + size] if size else names[first:]
    if first + len(page) >= len(names):
        return page, None
    return page, urlencode({"page_size": size, "page_token": page[-1]})


def list_of(kind: str, url: str, rows: Sequence[Any], following: str | None = None) -> web.Response:
    """A list of resources. The kind is that of one resource. `following`: query of the next page."""
    next_url = None if following is None else f"{url}?{following}"
    return answer(models.ListOf(f"{kind}List", Metadata(url, next=next_url), list(rows)))


# ---- clusters and brokers ---------------------------------------------------------------------------


async def list_clusters(call: Call) -> web.StreamResponse:
    return list_of("KafkaCluster", call.url("clusters"), [await _cluster(call)])


async def get_cluster(call: Call) -> web.StreamResponse:
    return answer(await _cluster(call))


async def _cluster(call: Call) -> models.Cluster:
    cluster_id = await call.cluster_id()
    controller = (await call.cluster.metadata([])).controller_id

    def related(*parts: object) -> Related:
        return Related(call.url("clusters", cluster_id, *parts))

    return models.Cluster(
        kind="KafkaCluster",
        metadata=Metadata(call.url("clusters", cluster_id), f"crn:///kafka={cluster_id}"),
        cluster_id=cluster_id,
        controller=related("brokers", controller) if controller >= 0 else None,
        acls=related("acls"),
        brokers=related("brokers"),
        broker_configs=related("broker-configs"),
        consumer_groups=related("consumer-groups"),
        topics=related("topics"),
        partition_reassignments=related("topics", "-", "partitions", "-", "reassignment"),
    )


async def list_brokers(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    brokers = sorted((await call.cluster.metadata([])).brokers, key=lambda broker: broker.node_id)
    rows = [_broker(call, cluster_id, broker) for broker in brokers]
    return list_of("KafkaBroker", call.url("clusters", cluster_id, "brokers"), rows)


async def get_broker(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    for broker in (await call.cluster.metadata([])).brokers:
        if str(broker.node_id) == call.part("broker_id"):
            return answer(_broker(call, cluster_id, broker))
    raise RestError(NO_TOPIC, f"there is no broker {call.part('broker_id')!r}")


def _broker(call: Call, cluster_id: str, broker: "MetadataResponseBroker") -> models.Broker:
    url = ("clusters", cluster_id, "brokers", broker.node_id)
    return models.Broker(
        kind="KafkaBroker",
        metadata=Metadata(call.url(*url), f"crn:///kafka={cluster_id}/broker={broker.node_id}"),
        cluster_id=cluster_id,
        broker_id=broker.node_id,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        configs=Related(call.url(*url, "configs")),
        partition_replicas=Related(call.url(*url, "partition-replicas")),
    )


# ---- topics ----------------------------------------------------------------------------------------


async def list_topics(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    topics = (await call.cluster.metadata()).topics
    found = {topic.name or "": topic for topic in topics if not topic.error_code}
    page, following = page_of(call.request.query, sorted(found))
    rows = [_topic(call, cluster_id, name, found[name]) for name in page]
    return list_of("KafkaTopic", call.url("clusters", cluster_id, "topics"), rows, following)


async def get_topic(call: Call) -> web.StreamResponse:
    cluster_id, name = await call.cluster_id(), call.part("topic_name")
    return answer(_topic(call, cluster_id, name, await call.cluster.topic(name, fresh=True)))


async def create_topic(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    body: models.CreateTopic = decoded(call.body, models.CreateTopic)
    wanted = CreatableTopic(
        name=body.topic_name,
        num_partitions=-1 if body.partitions_count is None else body.partitions_count,
        replication_factor=-1 if body.replication_factor is None else body.replication_factor,
        configs=[CreatableTopicConfig(name=one.name, value=one.value) for one in body.configs],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=body.validate_only)
    result = (await call.cluster.call(request)).topics[0]
    raise_for(result.error_code, result.error_message, f"topic {body.topic_name}")
    row = _topic(call, cluster_id, body.topic_name, None)
    row.partitions_count, row.replication_factor = result.num_partitions, result.replication_factor
    if body.validate_only:
        return answer(row)
    for partition in range(max(result.num_partitions, 0)):
        await call.cluster.leader(body.topic_name, partition)
    response = answer(row, 201)
    response.headers["Location"] = row.metadata.self
    return response


async def delete_topic(call: Call) -> web.StreamResponse:
    await call.cluster_id()
    name = call.part("topic_name")
    request = DeleteTopicsRequest(
        topic_names=[name], topics=[DeleteTopicState(name=name)], timeout_ms=TIMEOUT_MS
    )
    for result in (await call.cluster.call(request)).responses:
        raise_for(result.error_code, result.error_message, f"topic {name}")
    call.cluster.forget(name)
    return web.Response(status=204)


async def change_topic(call: Call) -> web.StreamResponse:
    cluster_id, name = await call.cluster_id(), call.part("topic_name")
    body: models.ChangeTopic = decoded(call.body, models.ChangeTopic)
    wanted = CreatePartitionsTopic(name=name, count=body.partitions_count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS)
    for result in (await call.cluster.call(request)).results:
        raise_for(result.error_code, result.error_message, f"topic {name}")
    await call.cluster.leader(name, body.partitions_count - 1)
    return answer(_topic(call, cluster_id, name, await call.cluster.topic(name, fresh=True)))


def _topic(call: Call, cluster_id: str, name: str, found: "MetadataResponseTopic | None") -> models.Topic:
    url = ("clusters", cluster_id, "topics", name)
    partitions = [] if found is None else found.partitions
    return models.Topic(
        kind="KafkaTopic",
        metadata=Metadata(call.url(*url), f"crn:///kafka={cluster_id}/topic={name}"),
        cluster_id=cluster_id,
        topic_name=name,
        is_internal=found is not None and found.is_internal,
        replication_factor=len(partitions[0].replica_nodes) if partitions else 0,
        partitions_count=len(partitions),
        partitions=Related(call.url(*url, "partitions")),
        configs=Related(call.url(*url, "configs")),
        partition_reassignments=Related(call.url(*url, "partitions", "-", "reassignment")),
    )


async def list_partitions(call: Call) -> web.StreamResponse:
    cluster_id, name = await call.cluster_id(), call.part("topic_name")
    rows = await _partitions(call, cluster_id, name)
    return list_of("KafkaPartition", call.url("clusters", cluster_id, "topics", name, "partitions"), rows)


async def get_partition(call: Call) -> web.StreamResponse:
    name, wanted = call.part("topic_name"), call.part("partition_id")
    for row in await _partitions(call, await call.cluster_id(), name):
        if str(row.partition_id) == wanted:
            return answer(row)
    raise RestError(NO_TOPIC, f"topic {name} has no partition {wanted!r}")


async def _partitions(call: Call, cluster_id: str, name: str) -> list[models.Partition]:
    topic = await call.cluster.topic(name, fresh=True)
    rows = []
    for one in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        url = ("clusters", cluster_id, "topics", name, "partitions", one.partition_index)
        leader = Related(call.url(*url, "replicas", one.leader_id)) if one.leader_id >= 0 else None
        rows.append(
            models.Partition(
                kind="KafkaPartition",
                metadata=Metadata(
                    call.url(*url), f"crn:///kafka={cluster_id}/topic={name}/partition={one.partition_index}"
                ),
                cluster_id=cluster_id,
                topic_name=name,
                partition_id=one.partition_index,
                leader=leader,
                replicas=Related(call.url(*url, "replicas")),
                reassignment=Related(call.url(*url, "reassignment")),
            )
        )
    return rows


# ---- settings --------------------------------------------------------------------------------------


async def list_configs(call: Call) -> web.StreamResponse:
    cluster_id, name = await call.cluster_id(), call.part("topic_name")
    rows = [_config(call, cluster_id, name, one) for one in await _described(call, name, None)]
    return list_of("KafkaTopicConfig", call.url("clusters", cluster_id, "topics", name, "configs"), rows)


async def get_config(call: Call) -> web.StreamResponse:
    cluster_id, name, setting = await call.cluster_id(), call.part("topic_name"), call.part("name")
    for one in await _described(call, name, [setting]):
        return answer(_config(call, cluster_id, name, one))
    raise RestError(NO_CONFIG, f"topic {name} has no setting {setting!r}")


async def set_config(call: Call) -> web.StreamResponse:
    await call.cluster_id()
    body: models.SetConfig = decoded(call.body, models.SetConfig)
    await _alter(call, [AlterableConfig(name=call.part("name"), config_operation=SET, value=body.value)])
    return web.Response(status=204)


async def reset_config(call: Call) -> web.StreamResponse:
    await call.cluster_id()
    await _alter(call, [AlterableConfig(name=call.part("name"), config_operation=DELETE, value=None)])
    return web.Response(status=204)


async def alter_configs(call: Call) -> web.StreamResponse:
    await call.cluster_id()
    body: models.AlterConfigs = decoded(call.body, models.AlterConfigs)
    changes = []
    for one in body.data:
        operation = OPERATIONS.get((one.operation or "SET").upper())
        if operation is None:
            raise RestError(
                BAD_REQUEST, f"operation: {one.operation!r} is not one of {', '.join(OPERATIONS)}"
            )
        changes.append(AlterableConfig(name=one.name, config_operation=operation, value=one.value))
    await _alter(call, changes, validate_only=body.validate_only)
    return web.Response(status=204)


async def _described(
    call: Call, topic: str, names: list[str] | None
) -> "list[DescribeConfigsResourceResult]":
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=names
    )
    response = await call.cluster.call(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    result = response.results[0]
    raise_for(result.error_code, result.error_message, f"topic {topic}")
    found: list[DescribeConfigsResourceResult] = result.configs
    return sorted(found, key=lambda config: config.name)


async def _alter(call: Call, changes: list[AlterableConfig], *, validate_only: bool = False) -> None:
    topic = call.part("topic_name")
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    for result in (await call.cluster.call(request)).responses:
        raise_for(result.error_code, result.error_message, f"topic {topic}")


def _config(
    call: Call, cluster_id: str, topic: str, one: "DescribeConfigsResourceResult"
) -> models.TopicConfig:
    return models.TopicConfig(
        kind="KafkaTopicConfig",
        metadata=Metadata(
            call.url("clusters", cluster_id, "topics", topic, "configs", one.name),
            f"crn:///kafka={cluster_id}/topic={topic}/config={one.name}",
        ),
        cluster_id=cluster_id,
        topic_name=topic,
        name=one.name,
        value=one.value,
        is_default=one.config_source == DEFAULT_SOURCE,
        is_read_only=one.read_only,
        is_sensitive=one.is_sensitive,
        source=_source(one.config_source),
        synonyms=[models.Synonym(each.name, each.value, _source(each.source)) for each in one.synonyms],
    )


def _source(number: int) -> str:
    return SOURCES[number] if 0 <= number < len(SOURCES) else SOURCES[0]


CLUSTER = "/v3/clusters/{cluster_id}"
TOPIC = f"{CLUSTER}/topics/{{topic_name}}"


def topic_routes() -> list[Route]:
    def route(method: str, path: str, operation: str, summary: str, handler: Any, **more: Any) -> Route:
        tag = more.pop("tag", "topics")
        return Route(
            method=method, path=path, operation=operation, summary=summary, handler=handler, tag=tag, **more
        )

    listing, none = models.ListOf, {"status": 204}
    configs = f"{TOPIC}/configs"
    return [
        route("GET", "/v3/clusters", "listClusters", "The cluster, as a list.", list_clusters, result=listing,
              tag="cluster"),
        route("GET", CLUSTER, "getCluster", "The cluster.", get_cluster, result=models.Cluster,
              tag="cluster"),
        route("GET", f"{CLUSTER}/brokers", "listBrokers", "All brokers.", list_brokers, result=listing,
              tag="cluster"),
        route("GET", f"{CLUSTER}/brokers/{{broker_id}}", "getBroker", "A broker.", get_broker,
              result=models.Broker, tag="cluster"),
        route("GET", f"{CLUSTER}/topics", "listTopics", "Topics that the principal may describe.",
              list_topics, result=listing, query=PAGE_PARAMETERS),
        route("POST", f"{CLUSTER}/topics", "createTopic", "Create a topic. Status 200 with `validate_only`.",
              create_topic, body=models.CreateTopic, result=models.Topic, status=201),
        route("GET", TOPIC, "getTopic", "A topic.", get_topic, result=models.Topic),
        route("PATCH", TOPIC, "updatePartitionCount", "Add partitions.", change_topic,
              body=models.ChangeTopic, result=models.Topic),
        route("DELETE", TOPIC, "deleteTopic", "Delete a topic.", delete_topic, **none),
        route("GET", f"{TOPIC}/partitions", "listPartitions", "Partitions of a topic.", list_partitions,
              result=listing),
        route("GET", f"{TOPIC}/partitions/{{partition_id}}", "getPartition", "A partition.", get_partition,
              result=models.Partition),
        route("GET", configs, "listTopicConfigs", "Settings of a topic.", list_configs, result=listing,
              tag="configs"),
        route("POST", f"{configs}:alter", "alterTopicConfigs", "Change several settings at once.",
              alter_configs, body=models.AlterConfigs, tag="configs", **none),
        route("GET", f"{configs}/{{name}}", "getTopicConfig", "A setting.", get_config,
              result=models.TopicConfig, tag="configs"),
        route("PUT", f"{configs}/{{name}}", "updateTopicConfig", "Change a setting.", set_config,
              body=models.SetConfig, tag="configs", **none),
        route("DELETE", f"{configs}/{{name}}", "resetTopicConfig", "Restore a setting's default.",
              reset_config, tag="configs", **none),
    ]  # fmt: skip
