"""DescribeCluster (API key 60). Written by `tierlog.protocol.generate`: do not edit."""

from dataclasses import dataclass, field
from typing import ClassVar

from tierlog.protocol.schema import Field, Fields, Versions


@dataclass(slots=True, kw_only=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = False
    endpoint_type: int = 1
    include_fenced_brokers: bool = False

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("include_cluster_authorized_operations", "bool", 0, 2),
        Field("endpoint_type", "int8", 1, 2),
        Field("include_fenced_brokers", "bool", 2, 2),
    )


@dataclass(slots=True, kw_only=True)
class DescribeClusterBroker:
    broker_id: int = 0
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_fenced: bool = False

    FIELDS: ClassVar[Fields] = (
        Field("broker_id", "int32", 0, 2),
        Field("host", "string", 0, 2),
        Field("port", "int32", 0, 2),
        Field("rack", "string", 0, 2, nullable=(0, 2)),
        Field("is_fenced", "bool", 2, 2),
    )


@dataclass(slots=True, kw_only=True)
class DescribeClusterResponse:
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = 1
    cluster_id: str = ""
    controller_id: int = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: int = -2147483648

    VERSIONS: ClassVar[Versions] = (0, 2)
    FLEXIBLE: ClassVar[int | None] = 0
    FIELDS: ClassVar[Fields] = (
        Field("throttle_time_ms", "int32", 0, 2),
        Field("error_code", "int16", 0, 2),
        Field("error_message", "string", 0, 2, nullable=(0, 2)),
        Field("endpoint_type", "int8", 1, 2),
        Field("cluster_id", "string", 0, 2),
        Field("controller_id", "int32", 0, 2),
        Field("brokers", "struct", 0, 2, array=True, nested=DescribeClusterBroker),
        Field("cluster_authorized_operations", "int32", 0, 2),
    )
