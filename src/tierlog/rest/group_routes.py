"""Consumer groups and their lags under `/v3`, as Confluent's REST Proxy shows them."""

from typing import Any

import msgspec
from aiohttp import web

from tierlog.rest import groups, models
from tierlog.rest.errors import NO_CONSUMER, RETRY_AFTER_S, UNAVAILABLE, RestError
from tierlog.rest.gateway import Call
from tierlog.rest.groups import Group, GroupMember, PartitionLag
from tierlog.rest.models import Metadata, Related
from tierlog.rest.reader import explain_unknown_ends
from tierlog.rest.routes import Route
from tierlog.rest.topics import CLUSTER, PAGE_PARAMETERS, answer, list_of, page_of


class _Urls:
    """URLs and names of the resources of one group."""

    def __init__(self, call: Call, cluster_id: str, group: str) -> None:
        self._call = call
        self._parts = ("clusters", cluster_id, "consumer-groups", group)
        self._resource = f"crn:///kafka={cluster_id}/consumer-group={group}"

    def url(self, *parts: object) -> str:
        return self._call.url(*self._parts, *parts)

    def related(self, *parts: object) -> Related:
        return Related(self.url(*parts))

    def metadata(self, resource: str, *parts: object) -> Metadata:
        return Metadata(self.url(*parts), self._resource + resource)


async def list_groups(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    listed = await groups.listed(call.cluster)
    page, following = page_of(call.request.query, sorted(listed))
    found = await groups.describe_all(call.cluster, {name: listed[name] for name in page})
    rows = [_group(call, cluster_id, group) for group in found]
    return list_of("KafkaConsumerGroup", call.url("clusters", cluster_id, "consumer-groups"), rows, following)


async def get_group(call: Call) -> web.StreamResponse:
    cluster_id = await call.cluster_id()
    return answer(_group(call, cluster_id, await _described(call)))


async def _described(call: Call) -> Group:
    return await groups.describe(call.cluster, call.part("consumer_group_id"))


def _group(call: Call, cluster_id: str, group: Group) -> models.ConsumerGroup:
    urls = _Urls(call, cluster_id, group.group_id)
    return models.ConsumerGroup(
        kind="KafkaConsumerGroup",
        metadata=urls.metadata(""),
        cluster_id=cluster_id,
        consumer_group_id=group.group_id,
        is_simple=not group.protocol_type,
        partition_assignor=group.assignor,
        state=group.state,
        type=group.kind,
        coordinator=Related(call.url("clusters", cluster_id, "brokers", group.coordinator)),
        consumers=urls.related("consumers"),
        lag_summary=urls.related("lag-summary"),
    )


async def list_consumers(call: Call) -> web.StreamResponse:
    cluster_id, group = await call.cluster_id(), await _described(call)
    urls = _Urls(call, cluster_id, group.group_id)
    rows = [_consumer(urls, cluster_id, group, member) for member in group.members]
    return list_of("KafkaConsumer", urls.url("consumers"), rows)


async def get_consumer(call: Call) -> web.StreamResponse:
    cluster_id, group = await call.cluster_id(), await _described(call)
    urls, wanted = _Urls(call, cluster_id, group.group_id), call.part("consumer_id")
    for member in group.members:
        if member.member_id == wanted:
            return answer(_consumer(urls, cluster_id, group, member))
    raise RestError(NO_CONSUMER, f"group {group.group_id} has no consumer {wanted!r}")


def _consumer(urls: _Urls, cluster_id: str, group: Group, member: GroupMember) -> models.Consumer:
    return models.Consumer(
        kind="KafkaConsumer",
        metadata=urls.metadata(f"/consumer={member.member_id}", "consumers", member.member_id),
        cluster_id=cluster_id,
        consumer_group_id=group.group_id,
        consumer_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=urls.related("consumers", member.member_id, "assignments"),
    )


async def lag_summary(call: Call) -> web.StreamResponse:
    cluster_id, group = await call.cluster_id(), await _described(call)
    found = await groups.lags(call.cluster, group)
    if not found:
        raise RestError(NO_CONSUMER, f"group {group.group_id} has committed no offset")
    known = [(lag, one) for one in found if (lag := one.lag) is not None]
    unknown = [one for one in found if one.lag is None]
    if not known:
        raise RestError(
            UNAVAILABLE, explain_unknown_ends([one.partition for one in unknown]), retry_after_s=RETRY_AFTER_S
        )
    most, worst = max(known, key=lambda each: each[0])
    urls, partition = _Urls(call, cluster_id, group.group_id), worst.partition
    return answer(
        models.LagSummary(
            kind="KafkaConsumerGroupLagSummary",
            metadata=urls.metadata("/lag-summary", "lag-summary"),
            cluster_id=cluster_id,
            consumer_group_id=group.group_id,
            max_lag_consumer_id=worst.member_id,
            max_lag_instance_id=worst.instance_id,
            max_lag_client_id=worst.client_id,
            max_lag_topic_name=partition.topic,
            max_lag_partition_id=partition.partition,
            max_lag=most,
            total_lag=sum(lag for lag, _ in known),
            max_lag_consumer=urls.related("consumers", worst.member_id),
            max_lag_partition=Related(
                call.url("clusters", cluster_id, "topics", partition.topic, "partitions", partition.partition)
            ),
            message=explain_unknown_ends([one.partition for one in unknown]) if unknown else msgspec.UNSET,
        )
    )


async def list_lags(call: Call) -> web.StreamResponse:
    cluster_id, group = await call.cluster_id(), await _described(call)
    urls = _Urls(call, cluster_id, group.group_id)
    rows = [_lag(urls, cluster_id, group, one) for one in await groups.lags(call.cluster, group)]
    return list_of("KafkaConsumerLag", urls.url("lags"), rows)


async def get_lag(call: Call) -> web.StreamResponse:
    cluster_id, group = await call.cluster_id(), await _described(call)
    urls = _Urls(call, cluster_id, group.group_id)
    wanted = call.part("topic_name"), call.part("partition_id")
    for one in await groups.lags(call.cluster, group):
        if (one.partition.topic, str(one.partition.partition)) == wanted:
            return answer(_lag(urls, cluster_id, group, one))
    raise RestError(
        NO_CONSUMER, f"group {group.group_id} has committed no offset for {wanted[0]}-{wanted[1]}"
    )


def _lag(urls: _Urls, cluster_id: str, group: Group, one: PartitionLag) -> models.Lag:
    topic, number = one.partition.topic, one.partition.partition
    return models.Lag(
        kind="KafkaConsumerLag",
        metadata=urls.metadata(f"/lag={topic}/partition={number}", "lags", topic, "partitions", number),
        cluster_id=cluster_id,
        consumer_group_id=group.group_id,
        topic_name=topic,
        partition_id=number,
        consumer_id=one.member_id,
        instance_id=one.instance_id,
        client_id=one.client_id,
        current_offset=one.committed,
        log_end_offset=one.end,
        lag=one.lag,
        message=explain_unknown_ends([one.partition]) if one.lag is None else msgspec.UNSET,
    )


GROUPS = f"{CLUSTER}/consumer-groups"
GROUP = f"{GROUPS}/{{consumer_group_id}}"


def group_routes() -> list[Route]:
    def route(path: str, operation: str, summary: str, handler: Any, result: type[Any], **more: Any) -> Route:
        return Route(
            method="GET",
            path=path,
            operation=operation,
            summary=summary,
            handler=handler,
            result=result,
            tag="groups",
            **more,
        )

    listing = models.ListOf
    return [
        route(
            GROUPS,
            "listConsumerGroups",
            "Groups that the principal may describe.",
            list_groups,
            listing,
            query=PAGE_PARAMETERS,
        ),
        route(GROUP, "getConsumerGroup", "A group.", get_group, models.ConsumerGroup),
        route(f"{GROUP}/consumers", "listConsumers", "Members of a group.", list_consumers, listing),
        route(
            f"{GROUP}/consumers/{{consumer_id}}", "getConsumer", "A member.", get_consumer, models.Consumer
        ),
        route(
            f"{GROUP}/lag-summary", "getConsumerGroupLagSummary", "The largest lag, and the sum of all.",
            lag_summary, models.LagSummary,
        ),
        route(f"{GROUP}/lags", "listConsumerLags", "Lags of all partitions.", list_lags, listing),
        route(
            f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}", "getConsumerLag",
            "The lag of a partition.", get_lag, models.Lag,
        ),
    ]  # fmt: skip
